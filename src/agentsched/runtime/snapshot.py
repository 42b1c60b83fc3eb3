"""What a scheduler holds, and why."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from agentsched.engine import Engine
from agentsched.engine.backends import BackendRow
from agentsched.engine.dispatch import kept_from
from agentsched.engine.rows import RequestRow

SHOWN = 100

NAMED = 5
"""Models of a backend that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queued call: where it stands and what it waits for.

    Attributes:
        backends: where it may go.
        home: the one of them where it is expected to be done first, its wait included; None while that is not known.
    """

    request_id: str
    model: str | None
    workflow: str | None
    step: str | None
    tenant: str | None
    priority: int
    waited_s: float
    backends: Sequence[str]
    home: str | None
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
        draining: whether it takes no more calls and is gone once those that run there have ended.
        tokens_committed: of the calls that run there: prompts as far as they are not cached, and expected answers.
        token_budget: how many may be committed to it; None while no bound is known.
        unread_tokens: of prompts released to it that have not shown a first token.
        kv_usage: share of its KV memory that is in use, 0 to 1, as the engine said last; None if it did not.
        heard_s: seconds since the engine said anything of its load; None if it never did.
        priority: whether it is told the priorities of calls; "refused" once it has refused one.
        failed: attempts that failed there, calls that were invalid in themselves aside.
        last_failure: what was wrong the last time; None if nothing ever was.
        prefill_s_per_token, decode_s_per_token: alone on it; None until measured.
    """

    name: str
    models: Sequence[str] | None
    draining: bool
    running: int
    max_concurrency: int | None
    tokens_committed: int
    token_budget: int | None
    unread_tokens: int
    kv_usage: float | None
    heard_s: float | None
    priority: Literal["off", "on", "refused"]
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
        load = (
            f"{self.running}{limit} running, {self.started} started{self._tokens}{self._heard}{self._refuses}"
        )
        return f"{self.name} ({'draining' if self.draining else models + more}): {load}{failed}"

    @property
    def _tokens(self) -> str:
        if not self.running:
            return ""
        budget = f" of {self.token_budget}" if self.token_budget is not None else ""
        unread = f", {self.unread_tokens} to read" if self.unread_tokens else ""
        return f", {self.tokens_committed}{budget} tokens committed{unread}"

    @property
    def _heard(self) -> str:
        if self.kv_usage is None or self.heard_s is None:
            return ""
        return f", KV memory {self.kv_usage:.0%} full {self.heard_s:.0f} s ago"

    @property
    def _refuses(self) -> str:
        return ", takes no priorities" if self.priority == "refused" else ""


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


def snapshot(engine: Engine, now: float, refusing: Collection[str]) -> Snapshot:
    """Read the engine's tables.

    Args:
        refusing: backends that refused to be told priorities.
    """
    first = sorted(engine.queue)[:SHOWN]
    return Snapshot(
        queued=len(engine.queue),
        running=len(engine.attempts),
        queries=len(engine.queries),
        backends=[
            _view(row, engine.directory.names(row.name), now, refuses=row.name in refusing)
            for row in engine.backends.values()
        ],
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


def _view(row: BackendRow, models: Collection[str] | None, now: float, *, refuses: bool) -> BackendView:
    failure, budget = row.last_failure, row.budget.tokens
    return BackendView(
        name=row.name,
        models=None if models is None else tuple(models),
        draining=row.draining,
        running=len(row.running),
        max_concurrency=row.spec.max_concurrency,
        tokens_committed=round(row.held_tokens),
        token_budget=round(budget) if isfinite(budget) else None,
        unread_tokens=row.unread_tokens,
        kv_usage=row.heard.kv_usage,
        heard_s=None if row.heard.signals is None else now - row.heard.at,
        priority=("refused" if refuses else "on") if row.spec.priority else "off",
        started=row.started,
        failed=row.failed,
        last_failure=None if failure is None else f"{failure.kind}: {failure.detail}",
        prefill_s_per_token=row.speed.prefill_s,
        decode_s_per_token=row.speed.decode_s,
    )


def _waiting(engine: Engine, row: RequestRow, now: float) -> Waiting:
    request = row.request
    return Waiting(
        request_id=request.id,
        model=request.model,
        workflow=request.workflow,
        step=request.step,
        tenant=request.tenant,
        priority=request.priority,
        waited_s=now - row.job.submitted_at,
        backends=row.choice,
        home=None if row.home is None else row.home.name,
        why=_why(engine, row, now),
    )


def _why(engine: Engine, row: RequestRow, now: float) -> str:
    """Say what keeps a call from starting."""
    if not row.choice:
        return "the backends are being asked what they serve"
    lacks: dict[str, list[str]] = {"no slot at": [], "no budget at": [], "rate limit of": []}
    ready: list[str] = []
    for name in row.choice:
        backend = engine.backends[name]
        if not backend.has_slot:
            lacks["no slot at"].append(name)
        elif engine.policy.release_control and not backend.has_room(backend.needs(row)[1]):
            lacks["no budget at"].append(name)
        elif backend.fits_at(now, row.tokens_wanted) > now:
            lacks["rate limit of"].append(name)
        else:
            ready.append(name)
    why = [f"{what} {', '.join(names)}" for what, names in lacks.items() if names]
    if ready:
        kept = kept_from(row, engine.queue, engine.requests, engine.policy)
        if any(name not in kept for name in ready):
            if row.home is None or row.home.name in ready:
                return "is looked at next"
            return f"waits for {row.home.name}, which is worth it"
        why.append(f"{', '.join(ready)} {'is' if len(ready) == 1 else 'are'} kept for calls before it")
    return "; ".join(why)


def _place(workflow: str | None, step: str | None) -> str:
    return "/".join(name for name in (workflow, step) if name is not None) or "outside of queries"
