"""Any changes of a fleet among any calls: nothing is lost, nothing twice, and who waits is served when one joins."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentsched.engine import Engine
from agentsched.engine.commands import Abort, Forget, ListModels, Resolve, Start
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Submitted,
    Woke,
)
from agentsched.model import Backend, Failure, FailureKind, Outcome, Request, Usage
from agentsched.policy import Policy
from tests.strategies import MODELS, SERVED, fleets, maybe, model_lists

which = st.integers(0, 1_000)
"""Picks one of however many there are."""

REPORTED = [kind for kind in FailureKind if kind is not FailureKind.REMOVED]
"""What shells report; that a backend has left is the engine's own word."""

ENDLESS = (FailureKind.INVALID, FailureKind.UNSENDABLE)


class FleetMachine(RuleBasedStateMachine):
    """One engine, and what a shell knows of it."""

    @initialize(fleet=fleets())
    def build(self, fleet: list[Backend]) -> None:
        self.engine = Engine(fleet, policy=Policy.fcfs())
        self.now = 0.0
        self.made = 0
        self.open = [backend.name for backend in fleet]
        self.draining: list[str] = []
        self.running: dict[int, tuple[str, str]] = {}
        self.seen: set[int] = set()
        self.asked: list[str] = []
        self.submitted = 0
        self.ends: Counter[str] = Counter()
        self.failed_at: dict[str, set[str]] = {}

    def feed(self, event: Event) -> None:
        leaving = event.backend if isinstance(event, BackendLeft) and not event.drain else None
        commands = self.engine.handle(event)
        self.engine.check()
        ends = {command.request_id for command in commands if isinstance(command, Resolve)}
        for command in commands:
            match command:
                case Start(attempt_id, request_id, backend):
                    assert backend in self.open, "started where no calls are taken"
                    assert backend not in self.failed_at.get(request_id, ()), "started where it has failed"
                    self.running[attempt_id] = request_id, backend
                case Abort(attempt_id):
                    request_id, backend = self.running.pop(attempt_id)
                    assert backend == leaving or request_id in ends
                case Resolve():
                    self.resolved(command, leaving)
                case Forget(backend):
                    self.forgotten(backend, event)
                case ListModels(backend):
                    assert backend in self.open
                    self.asked.append(backend)
                case _:
                    pass

    def resolved(self, end: Resolve, leaving: str | None) -> None:
        self.ends[end.request_id] += 1
        assert self.ends[end.request_id] == 1, "ended twice"
        assert end.request_id not in {request_id for request_id, _ in self.running.values()}
        if end.failure is not None and end.failure.delivered and end.failure.kind is FailureKind.REMOVED:
            assert end.backend == leaving

    def forgotten(self, backend: str, event: Event) -> None:
        assert backend not in {at for _, at in self.running.values()}, "something runs there"
        self.draining.remove(backend)
        for failed in self.failed_at.values():
            failed.discard(backend)
        successor = event.successor if isinstance(event, BackendLeft) else None
        if successor is not None:
            self.open.append(successor.name)

    @invariant()
    def the_fleet_is_as_it_should_be(self) -> None:
        if hasattr(self, "engine"):
            assert set(self.engine.backends) == {*self.open, *self.draining}
            assert list(self.engine.attempts) == list(self.running)
            live = self.submitted - len(self.ends)
            assert len(self.engine.requests) == live, "lost"
            assert not self.open or not self.draining or self.running

    # -- the app ---------------------------------------------------------------------------------------

    @rule(model=st.sampled_from(MODELS), copies=st.sampled_from([1, 1, 3]), deadline=maybe(st.just(5.0)))
    def submit(self, model: str | None, copies: int, deadline: float | None) -> None:
        for _ in range(copies):
            until = None if deadline is None else self.now + deadline
            request = Request(id=f"r{self.submitted}", model=model, input_tokens=10, deadline=until)
            self.submitted += 1
            self.feed(Submitted(at=self.now, request=request))

    @precondition(lambda self: self.engine.requests)
    @rule(number=which)
    def cancel(self, number: int) -> None:
        live = list(self.engine.requests)
        self.feed(Cancelled(at=self.now, request_id=live[number % len(live)]))

    # -- backends --------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(number=which)
    def finish(self, number: int) -> None:
        attempt_id = list(self.running)[number % len(self.running)]
        del self.running[attempt_id]
        self.feed(Finished(at=self.now, attempt_id=attempt_id, usage=Usage(10, 20)))

    @precondition(lambda self: self.running)
    @rule(number=which, kind=st.sampled_from(REPORTED), delivered=st.sampled_from([False, False, True]))
    def fail(self, number: int, kind: FailureKind, delivered: bool) -> None:
        attempt_id = list(self.running)[number % len(self.running)]
        request_id, backend = self.running.pop(attempt_id)
        if kind is not FailureKind.OWNER_GONE and kind not in ENDLESS and backend in self.open:
            self.failed_at.setdefault(request_id, set()).add(backend)
        failure = Failure(kind=kind, delivered=delivered)
        self.feed(Failed(at=self.now, attempt_id=attempt_id, failure=failure))

    @precondition(lambda self: self.running)
    @rule(number=which)
    def show(self, number: int) -> None:
        """Let a caller see a part of its answer."""
        self.seen.add(list(self.running)[number % len(self.running)])

    @precondition(lambda self: self.asked)
    @rule(number=which, models=maybe(model_lists), answered=st.sampled_from([True, True, False]))
    def listed(self, number: int, models: tuple[str, ...] | None, answered: bool) -> None:
        """Be it that the backend has left by now."""
        backend = self.asked.pop(number % len(self.asked))
        self.feed(ModelsListed(at=self.now, backend=backend, models=models, answered=answered))

    @rule(wait=st.sampled_from([0.1, 1.0, 6.0, 61.0]))
    def pass_time(self, wait: float) -> None:
        self.now += wait
        self.feed(Woke(at=self.now))

    # -- the fleet -------------------------------------------------------------------------------------

    def backend(self, name: str, **facts: Any) -> Backend:
        self.made += 1
        return Backend(f"http://{self.made}.test/v1", name=name, **facts)

    def free(self, number: int) -> str:
        """Pick a name that no backend has; one may have had it."""
        names = [name for name in "abcdef" if name not in self.engine.backends]
        return names[number % len(names)]

    @precondition(lambda self: len(self.engine.backends) < 5)
    @rule(
        number=which,
        models=maybe(model_lists),
        limit=maybe(st.integers(1, 2)),
        rpm=maybe(st.integers(1, 3)),
    )
    def join(self, number: int, models: tuple[str, ...] | None, limit: int | None, rpm: int | None) -> None:
        name = self.free(number)
        self.open.append(name)
        backend = self.backend(name, models=models, max_concurrency=limit, rpm=rpm)
        self.feed(BackendJoined(at=self.now, backend=backend))

    @precondition(lambda self: self.engine.backends)
    @rule(number=which, drain=st.booleans(), follows=st.booleans(), models=maybe(model_lists))
    def leave(self, number: int, drain: bool, follows: bool, models: tuple[str, ...] | None) -> None:
        name = list(self.engine.backends)[number % len(self.engine.backends)]
        if name in self.open:
            self.open.remove(name)
            self.draining.append(name)
        successor = self.backend(name, models=models) if follows and not drain else None
        here = [attempt_id for attempt_id, (_, at) in self.running.items() if at == name]
        seen = tuple(attempt_id for attempt_id in here if attempt_id in self.seen)
        ends = {self.running[attempt_id][0] for attempt_id in seen} if not drain else set[str]()
        event = BackendLeft(at=self.now, backend=name, drain=drain, seen=seen, successor=successor)
        self.feed(event)
        assert all(self.ends[request_id] for request_id in ends), "what was seen cannot begin anew"

    @precondition(lambda self: len(self.engine.backends) < 5)
    @rule(number=which)
    def everybody_is_served(self, number: int) -> None:
        """One joins that serves all models without a limit: nobody waits any more."""
        name = self.free(number)
        self.open.append(name)
        self.feed(BackendJoined(at=self.now, backend=self.backend(name, models=SERVED)))
        for row in self.engine.requests.values():
            settling = self.engine.directory.settling(self.now)
            assert row.attempt is not None or row.request.model == "absent" or settling

    # -- the end ---------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let everything end by itself."""
        if not hasattr(self, "engine"):
            return
        for _ in range(10_000):
            if self.asked:
                self.listed(0, ("small",), True)
            elif self.running:
                self.finish(0)
            elif self.engine.requests:
                self.pass_time(61.0)
            else:
                break
        assert len(self.ends) == self.submitted, "somebody waits for ever"
        assert self.draining == [], "somebody drains for ever"
        assert not self.engine.queue.lanes
        ends = [self.engine.story(request_id) for request_id in self.ends]
        assert all(story[-1].what in set(map(str, Outcome)) for story in ends)


TestFleet = FleetMachine.TestCase
TestFleet.settings = settings(max_examples=200, stateful_step_count=40)
