"""What a scheduler holds, and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from agentsched.engine import Engine
from agentsched.engine.rows import BackendRow, RequestRow

SHOWN = 100

NAMED = 5
"""Models of a backend that a line names."""


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

    def __str__(self) -> str:
        return f"{self.request_id} ({_place(self.workflow, self.step)}), {self.waited_s:.2f} s: {self.why}"


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

    def __str__(self) -> str:
        place = _place(self.workflow, self.step)
        return f"{self.request_id} ({place}) at {self.backend}, {self.running_s:.2f} s, {self.output_tokens} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendView:
    """A backend: its load, its limit, what was learned of it.

    Attributes:
        models: what it serves, as the app calls it; None while that is not known, so that it is tried with any.
        failed: attempts that failed there, calls that were invalid in themselves aside.
        last_failure: what was wrong the last time; None if nothing ever was.
        prefill_s_per_token, decode_s_per_token: alone on it; None until measured.
    """

    name: str
    models: Sequence[str] | None
    running: int
    max_concurrency: int | None
    started: int
    failed: int
    last_failure: str | None
    prefill_s_per_token: float | None
    decode_s_per_token: float | None

    def __str__(self) -> str:
        limit = f" of {self.max_concurrency}" if self.max_concurrency is not None else ""
        failed = f", {self.failed} failed, last: {self.last_failure}" if self.failed else ""
        known = self.models or ()
        models = "any model" if self.models is None else ", ".join(known[:NAMED]) or "no model"
        more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
        load = f"{self.running}{limit} running, {self.started} started"
        return f"{self.name} ({models}{more}): {load}{failed}"


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

    def __str__(self) -> str:
        queries = "1 query" if self.queries == 1 else f"{self.queries} queries"
        lines = [f"{self.queued} queued, {self.running} running, {queries}"]
        lines += [str(backend) for backend in self.backends]
        lines += [f"waiting {call}" for call in self.waiting]
        lines += [f"running {call}" for call in self.calls]
        return "\n  ".join(lines)


def snapshot(engine: Engine, now: float) -> Snapshot:
    """Read the engine's tables."""
    first = sorted(engine.queue)[:SHOWN]
    return Snapshot(
        queued=len(engine.queue),
        running=len(engine.attempts),
        queries=len(engine.queries),
        backends=[_view(row, engine.directory.names(row.name)) for row in engine.backends.values()],
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


def _view(row: BackendRow, models: Collection[str] | None) -> BackendView:
    failure = row.last_failure
    return BackendView(
        name=row.name,
        models=None if models is None else tuple(models),
        running=len(row.running),
        max_concurrency=row.spec.max_concurrency,
        started=row.started,
        failed=row.failed,
        last_failure=None if failure is None else f"{failure.kind}: {failure.detail}",
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


def _place(workflow: str | None, step: str | None) -> str:
    return "/".join(name for name in (workflow, step) if name is not None) or "outside of queries"
