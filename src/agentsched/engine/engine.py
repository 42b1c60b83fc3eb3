"""The engine: `handle(event)` decides everything, synchronously and completely, and returns what to do.

What belongs here: the rules by which requests wait, start, fail over and end. What does not: preferences
(policy), estimates (predict), bytes (transport), time and tasks (the shells). Nothing here iterates a set.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from agentsched.engine.check import check
from agentsched.engine.commands import Abort, Command, ListModels, Resolve, Start, WakeAt
from agentsched.engine.deadlines import Deadlines
from agentsched.engine.directory import Directory
from agentsched.engine.dispatch import fitting_of, look, place, rank_of
from agentsched.engine.events import (
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Submitted,
    Woke,
)
from agentsched.engine.queries import Queries
from agentsched.engine.queue import Queue
from agentsched.engine.rows import AttemptRow, BackendRow, RequestRow, fleet_rows
from agentsched.engine.story import Entry, Stories, facts_of, facts_of_end
from agentsched.errors import InvariantBroken
from agentsched.model import Backend, FailureKind, Job, Outcome, Reason, Request, Usage
from agentsched.policy import Policy
from agentsched.predict import MeanLengths

MAX_QUEUED = 100_000
KEPT_STORIES = 1_000

_UNPRICED: Mapping[str, float] = MappingProxyType({})

MAX_ORPHANED = 3
"""How often a call whose task is cancelled under it goes back to the same backend."""


class Engine:
    """The state machine behind every shell.

    Args:
        backends: at least one; names and addresses are unique.
        max_queued: most calls that wait; one more is rejected.
        kept_stories: how many ended requests' stories are kept; none is told at all if 0.
        journal: called with every event before it is handled; replaying the events on a new engine with the
            same arguments gives the same commands.

    Raises:
        UsageError: for no backends or for two with the same name or address.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        policy: Policy,
        max_queued: int = MAX_QUEUED,
        kept_stories: int = KEPT_STORIES,
        journal: Callable[[Event], None] | None = None,
    ) -> None:
        self.policy = policy
        self.max_queued = max_queued
        self.now = 0.0
        self.closed = False
        self.backends = fleet_rows(backends)
        self.requests: dict[str, RequestRow] = {}
        self.attempts: dict[int, AttemptRow] = {}
        self.queries = Queries()
        self.queue = Queue()
        self.directory = Directory(backends)
        self.lengths = MeanLengths()
        self.stories = Stories(kept_stories)
        self.journal = journal
        self._deadlines = Deadlines()
        self.wake_at = inf
        self._blocked_until = inf
        self._settles_at = inf
        self._dispatchable = False
        self._arrivals = 0
        self._attempt_id = 0
        self.commands: list[Command] = []
        self._on: Mapping[type[Any], Callable[[Any], None]] = {
            Submitted: self._submitted,
            Progressed: self._progressed,
            Finished: self._finished,
            Failed: self._failed,
            Cancelled: self._cancelled,
            QueryOpened: self._query_opened,
            QueryClosed: self._query_closed,
            ModelsListed: self._models_listed,
            Woke: self._woke,
            Closed: self._close,
        }

    def handle(self, event: Event) -> list[Command]:
        """Take one event and return the commands it leads to, in order.

        If a policy raises, `commands` holds those decided before.
        """
        if self.journal is not None:
            self.journal(event)
        self.now = max(self.now, event.at)
        self.commands = []
        self._on[type(event)](event)
        if self.now >= self._deadlines.first or self.now >= self._settles_at:
            self._expire()
        if not self.queue.lanes:
            self._blocked_until = inf
        elif self._dispatchable or self.now >= self._blocked_until:
            self._dispatch()
        if self.queue.lanes and len(self.queue) > self.max_queued and isinstance(event, Submitted):
            self._bound_queue(event.request.id)
        wake_at = self.wake_at
        if self._deadlines.first < wake_at or self._blocked_until < wake_at or self._settles_at < wake_at:
            self._arm()
        return self.commands

    def story(self, request_id: str) -> tuple[Entry, ...]:
        """Return what happened to a live or recently ended request, oldest first; empty if unknown."""
        return self.stories.of(request_id)

    def check(self) -> None:
        """Raise `InvariantBroken` if the state contradicts itself."""
        check(self)

    # -- events ---------------------------------------------------------------------------------------

    def _submitted(self, event: Submitted) -> None:
        request = event.request
        if request.id in self.requests:
            raise InvariantBroken(f"request {request.id} was submitted twice", request_id=request.id)
        job = self._job(request)
        self._arrivals += 1
        rank = rank_of(self.policy, job)
        row = RequestRow(request, job, (-request.priority, rank, self._arrivals))
        self.requests[request.id] = row
        if self.stories.told:
            self.stories.begin(request.id, self.now, "submitted", facts_of(request, job, rank))
        query = self.queries.of(request.query) if request.query is not None else None
        if query is not None:
            query.calls += 1
        if self.closed:
            self._end(row, Outcome.REJECTED, Reason.CLOSED)
        elif query is not None and query.exhausted:
            self._end(row, Outcome.REJECTED, Reason.CALL_LIMIT)
        else:
            if request.deadline is not None:
                self._deadlines.push(request.deadline, request.id)
            self._enqueue(row)

    def _progressed(self, event: Progressed) -> None:
        attempt = self.attempts.get(event.attempt_id)
        if attempt is None:
            return
        attempt.tokens = max(attempt.tokens, event.output_tokens)
        if event.output_tokens == 0:
            self._note(attempt.request_id, "connected", connect_s=event.connect_s)
        elif attempt.first_at is None:
            attempt.backend.first_token(self.now, attempt, event.output_tokens, event.connect_s)
            self._note(attempt.request_id, "first token", connect_s=event.connect_s)

    def _finished(self, event: Finished) -> None:
        attempt = self.attempts.get(event.attempt_id)
        if attempt is None:
            return
        row, usage = self.requests[attempt.request_id], event.usage
        written = attempt.backend.finished(self.now, attempt, usage, learn=event.learn)
        if written > 0:
            cap = row.request.max_tokens  # a backend's count may be wrong; a caller's cap is not
            self.lengths.observe(_history(row.request), written if cap is None else min(written, cap))
        self._release(row, attempt)
        self._end(row, Outcome.COMPLETED, usage=usage)

    def _failed(self, event: Failed) -> None:
        attempt = self.attempts.get(event.attempt_id)
        if attempt is None:
            return
        failure, backend = event.failure, attempt.backend
        row = self.requests[attempt.request_id]
        self._note(
            attempt.request_id,
            "attempt failed",
            backend=backend.name,
            why=str(failure.kind),
            status=failure.status,
        )
        if not failure.sent:
            backend.refund(attempt)
        self._release(row, attempt)
        row.last_failure = failure
        if failure.kind is FailureKind.UNKNOWN_MODEL and row.request.model is not None:
            self.directory.refuse(backend.name, row.request.model, self.now)
        if failure.kind is FailureKind.OWNER_GONE and row.orphaned < MAX_ORPHANED:
            row.orphaned += 1
        else:
            row.tried = (*row.tried, backend.name)
            if failure.of_the_backend:
                backend.failed += 1
                backend.last_failure = failure
        if failure.elsewhere:
            self._enqueue(row)
        else:
            self._end(row, Outcome.FAILED)

    def _cancelled(self, event: Cancelled) -> None:
        row = self.requests.get(event.request_id)
        if row is not None:
            self._stop(row)
            self._end(row, Outcome.CANCELLED, event.reason)

    def _models_listed(self, event: ModelsListed) -> None:
        if event.answered:
            self.directory.listed(event.backend, event.models, self.now)
        else:
            self.directory.unasked(event.backend)
        self._requeue()

    def _requeue(self) -> None:
        """Give those that wait their choice of backends anew."""
        if self.directory.settling(self.now):
            self._settles_at = self.directory.settles_at
            return
        self._settles_at = inf
        for key, row in sorted((key, self.requests[request_id]) for key, request_id in self.queue):
            if not row.choice or self.directory.choice(row.request.model, row.tried, self.now) != row.choice:
                self.queue.remove(row.choice, key)
                self._dispatchable = True  # for whoever was behind it
                self._enqueue(row, note=False)

    def _query_opened(self, event: QueryOpened) -> None:
        self.queries.open(event.query)

    def _query_closed(self, event: QueryClosed) -> None:
        self.queries.close(event.query_id)

    def _woke(self, _: Woke) -> None:
        self.wake_at = inf

    def _close(self, _: Closed) -> None:
        self.closed = True
        for row in list(self.requests.values()):
            self._stop(row)
            self._end(row, Outcome.CANCELLED if row.attempts else Outcome.REJECTED, Reason.CLOSED)

    # -- transitions ----------------------------------------------------------------------------------

    def _enqueue(self, row: RequestRow, *, note: bool = True) -> None:
        """Put a request into the lane of the backends it may go to, or end it if there is none."""
        model = row.request.model
        choice = self.directory.choice(model, row.tried, self.now)
        if self.directory.asks:
            asked = self.directory.to_ask(self.now, missing=not choice and not row.tried)
            self.commands += map(ListModels, asked)
            if model is not None and self.directory.settling(self.now):
                choice, self._settles_at = (), self.directory.settles_at
        if choice or self.directory.pending:
            row.choice = choice
            if note and self.stories.told:
                self._note(row.request.id, "queued", ahead=len(self.queue))
            self._admit(row)
        elif row.last_failure is not None:
            self._end(row, Outcome.FAILED)
        else:
            self._end(row, Outcome.REJECTED, Reason.UNKNOWN_MODEL)

    def _admit(self, row: RequestRow) -> None:
        """Start a request that nobody is ahead of if it fits somewhere, else let it wait."""
        backends = self.backends
        with_slot = [backend for name in row.choice if (backend := backends[name]).has_slot]
        if with_slot:
            self._dispatchable = True
            if not self.queue.lanes and self.now < self._deadlines.first:
                fitting, _ = fitting_of(row, with_slot, self.now)
                if fitting:
                    self._start_or_wait(row, fitting)
                    return
        self.queue.push(row.choice, row.key, row.request.id)

    def _start_or_wait(self, row: RequestRow, fitting: Sequence[BackendRow]) -> None:
        """Start a request that is not in the queue; if a policy is interrupted, it waits."""
        try:
            backend, prices = self._place(row, fitting)
        except BaseException:
            self.queue.push(row.choice, row.key, row.request.id)
            raise
        self._start(row, backend, prices)

    def _dispatch(self) -> None:
        """Start calls, best-ranked first, while some backend that one of them may go to has room."""
        self._blocked_until = inf
        while self.queue.lanes:
            row, fitting, blocked_until = look(self.queue, self.requests, self.backends, self.now)
            if row is None:
                self._blocked_until = blocked_until
                break
            backend, prices = self._place(row, fitting)
            self.queue.remove(row.choice, row.key)
            self._start(row, backend, prices)
        self._dispatchable = False  # only now: a policy may be interrupted

    def _place(
        self, row: RequestRow, fitting: Sequence[BackendRow]
    ) -> tuple[BackendRow, Mapping[str, float]]:
        """Return the best of the backends that a request fits, and what each would cost."""
        if len(fitting) == 1 and not self.stories.told:
            return fitting[0], _UNPRICED
        return place(self.policy, row.job, fitting, self.backends)

    def _start(self, row: RequestRow, backend: BackendRow, prices: Mapping[str, float]) -> None:
        self._attempt_id += 1
        attempt = backend.admit(self.now, self._attempt_id, row)
        self.attempts[attempt.id] = attempt
        row.attempt = attempt
        row.attempts += 1
        row.last_backend = backend.name
        if self.stories.told:
            self._note(row.request.id, "started", backend=backend.name, expected_finish_s=prices)
        self.commands.append(Start(attempt.id, row.request.id, backend.name))

    def _release(self, row: RequestRow, attempt: AttemptRow) -> None:
        """Free the attempt's room."""
        attempt.backend.release(self.now, attempt)
        self._dispatchable = True
        del self.attempts[attempt.id]
        row.attempt = None

    def _stop(self, row: RequestRow) -> None:
        """Take a request off its backend or out of the queue."""
        if row.attempt is not None:
            self.commands.append(Abort(row.attempt.id))
            self._release(row, row.attempt)
        else:
            self.queue.remove(row.choice, row.key)
            self._dispatchable = True

    def _end(
        self, row: RequestRow, outcome: Outcome, reason: Reason | None = None, usage: Usage | None = None
    ) -> None:
        """End a request that neither runs nor waits."""
        request = row.request
        del self.requests[request.id]
        if self._deadlines.first < inf:
            self._deadlines.trim(self.requests)
        query = None if row.attempts else self.queries.of(request.query)
        if query is not None:
            query.calls -= 1
        if self.stories.told:
            self.stories.end(request.id, self.now, str(outcome), facts_of_end(reason, usage))
        failure = row.last_failure if outcome is Outcome.FAILED else None
        self.commands.append(Resolve(request.id, outcome, failure, row.last_backend, row.attempts, reason))

    def _bound_queue(self, request_id: str) -> None:
        """Reject the newcomer if it has to wait and too many wait already."""
        row = self.requests.get(request_id)
        if row is not None and row.attempt is None and len(self.queue) > self.max_queued:
            self._stop(row)
            self._end(row, Outcome.REJECTED, Reason.QUEUE_FULL)

    # -- time -----------------------------------------------------------------------------------------

    def _expire(self) -> None:
        """End what has passed its deadline, and wait no longer for backends to say what they serve."""
        if self.now >= self._deadlines.first:
            for request_id in self._deadlines.due(self.now, self.requests):
                row = self.requests[request_id]
                self._stop(row)
                self._end(row, Outcome.EXPIRED)
        if self.now >= self._settles_at:
            self._requeue()

    def _arm(self) -> None:
        """Ask to be woken at the next deadline, when a rate limit allows a start, when the fleet is known."""
        wanted = min(self._deadlines.next(self.requests), self._blocked_until, self._settles_at)
        if wanted < self.wake_at:
            self.wake_at = wanted
            self.commands.append(WakeAt(wanted))

    def _job(self, request: Request) -> Job:
        return Job(request, self.now, self.lengths.expected(_history(request), request.max_tokens))

    def _note(self, request_id: str, what: str, **facts: object) -> None:
        if self.stories.told:
            self.stories.note(request_id, self.now, what, facts)


def _history(request: Request) -> tuple[str | None, str | None, str | None]:
    return (request.model, request.workflow, request.step)
