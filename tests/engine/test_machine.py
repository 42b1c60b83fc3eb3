"""Any events in any order over any fleet: invariants hold, and the commands are what the rules ask for."""

from math import inf
from typing import Any

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from agentsched.engine import Engine
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
from agentsched.model import Backend, Failure, FailureKind, Query, Reason, Request, Usage
from agentsched.policy import Policy, arrival
from tests.engine.shadow import Shadow
from tests.strategies import MODELS, fleets, maybe, model_lists

KEPT_STORIES = 5
EARLY_QUERY, LATE_QUERY = "q0", "q1"

waits = st.sampled_from([0.0, 0.0, 0.0, 0.25, 0.25, 1.0, 1.0, 7.0, 31.0, 61.0, -3.0])
"""Seconds between two events: within a minute, past the life of a list, past a minute, before the last one."""

which = st.integers(0, 1_000)
"""Picks one of however many there are."""


def _shortest(request: Request) -> float:
    return request.input_tokens


def _as_they_came(_: Request) -> float:
    return 0.0


class EngineMachine(RuleBasedStateMachine):
    """One engine and its shadow."""

    @initialize(
        fleet=fleets(),
        max_queued=st.sampled_from([0, 2, 1_000]),
        shortest_first=st.booleans(),
        max_calls=maybe(st.integers(1, 3)),
    )
    def build(
        self, fleet: list[Backend], max_queued: int, shortest_first: bool, max_calls: int | None
    ) -> None:
        rank = (lambda job: job.request.input_tokens) if shortest_first else arrival
        policy = Policy(rank=rank, release_control=False, patience=0)
        self.engine = Engine(fleet, policy=policy, max_queued=max_queued, kept_stories=KEPT_STORIES)
        self.shadow = Shadow(fleet, max_queued, rank=_shortest if shortest_first else _as_they_came)
        self.opened: set[str] = set()
        self.open_query(EARLY_QUERY, max_calls)

    def feed(self, event: Event) -> None:
        commands = self.engine.handle(event)
        self.engine.check()
        self.shadow.take(event, commands)
        assert self.engine.requests.keys() == {call.request.id for call in self.shadow.live}
        assert self.engine.attempts.keys() == self.shadow.running.keys()
        assert len(self.engine.stories) <= len(self.engine.requests) + KEPT_STORIES
        assert len(self.engine._deadlines) <= 64 + 2 * (len(self.engine.requests) + 1)

    def later(self, wait: float) -> float:
        return self.shadow.now + wait

    @property
    def latest(self) -> int:
        return max(self.shadow.attempt_ids, default=0)

    # -- the app --------------------------------------------------------------------------------------

    @rule(
        wait=waits,
        model=st.sampled_from(MODELS),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        deadline_s=maybe(st.sampled_from([-1.0, 0.0, 0.5, 5.0, 45.0, 90.0])),
        query=st.sampled_from([None, EARLY_QUERY, EARLY_QUERY, LATE_QUERY]),
        input_tokens=st.sampled_from([0, 5, 30, 70, 400]),
        max_tokens=maybe(st.sampled_from([1, 20, 90])),
        copies=st.sampled_from([1, 1, 1, 4]),
    )
    def submit(  # noqa: PLR0917
        self,
        wait: float,
        model: str | None,
        priority: int,
        deadline_s: float | None,
        query: str | None,
        input_tokens: int,
        max_tokens: int | None,
        copies: int,
    ) -> None:
        at = self.later(wait)
        for _ in range(copies):
            request = Request(
                id=f"r{len(self.shadow.calls)}",
                model=model,
                input_tokens=input_tokens,
                max_tokens=max_tokens,
                query=query,
                priority=priority,
                deadline=None if deadline_s is None else at + deadline_s,
            )
            self.feed(Submitted(at=at, request=request))

    @rule(wait=waits, number=which, reason=st.sampled_from(Reason))
    def cancel(self, wait: float, number: int, reason: Reason) -> None:
        request_id = f"r{number % (len(self.shadow.calls) + 1)}"
        self.feed(Cancelled(at=self.later(wait), request_id=request_id, reason=reason))

    @precondition(lambda self: LATE_QUERY not in self.opened)
    @rule(max_calls=maybe(st.integers(1, 3)))
    def open_late_query(self, max_calls: int | None) -> None:
        """Before any of its calls, as the shell does."""
        assume(not any(call.request.query == LATE_QUERY for call in self.shadow.calls.values()))
        self.open_query(LATE_QUERY, max_calls)

    def open_query(self, query: str, max_calls: int | None) -> None:
        self.opened.add(query)
        opened = Query(id=query, workflow="w", max_calls=max_calls)
        self.feed(QueryOpened(at=self.shadow.now, query=opened))

    @precondition(lambda self: len(self.shadow.calls) > 8)
    @rule(query=st.sampled_from([EARLY_QUERY, LATE_QUERY]))
    def close_query(self, query: str) -> None:
        assume(query in self.opened)
        self.feed(QueryClosed(at=self.shadow.now, query_id=query))

    @precondition(lambda self: len(self.shadow.calls) > 12)
    @rule(wait=waits)
    def close(self, wait: float) -> None:
        self.feed(Closed(at=self.later(wait)))

    # -- the backends ---------------------------------------------------------------------------------

    @precondition(lambda self: self.shadow.attempt_ids)
    @rule(wait=waits, number=which, tokens=st.sampled_from([0, 1, 30, 200]))
    def progress(self, wait: float, number: int, tokens: int) -> None:
        attempt_id = self.an_attempt(number)
        self.feed(Progressed(at=self.later(wait), attempt_id=attempt_id, output_tokens=tokens))

    @precondition(lambda self: self.shadow.attempt_ids)
    @rule(
        wait=waits,
        number=which,
        usage=st.builds(Usage, maybe(st.sampled_from([0, 30, 500])), maybe(st.sampled_from([0, 3, 90]))),
        learn=st.booleans(),
        kept=st.sampled_from([0, 0, 40]),
    )
    def finish(self, wait: float, number: int, usage: Usage, learn: bool, kept: int) -> None:
        attempt_id = self.an_attempt(number)
        at = self.later(wait)
        self.feed(Finished(at=at, attempt_id=attempt_id, usage=usage, learn=learn, kept_tokens=kept))

    @precondition(lambda self: self.shadow.attempt_ids)
    @rule(
        wait=waits,
        number=which,
        kind=st.sampled_from(FailureKind),
        delivered=st.sampled_from([False, False, False, True]),
        kept=maybe(st.sampled_from([0, 7, 900])),
    )
    def fail(self, wait: float, number: int, kind: FailureKind, delivered: bool, kept: int | None) -> None:
        failure = Failure(kind=kind, delivered=delivered, kept_tokens=kept)
        self.feed(Failed(at=self.later(wait), attempt_id=self.an_attempt(number), failure=failure))

    @rule(wait=waits, number=which, models=maybe(model_lists | st.just(())))
    def listed(self, wait: float, number: int, models: tuple[str, ...] | None) -> None:
        """An answer, asked for or not."""
        self.report(wait, number, models=models)

    @rule(wait=waits, number=which)
    def cut_short(self, wait: float, number: int) -> None:
        self.report(wait, number, answered=False)

    def report(self, wait: float, number: int, **answer: Any) -> None:
        names = sorted(self.shadow.pending) or [n for n, b in self.shadow.fleet.items() if b.models is None]
        assume(names)
        backend = names[number % len(names)]
        self.feed(ModelsListed(at=self.later(wait), backend=backend, **answer))

    def an_attempt(self, number: int) -> int:
        """Mostly one that runs; sometimes one that is over or never was."""
        running = sorted(self.shadow.running)
        if running and number % 5:
            return running[number % len(running)]
        return 1 + number % (self.latest + 1)

    # -- the clock ------------------------------------------------------------------------------------

    @precondition(lambda self: self.shadow.armed < inf)
    @rule(error_s=st.sampled_from([0.0, 0.0, -0.001, 0.001, 3.0]))
    def ring(self, error_s: float) -> None:
        """The wake-up that was asked for, on time or nearly."""
        at = max(self.shadow.armed, self.shadow.now) + error_s
        self.shadow.armed = inf
        self.feed(Woke(at=at))

    @rule(wait=waits)
    def ring_unasked(self, wait: float) -> None:
        self.feed(Woke(at=self.later(wait)))

    @rule(back_s=st.sampled_from([0.001, 10.0, 1e6]))
    def clock_goes_back(self, back_s: float) -> None:
        self.feed(Woke(at=self.shadow.now - back_s))

    # -- the end --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let everything end by itself: whoever is asked answers, whoever runs finishes, the clock rings."""
        if not hasattr(self, "engine"):
            return
        for _ in range(10_000):
            if self.shadow.pending:
                backend = min(self.shadow.pending)
                self.feed(ModelsListed(at=self.shadow.now, backend=backend, models=("small",)))
            elif self.shadow.running:
                attempt_id = min(self.shadow.running)
                self.feed(Finished(at=self.later(0.5), attempt_id=attempt_id, usage=Usage(10, 10)))
            elif self.shadow.armed < inf:
                self.ring(0.0)
            else:
                break
        else:
            raise AssertionError("it never comes to rest")
        assert all(call.end is not None for call in self.shadow.calls.values()), "somebody waits for ever"
        assert not self.engine.requests
        assert not self.engine.attempts
        assert not self.engine.queue.lanes
        assert not len(self.engine.queue)
        assert len(self.engine.stories) == min(KEPT_STORIES, len(self.shadow.calls))
        for row in self.engine.backends.values():
            assert not row.running
            assert (row.unread_tokens, row.held_tokens, row.homed, row.homed_tokens) == (0, 0.0, 0, 0.0)


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=300, stateful_step_count=40)
