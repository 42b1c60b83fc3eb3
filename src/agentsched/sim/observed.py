"""Queries as they were seen from outside: calls with times, and what can be told from those of what waits for what."""

from dataclasses import dataclass, field
from heapq import heappop, heappush

from agentsched.model.value import value
from agentsched.sim.plan import Node, Plan

SLACK_S = 1e-6
"""An end that comes so many seconds after a call was made counts as before it: sums of times are rounded."""


@value
class ObservedCall:
    """One call.

    Attributes:
        at: second at which it was made.
        ended_at: second at which it was answered; None if nobody wrote it down.
        node: what it asked for, without what it waited for.
    """

    at: float
    ended_at: float | None
    node: Node


@dataclass(slots=True, kw_only=True)
class ObservedQuery:
    """Calls that belong together, in the order in which they were made.

    Attributes:
        arrived_at: second from which on it waits for its answer.
    """

    arrived_at: float
    workflow: str = "workflow"
    tenant: str | None = None
    priority: int = 0
    slo_s: float | None = None
    timeout_s: float | None = None
    calls: list[ObservedCall] = field(default_factory=list[ObservedCall])

    def plan(self) -> Plan:
        """Return what it will do when it is played.

        Where ends are known, a call waits for those that had been answered when it was made, but not for what these
        waited for themselves, and then for as long as it did after the last of them. Where they are not, it waits
        for all that were made at the time before its own.
        """
        timed = self.calls[0].ended_at is not None
        waits = self._observed() if timed else self._chained()
        return Plan(
            nodes=[
                Node(
                    step=call.node.step,
                    model=call.node.model,
                    after=after,
                    delay_s=delay_s,
                    input_tokens=call.node.input_tokens,
                    output_tokens=call.node.output_tokens,
                    estimated_tokens=call.node.estimated_tokens,
                    max_tokens=call.node.max_tokens,
                )
                for call, (after, delay_s) in zip(self.calls, waits, strict=True)
            ],
            workflow=self.workflow,
            tenant=self.tenant,
            priority=self.priority,
            slo_s=self.slo_s,
            timeout_s=self.timeout_s,
        )

    def _observed(self) -> list[tuple[tuple[int, ...], float]]:
        """Return what each call waited for, and for how many seconds after that."""
        calls, waits = self.calls, list[tuple[tuple[int, ...], float]]()
        ends = [call.ended_at if call.ended_at is not None else call.at for call in calls]
        running: list[tuple[float, int]] = []
        after: tuple[int, ...] = ()
        since, last = self.arrived_at, -1
        for number, call in enumerate(calls):
            ended: list[int] = []
            while running and running[0][0] <= call.at + SLACK_S:
                end, earlier = heappop(running)
                since, last = max(since, end), max(last, earlier)
                ended.append(earlier)
            if ended:  # what the latest call waited for need not be waited for again
                waited = calls[last].at + SLACK_S
                after = tuple(sorted(one for one in (*after, *ended) if one == last or ends[one] > waited))
            waits.append((after, max(call.at - since, 0.0)))
            heappush(running, (ends[number], number))
        return waits

    def _chained(self) -> list[tuple[tuple[int, ...], float]]:
        """Return, for each call, those that were made at the time before its own."""
        waits: list[tuple[tuple[int, ...], float]] = []
        after: tuple[int, ...] = ()
        together: list[int] = []
        for number, call in enumerate(self.calls):
            if together and call.at > self.calls[together[0]].at:
                after, together = tuple(together), []
            together.append(number)
            waits.append((after, 0.0))
        return waits
