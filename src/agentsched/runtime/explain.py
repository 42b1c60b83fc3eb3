"""What people ask a running scheduler: what it holds, and why a call went the way it did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentsched.engine import Engine
from agentsched.engine.rows import BackendRow, RequestRow
from agentsched.engine.story import Entry
from agentsched.model import Outcome

SHOWN = 100

_OUTCOMES = frozenset(map(str, Outcome))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One call's story.

    Attributes:
        outcome: how it ended; None while it lives.
        backend: where it ran last; None if nowhere.
        attempts: how often it was sent.
        queue_s: seconds spent waiting in the scheduler, all attempts together.
        connect_s: seconds spent opening connections.
        first_token_s: seconds from the last start (less connecting) to the first token; None if none came.
        decode_s: seconds from the first token to the end; None if it did not get there.
        expected_output_tokens: what the past made of it.
        expected_finish_s: price in seconds of each backend that had room at the last start; the cheapest won.
        entries: everything, oldest first.
    """

    request_id: str
    outcome: str | None
    backend: str | None
    attempts: int
    queue_s: float
    connect_s: float
    first_token_s: float | None
    decode_s: float | None
    expected_output_tokens: float
    expected_finish_s: Mapping[str, float]
    entries: Sequence[Entry]

    def __str__(self) -> str:
        lines = "\n  ".join(map(str, self.entries))
        return f"{self.request_id}: {self.outcome or 'live'}\n  {lines}"


def explain(request_id: str, entries: Sequence[Entry], now: float) -> Explanation:
    """Read a story."""
    outcome = entries[-1].what if entries[-1].what in _OUTCOMES else None
    queue_s = connect_s = 0.0
    waits_since: float | None = None
    started_at: float | None = None
    first_at: float | None = None
    backend: str | None = None
    attempts = 0
    prices: Mapping[str, float] = {}
    for entry in entries:
        facts: Mapping[str, Any] = entry.facts
        match entry.what:
            case "queued":
                waits_since = entry.at
            case "started":
                queue_s += entry.at - (waits_since if waits_since is not None else entry.at)
                waits_since, started_at, first_at = None, entry.at, None
                attempts += 1
                backend = str(facts["backend"])
                prices = facts["expected_finish_s"]
            case "connected":
                connect_s += facts["connect_s"]
            case "first token":
                first_at = entry.at
            case _:
                pass
    ended_at = entries[-1].at if outcome is not None else now
    if waits_since is not None:
        queue_s += ended_at - waits_since
    reading = first_at - started_at - connect_s if first_at is not None and started_at is not None else None
    return Explanation(
        request_id=request_id,
        outcome=outcome,
        backend=backend,
        attempts=attempts,
        queue_s=queue_s,
        connect_s=connect_s,
        first_token_s=reading,
        decode_s=ended_at - first_at if first_at is not None and outcome is not None else None,
        expected_output_tokens=float(str(entries[0].facts["expected_output_tokens"])),
        expected_finish_s=prices,
        entries=tuple(entries),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued call: where it stands and what it waits for."""

    request_id: str
    model: str | None
    workflow: str | None
    step: str | None
    tenant: str | None
    priority: int
    waited_s: float
    backends: Sequence[str]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A call at a backend."""

    request_id: str
    model: str | None
    workflow: str | None
    step: str | None
    tenant: str | None
    backend: str
    running_s: float
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendView:
    """A backend: its load, its limit, what was learned of it.

    Attributes:
        prefill_s_per_token, decode_s_per_token: alone on it; None until measured.
    """

    name: str
    running: int
    max_concurrency: int | None
    started: int
    prefill_s_per_token: float | None
    decode_s_per_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a scheduler holds.

    Attributes:
        queued: number of waiting calls.
        waiting: the first 100 of them, in the order in which they will be served.
        queries: open queries.
    """

    queued: int
    running: int
    queries: int
    backends: Sequence[BackendView]
    waiting: Sequence[Waiting]
    calls: Sequence[Running]


def snapshot(engine: Engine, now: float) -> Snapshot:
    """Read the engine's tables."""
    first = sorted(engine.queue)[:SHOWN]
    return Snapshot(
        queued=len(engine.queue),
        running=len(engine.attempts),
        queries=len(engine.queries),
        backends=[_view(row) for row in engine.backends.values()],
        waiting=[_waiting(engine, engine.requests[request_id], now) for _, request_id in first],
        calls=[
            Running(
                request_id=attempt.request_id,
                model=(request := engine.requests[attempt.request_id].request).model,
                workflow=request.workflow,
                step=request.step,
                tenant=request.tenant,
                backend=attempt.backend.name,
                running_s=now - attempt.started_at,
                output_tokens=attempt.tokens,
            )
            for attempt in list(engine.attempts.values())[:SHOWN]
        ],
    )


def _view(row: BackendRow) -> BackendView:
    return BackendView(
        name=row.name,
        running=len(row.running),
        max_concurrency=row.spec.max_concurrency,
        started=row.started,
        prefill_s_per_token=row.speed.prefill_s,
        decode_s_per_token=row.speed.decode_s,
    )


def _waiting(engine: Engine, row: RequestRow, now: float) -> Waiting:
    request = row.request
    full = [name for name in row.choice if not engine.backends[name].has_slot]
    if not row.choice:
        why = "the backends are being asked what they serve"
    elif len(full) == len(row.choice):
        why = f"no room at {', '.join(full)}"
    else:
        limited = [name for name in row.choice if name not in full]
        why = f"rate limit of {', '.join(limited)}"
    return Waiting(
        request_id=request.id,
        model=request.model,
        workflow=request.workflow,
        step=request.step,
        tenant=request.tenant,
        priority=request.priority,
        waited_s=now - row.job.submitted_at,
        backends=row.choice,
        why=why,
    )
