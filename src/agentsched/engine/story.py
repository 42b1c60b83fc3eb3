"""What happened to a request, in order: for people, errors and tests."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import isnan
from typing import cast

from agentsched.engine.placement import Offer
from agentsched.engine.rows import AttemptRow
from agentsched.model import Job, Reason, Request, Usage
from agentsched.model.value import record


@record
class Entry:
    """One line of a story.

    Attributes:
        at: engine seconds.
        what: one of "submitted", "queued", "started", "connected", "first token", "attempt failed",
            or the outcome.
        facts: numbers and names behind it; never a body or a secret.
    """

    at: float
    what: str
    facts: Mapping[str, object]

    def __str__(self) -> str:
        return self.since(0.0)

    def since(self, start: float) -> str:
        """Tell it with the time counted from `start`."""
        facts = ", ".join(f"{name}={_short(fact)}" for name, fact in self.facts.items() if fact is not None)
        return f"{self.at - start:.3f} {self.what}" + (f" ({facts})" if facts else "")


_Line = tuple[float, str, Mapping[str, object]]
"""What an entry is made of: few are ever read, so few are ever made."""


class Stories:
    """Stories of all live requests and of the `keep` that ended last.

    Attributes:
        told: whether there are any; where nobody keeps them, none need be told.
    """

    def __init__(self, keep: int) -> None:
        self.told = keep > 0
        self._keep = keep
        self._live: dict[str, list[_Line]] = {}
        self._ended: OrderedDict[str, list[_Line]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live) + len(self._ended)

    def begin(self, request_id: str, at: float, what: str, facts: Mapping[str, object]) -> None:
        self._live[request_id] = [(at, what, facts)]

    def note(self, request_id: str, at: float, what: str, facts: Mapping[str, object]) -> None:
        self._live[request_id].append((at, what, facts))

    def end(self, request_id: str, at: float, what: str, facts: Mapping[str, object]) -> None:
        story = self._live.pop(request_id)
        story.append((at, what, facts))
        self._ended[request_id] = story
        if len(self._ended) > self._keep:
            self._ended.popitem(last=False)

    def of(self, request_id: str) -> tuple[Entry, ...]:
        """Return the story; empty if the request is unknown or forgotten."""
        lines = self._live.get(request_id) or self._ended.get(request_id) or ()
        return tuple(Entry(*line) for line in lines)


def facts_of(request: Request, job: Job, rank: float) -> Mapping[str, object]:
    """What a story begins with."""
    return {
        "model": request.model,
        "workflow": request.workflow,
        "step": request.step,
        "input_tokens": request.input_tokens,
        "expected_output_tokens": job.output_tokens,
        "priority": request.priority,
        "rank": rank,
        "sdk_retry": request.sdk_retry or None,
    }


def facts_of_start(attempt: AttemptRow, offers: Sequence[Offer], kept: int) -> Mapping[str, object]:
    """What is told of a start: where, how long it should take, and what each backend that was priced would cost."""
    factor = attempt.backend.calibration.factor(0.9)
    return {
        "backend": attempt.backend.name,
        "cached_tokens": attempt.cached_tokens or None,
        "kept_tokens": kept or None,
        "expected_s": attempt.expected_s or None,
        "p90_s": attempt.expected_s * factor if factor is not None and attempt.expected_s else None,
        "expected_cost_s": {offer.backend.name: offer.cost for offer in offers if not isnan(offer.cost)},
    }


def facts_of_end(reason: Reason | None, usage: Usage | None) -> Mapping[str, object]:
    """What a story ends with."""
    if usage is not None:
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
        }
    return {} if reason is None else {"reason": str(reason)}


def _short(fact: object) -> str:
    if isinstance(fact, Mapping):
        pairs = cast("Mapping[str, object]", fact).items()
        return "{" + ", ".join(f"{name}: {_short(value)}" for name, value in pairs) + "}"
    return f"{fact:.3g}" if isinstance(fact, float) else str(fact)
