"""The engine: `handle(event)` decides everything, synchronously and completely, and returns what to do.

What belongs here: the rules by which requests wait, start, fail over and end. What does not: preferences
(policy), estimates (predict), bytes (transport), time and tasks (the shells). Nothing here iterates a set.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from agentsched.engine.backends import BackendRow
from agentsched.engine.check import check
from agentsched.engine.commands import Abort, Command, Forget, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.deadlines import Deadlines
from agentsched.engine.dispatch import rank_of
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Signalled,
    Submitted,
    Woke,
)
from agentsched.engine.fleet import Fleet, removal
from agentsched.engine.placement import Offer
from agentsched.engine.queries import Queries
from agentsched.engine.queue import Choice
from agentsched.engine.rows import AttemptRow, RequestRow
from agentsched.engine.story import Entry, Stories, facts_of, facts_of_end, facts_of_start
from agentsched.engine.waiting import Waiting
from agentsched.errors import InvariantBroken
from agentsched.model import Backend, FailureKind, Outcome, Reason, Usage
from agentsched.policy import Policy
from agentsched.predict import Learned, Past, Profile

MAX_QUEUED = 100_000
KEPT_STORIES = 1_000


class Engine:
    """The state machine behind every shell.

    Args:
        backends: at least one; names and addresses are unique.
        max_queued: most calls that wait; one more is rejected.
        profile: what an earlier run has learned.
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
        profile: Profile | None = None,
        kept_stories: int = KEPT_STORIES,
        journal: Callable[[Event], None] | None = None,
    ) -> None:
        self.policy, self.max_queued = policy, max_queued
        self.now, self.closed = 0.0, False
        self.fleet = Fleet(backends, profile)
        self.backends, self.directory = self.fleet.rows, self.fleet.directory
        self.requests: dict[str, RequestRow] = {}
        self.attempts: dict[int, AttemptRow] = {}
        self.queries = Queries()
        self.past = Past(profile)
        self.stories = Stories(kept_stories)
        self.journal = journal
        self._waiting = Waiting(policy, self.requests, self.backends, told=self.stories.told)
        self.queue = self._waiting.queue
        self._deadlines = Deadlines()
        self.wake_at = self._settles_at = inf
        self._arrivals = self._attempt_id = 0
        self.commands: list[Command] = []
        self._on: Mapping[type[Any], Callable[[Any], None]] = {
            Submitted: self._submitted,
            Progressed: self._progressed,
            Finished: self._finished,
            Failed: self._failed,
            Cancelled: self._cancelled,
            QueryOpened: lambda event: self.queries.open(event.query),
            QueryClosed: lambda event: self.queries.close(event.query_id),
            BackendJoined: self._backend_joined,
            BackendLeft: self._backend_left,
            ModelsListed: self._models_listed,
            Signalled: self._signalled,
            Woke: self._woke,
            Closed: self._close,
        }

    def handle(self, event: Event) -> list[Command]:
        """Take one event and return the commands it leads to, in order.

        If a policy raises, `commands` holds those decided before.
        """
        if self.journal is not None:
            self.journal(event)
        self.now = now = event.at if event.at > self.now else self.now  # noqa: FURB136 - each call comes by twice
        self.commands = []
        self._on[type(event)](event)
        if now >= self._deadlines.first or now >= self._settles_at:
            self._expire()
        waiting, queue = self._waiting, self.queue
        if queue.lanes:
            if waiting.changed or now >= waiting.blocked_until:
                self._start_waiting()
            if queue.size > self.max_queued and isinstance(event, Submitted):
                self._bound_queue(event.request.id)
        wake_at = self.wake_at
        if self._deadlines.first < wake_at or waiting.blocked_until < wake_at or self._settles_at < wake_at:
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
        job = self.past.job(request, self.now)
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
        if (attempt := self.attempts.get(event.attempt_id)) is None:
            return
        backend = attempt.backend
        backend.progressed(attempt, event.output_tokens)
        if event.output_tokens == 0:
            self._note(attempt.request_id, "connected", connect_s=event.connect_s)
        elif attempt.first_at is None:
            grown = backend.first_token(self.now, attempt, event.output_tokens, event.connect_s)
            self._waiting.changed |= grown
            if backend.heard.look_due(self.now, len(backend.running)):
                self.commands.append(LookAt(backend.name))
            self._note(attempt.request_id, "first token", connect_s=event.connect_s)

    def _finished(self, event: Finished) -> None:
        attempt = self.attempts.get(event.attempt_id)
        if attempt is None:
            return
        row, usage = self.requests[attempt.request_id], event.usage
        written = attempt.backend.finished(self.now, attempt, usage, learn=event.learn)
        self.past.learn(row.request, usage.input_tokens, written, kept=event.kept_tokens)
        self._release(row, attempt)
        self._end(row, Outcome.COMPLETED, usage=usage)

    def _failed(self, event: Failed) -> None:
        attempt = self.attempts.get(event.attempt_id)
        if attempt is None:
            return
        row, failure, backend = self.requests[attempt.request_id], event.failure, attempt.backend
        facts = {"backend": backend.name, "why": str(failure.kind), "status": failure.status}
        self._note(attempt.request_id, "attempt failed", **facts)
        if not failure.sent:
            backend.refund(attempt)
        self._release(row, attempt)
        row.failed(failure, backend.name if backend.name in self.backends else None)
        if failure.kind is FailureKind.UNKNOWN_MODEL and row.request.model is not None:
            self.directory.refuse(backend.name, row.request.model, self.now)
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

    def _signalled(self, event: Signalled) -> None:
        backend = self.backends.get(event.backend)
        if backend is not None and backend.hear(self.now, event.signals):
            self._waiting.changed = True

    def _backend_joined(self, event: BackendJoined) -> None:
        self._join(event.backend, event.learned)
        self._choose_anew()

    def _backend_left(self, event: BackendLeft) -> None:
        backend = self.fleet.leave(event.backend, event.successor, drain=event.drain)
        moved: list[RequestRow] = []
        for attempt in () if event.drain else tuple(backend.running.values()):
            row = self.requests[attempt.request_id]
            row.removed(failure := removal(seen=attempt.id in event.seen))
            self._note(row.request.id, "attempt failed", backend=backend.name, why=str(FailureKind.REMOVED))
            self._stop(row)
            if failure.elsewhere:
                row.keep(row.kept + attempt.tokens)
                moved.append(row)
            else:
                self._end(row, Outcome.FAILED)
        for attempt in backend.running.values():
            self._note(attempt.request_id, "backend drains", backend=backend.name)
        if not backend.running and self.backends.get(backend.name) is backend:
            self._forget(backend)
        if event.successor is not None:
            self._join(event.successor, event.learned)
        self._choose_anew(moved)

    def _join(self, backend: Backend, learned: Learned | None) -> None:
        self.fleet.join(backend, learned)
        if self.queue.lanes:  # else it is asked at first use
            self._ask(missing=False)

    def _ask(self, *, missing: bool) -> None:
        self.commands += map(ListModels, self.directory.to_ask(self.now, missing=missing))

    def _forget(self, backend: BackendRow) -> None:
        self.fleet.forget(backend, self.requests.values())
        self.commands.append(Forget(backend.name))

    def _requeue(self) -> None:
        """Give those that wait their choice anew, unless the first answers of the fleet are still to come."""
        if self.directory.settling(self.now):
            self._settles_at = self.directory.settles_at
        else:
            self._settles_at = inf
            self._choose_anew()

    def _choose_anew(self, moved: Sequence[RequestRow] = ()) -> None:
        """Give those that wait, and those that were `moved` off their backend, their choice of backends.

        The policy is asked last: it may be interrupted.
        """
        rows = sorted((*moved, *self._waiting.take_out(self._choice)), key=lambda row: row.key)
        self._waiting.put([row for row in rows if self._choose(row)], self.now)
        for row in moved:
            if row.request.id in self.requests:
                self._note(row.request.id, "queued", ahead=len(self.queue) - 1)

    def _woke(self, _: Woke) -> None:
        self.wake_at = inf

    def _close(self, _: Closed) -> None:
        self.closed = True
        for row in list(self.requests.values()):
            self._stop(row)
            self._end(row, Outcome.CANCELLED if row.attempts else Outcome.REJECTED, Reason.CLOSED)

    # -- transitions ----------------------------------------------------------------------------------

    def _enqueue(self, row: RequestRow) -> None:
        """Put a request into the lane of the backends it may go to, or end it if there is none."""
        if self._choose(row):
            if self.stories.told:
                self._note(row.request.id, "queued", ahead=len(self.queue))
            found = self._waiting.admit(row, self.now, in_turn=self.now < self._deadlines.first)
            if found is not None:
                offer, offers = found
                self._start(row, offer, offers)

    def _choice(self, row: RequestRow) -> Choice:
        return self.directory.choice(row.request.model, row.tried, self.now)

    def _choose(self, row: RequestRow) -> bool:
        """Choose the backends that a request may go to; if there is no hope of any, end it and return False."""
        directory = self.directory
        choice = directory.choice(row.request.model, row.tried, self.now)
        if directory.asks:
            self._ask(missing=not choice and not row.tried)
            if row.request.model is not None and directory.settling(self.now):
                choice, self._settles_at = (), directory.settles_at
        if choice or directory.pending:
            row.choice = choice
            return True
        if row.last_failure is not None:
            self._end(row, Outcome.FAILED)
        else:
            self._end(row, Outcome.REJECTED, Reason.UNKNOWN_MODEL if len(directory) else Reason.NO_BACKEND)
        return False

    def _start_waiting(self) -> None:
        """Start calls, best-ranked first, while some backend that one of them may go to has room."""
        while (found := self._waiting.next(self.now)) is not None:
            row, offer, offers = found
            self._start(row, offer, offers)

    def _start(self, row: RequestRow, offer: Offer, offers: Sequence[Offer]) -> None:
        self._attempt_id = attempt_id = self._attempt_id + 1
        backend = offer.backend
        attempt = backend.admit(self.now, attempt_id, row, offer.cached_tokens, offer.tokens)
        row.attempt = self.attempts[attempt_id] = attempt
        row.attempts += 1
        row.last_backend = backend.name
        if self.stories.told:
            self._note(row.request.id, "started", **facts_of_start(attempt, offers, row.kept))
        self.commands.append(Start(attempt_id, row.request.id, backend.name))

    def _release(self, row: RequestRow, attempt: AttemptRow) -> None:
        """Free the attempt's room."""
        attempt.backend.release(self.now, attempt)
        self._waiting.changed = True
        del self.attempts[attempt.id]
        row.attempt = None
        if attempt.backend.draining and not attempt.backend.running:
            self._forget(attempt.backend)

    def _stop(self, row: RequestRow) -> None:
        """Take a request off its backend or out of the queue."""
        if row.attempt is not None:
            self.commands.append(Abort(row.attempt.id))
            self._release(row, row.attempt)
        else:
            self._waiting.remove(row)

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
        failure = row.last_failure if row.last_failure and outcome is Outcome.FAILED else None
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
        wanted = min(self._deadlines.next(self.requests), self._waiting.blocked_until, self._settles_at)
        if wanted < self.wake_at:
            self.wake_at = wanted
            self.commands.append(WakeAt(wanted))

    def _note(self, request_id: str, what: str, **facts: object) -> None:
        if self.stories.told:
            self.stories.note(request_id, self.now, what, facts)
