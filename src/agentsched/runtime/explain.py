"""Why a call went the way it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentsched.engine.story import Entry
from agentsched.model import Outcome

_OUTCOMES = frozenset(map(str, Outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One call's story.

    Attributes:
        outcome: how it ended; None while it lives.
        backend: where it ran last; None if nowhere.
        attempts: how often it was sent.
        sdk_retry: which try of the app's SDK it was, 0 for the first; each is a call with a story of its own.
        queue_s: seconds spent waiting in the scheduler, all attempts together.
        connect_s: seconds spent opening connections.
        first_token_s: seconds from the last start (less connecting) to the first token; None if none came, or
            the call waits again since.
        decode_s: seconds from that first token to the end; None if it did not get there.
        expected_output_tokens: what the past made of it.
        expected_s, p90_s: seconds that the last start was expected to take until the answer's end, and that nine in ten
            such take at most; None while the backend's speed, or how far it is to be trusted, is not known.
        cached_tokens: of its prompt, that the backend was expected to have read already at the last start; None if
            none, or if it never started.
        kept_tokens: of its answer, that had come before the last start; None if none had.
        expected_cost_s: price in seconds of each backend that had room at the last start; the cheapest won.
        entries: everything, oldest first.
    """

    request_id: str
    outcome: str | None
    backend: str | None
    attempts: int
    sdk_retry: int
    queue_s: float
    connect_s: float
    first_token_s: float | None
    decode_s: float | None
    expected_output_tokens: float
    expected_s: float | None
    p90_s: float | None
    cached_tokens: int | None
    kept_tokens: int | None
    expected_cost_s: Mapping[str, float]
    entries: Sequence[Entry]

    def __str__(self) -> str:
        spans = {
            "queue": self.queue_s,
            "connect": self.connect_s,
            "first token": self.first_token_s,
            "decode": self.decode_s,
        }
        shown = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in spans.items() if seconds is not None)
        where = f" at {self.backend}" if self.backend is not None else ""
        lines = "".join(f"\n  {entry.since(self.entries[0].at)}" for entry in self.entries)
        return f"{self.request_id}: {self.outcome or 'live'}{where}; {shown}{lines}"


def explain(request_id: str, entries: Sequence[Entry], now: float) -> Explanation:
    """Read a story."""
    outcome = entries[-1].what if entries[-1].what in _OUTCOMES else None
    queue_s = connect_s = connecting_s = 0.0
    waits_since: float | None = None
    started_at: float | None = None
    first_at: float | None = None
    backend: str | None = None
    attempts = 0
    start: Mapping[str, Any] = {}
    for entry in entries:
        facts: Mapping[str, Any] = entry.facts
        match entry.what:
            case "queued":
                waits_since, started_at, first_at = entry.at, None, None
            case "started":
                queue_s += entry.at - (waits_since if waits_since is not None else entry.at)
                waits_since, started_at, connecting_s = None, entry.at, 0.0
                attempts += 1
                backend = str(facts["backend"])
                start = facts
            case "connected":
                connecting_s = facts["connect_s"]
                connect_s += connecting_s
            case "first token":
                first_at = entry.at
            case _:
                pass
    ended_at = entries[-1].at if outcome is not None else now
    if waits_since is not None:
        queue_s += ended_at - waits_since
    reading = None
    if first_at is not None and started_at is not None:
        reading = first_at - started_at - connecting_s
    return Explanation(
        request_id=request_id,
        outcome=outcome,
        backend=backend,
        attempts=attempts,
        sdk_retry=int(str(entries[0].facts.get("sdk_retry") or 0)),
        queue_s=queue_s,
        connect_s=connect_s,
        first_token_s=reading,
        decode_s=ended_at - first_at if first_at is not None and outcome is not None else None,
        expected_output_tokens=float(str(entries[0].facts["expected_output_tokens"])),
        expected_s=start.get("expected_s"),
        p90_s=start.get("p90_s"),
        cached_tokens=start.get("cached_tokens"),
        kept_tokens=start.get("kept_tokens"),
        expected_cost_s=start.get("expected_cost_s", {}),
        entries=tuple(entries),
    )
