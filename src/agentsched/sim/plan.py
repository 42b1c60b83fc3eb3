"""What a run of a workflow is going to do: calls, their true lengths, and which wait for which."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from agentsched.errors import UsageError
from agentsched.model.value import value
from agentsched.sim.prompt import Piece


@value
class Node:
    """One call.

    Attributes:
        step: the workflow's name for it.
        model: who may serve it; None if any backend will do.
        after: numbers of the plan's nodes that must have been answered before it is made.
        delay_s: seconds from then until it is made: what a tool takes.
        input_tokens, output_tokens: true lengths.
        estimated_tokens: what the library makes of the prompt's length from its text; the true one if None.
        max_tokens: the cap that the caller sets; None for none.
        prompt_blocks, output_blocks: hashes of the prompt's and the answer's full blocks, for prefix caches:
            see `Call`.
        marks: what the library sees of the prompt's beginnings: see `Request`.
        pieces: the prompt itself, where it is known.
        signature: nodes with equal ones compute the same thing; None for one that is like no other.
        service_s: seconds it takes at a server that only counts time; None elsewhere.
    """

    step: str = "call"
    model: str | None = "m"
    after: tuple[int, ...] = ()
    delay_s: float = 0.0
    input_tokens: int = 1
    output_tokens: int = 1
    estimated_tokens: int | None = None
    max_tokens: int | None = None
    prompt_blocks: tuple[int, ...] = ()
    output_blocks: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    signature: str | None = None
    service_s: float | None = None

    def rest(self, written: int) -> "Node":
        """Return what is left of it: what was written of the answer is read with the prompt."""
        return replace(
            self,
            input_tokens=self.input_tokens + written,
            output_tokens=max(self.output_tokens - written, 1),
        )


@value
class Plan:
    """One query: what it will do.

    Attributes:
        nodes: each waits for earlier ones only.
        slo_s: seconds after its arrival by which it wishes to be done; None for no wish.
        timeout_s: seconds after its arrival at which it is given up: calls under way expire then, and no further ones
            are made. None for never.
    """

    nodes: Sequence[Node]
    workflow: str = "workflow"
    tenant: str | None = None
    priority: int = 0
    slo_s: float | None = None
    timeout_s: float | None = None


def check_plan(plan: Plan) -> None:
    """Refuse a plan that could never be carried out.

    Raises:
        UsageError: if it has no nodes, one that waits for itself, a later one or none, or a negative delay or timeout.
    """
    if not plan.nodes:
        raise UsageError(f"a plan of {plan.workflow!r} has no nodes")
    if plan.timeout_s is not None and not plan.timeout_s >= 0:
        raise UsageError(f"a plan of {plan.workflow!r} is given up {plan.timeout_s} s after it arrives")
    for number, node in enumerate(plan.nodes):
        if not 0 <= node.delay_s < inf:
            raise UsageError(f"node {number} of {plan.workflow!r} is made {node.delay_s} s after its turn")
        for earlier in node.after:
            if not 0 <= earlier < number:
                raise UsageError(
                    f"node {number} of {plan.workflow!r} waits for node {earlier}; it can wait for earlier ones only"
                )
