"""A fleet that changes while calls wait and run: nothing is lost, nothing happens twice, all room is freed once."""

import json
from random import Random
from typing import Any

import pytest

from agentsched.engine import Engine, Journal, replay
from agentsched.engine.commands import Abort, Command, Forget, ListModels, Resolve, Start, WakeAt
from agentsched.engine.difference import first_difference
from agentsched.engine.directory import SETTLE_S
from agentsched.engine.events import BackendJoined, BackendLeft, Event, ModelsListed, Signalled
from agentsched.engine.journal import encode
from agentsched.engine.reader import decode
from agentsched.errors import UsageError
from agentsched.model import Backend, FailureKind, Outcome, Reason, Signals
from agentsched.policy import Policy
from tests.engine.bench import MODEL, Bench, completed, expired, failed, fleet, rejected
from tests.engine.play import Play
from tests.strategies import SERVED

REMOVED = FailureKind.REMOVED


def one(name: str, **facts: Any) -> Backend:
    return fleet(**{name: facts})[0]


def unlisted(name: str) -> Backend:
    return Backend(f"http://{name}/v1", name=name)


def full(**more: Any) -> Bench:
    """`a` runs r1, and r2 waits for it."""
    bench = Bench(one("a", max_concurrency=1), **more)
    bench.submit("r1")
    bench.submit("r2")
    return bench


# -- joining -----------------------------------------------------------------------------------------------


def test_whoever_waits_is_served_by_a_backend_that_joins() -> None:
    bench = full()
    bench.submit("r3")
    assert bench.join(one("b"), 1.0) == [Start(2, "r2", "b"), Start(3, "r3", "b")]
    assert bench.finish(2, 2.0) == [completed("r2", "b")]
    assert bench.submit("r4", 3.0) == [Start(4, "r4", "b")]


def test_it_has_its_own_limits_and_calls_keep_their_order() -> None:
    bench = full()
    for number in range(3, 6):
        bench.submit(f"r{number}")
    assert bench.join(one("b", max_concurrency=2), 1.0) == [Start(2, "r2", "b"), Start(3, "r3", "b")]
    assert bench.finish(1, 2.0) == [completed("r1", "a"), Start(4, "r4", "a")]
    assert bench.finish(2, 3.0) == [completed("r2", "b"), Start(5, "r5", "b")]


def test_a_backend_that_serves_other_models_is_none_for_them() -> None:
    bench = full()
    assert bench.join(one("b", models=["other"]), 1.0) == []
    assert bench.submit("r3", 1.0, model="other") == [Start(2, "r3", "b")]
    assert bench.finish(1, 2.0) == [completed("r1", "a"), Start(3, "r2", "a")]


def test_a_call_that_failed_elsewhere_goes_to_a_newcomer_too() -> None:
    bench = Bench(one("a"), one("b", max_concurrency=1))
    bench.submit("r1", model=MODEL)
    bench.submit("r2")
    bench.fail(1, 1.0)
    assert bench.told("r1")[-1] == "queued"
    assert bench.join(one("c"), 2.0) == [Start(3, "r1", "c")]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        (one("a"), "a backend with the name 'a' already"),
        (Backend("http://z/v1", name="a"), "the name 'a' already (a): remove that one first"),
        (Backend("http://a/v1", name="z"), "the base_url 'http://a/v1' already (a)"),
    ],
)
def test_no_two_have_a_name_or_an_address(backend: Backend, message: str) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    with pytest.raises(UsageError) as caught:
        bench.join(backend, 1.0)
    assert message in str(caught.value)
    assert bench.engine.commands == []
    bench.engine.check()
    assert list(bench.engine.backends) == ["a", "b"]
    assert bench.finish(1, 2.0) == [completed("r1", "a")]


def test_a_name_is_free_once_its_backend_is_gone() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.leave("a", drain=True)
    with pytest.raises(UsageError, match=r"'a' already \(a, which still drains\)"):
        bench.join(one("a"))
    bench.finish(1, 1.0)
    assert bench.join(one("a"), 1.0) == []
    assert [row.index for row in bench.engine.backends.values()] == [1, 2]


def test_one_without_models_is_asked_at_once_if_calls_wait() -> None:
    bench = full()
    assert bench.join(unlisted("b"), 1.0) == [ListModels("b")]
    assert bench.listed("b", 1.1, MODEL) == [Start(2, "r2", "b")]


def test_one_without_models_is_asked_at_the_next_call_else_which_does_not_wait_for_it() -> None:
    bench = Bench(one("a"))
    assert bench.join(unlisted("b")) == []
    assert bench.submit("r1", 1.0) == [ListModels("b"), Start(1, "r1", "a")]
    assert bench.listed("b", 1.1, "other") == []
    assert bench.submit("r2", 2.0, model="other") == [Start(2, "r2", "b")]


def test_the_only_one_that_may_serve_a_model_is_waited_for() -> None:
    bench = Bench(one("a"))
    bench.join(unlisted("b"))
    assert bench.submit("r1", 1.0, model="other") == [ListModels("b")]
    assert bench.listed("b", 1.5, "other") == [Start(1, "r1", "b")]


def test_a_newcomer_does_not_put_off_the_end_of_the_first_questions() -> None:
    bench = Bench(unlisted("a"))
    assert bench.submit("r1") == [ListModels("a"), WakeAt(SETTLE_S)]
    assert bench.join(unlisted("b"), 0.4) == [ListModels("b")]
    assert bench.listed("a", 0.45, MODEL) == []
    assert bench.wake(SETTLE_S) == [Start(1, "r1", "a")]


# -- draining ----------------------------------------------------------------------------------------------


def test_what_runs_ends_normally_and_then_it_is_gone() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.submit("r2")
    bench.submit("r3")
    assert bench.leave("a", 1.0, drain=True) == []
    assert bench.submit("r4", 1.0) == [Start(4, "r4", "b")], "though a has less to do"
    assert bench.finish(1, 2.0) == [completed("r1", "a")]
    assert bench.finish(3, 3.0) == [Forget("a"), completed("r3", "a")]
    assert list(bench.engine.backends) == ["b"]
    assert "backend drains" in bench.told("r1")
    assert "backend drains" not in bench.told("r2")


def test_one_that_does_nothing_is_gone_at_once() -> None:
    bench = Bench(*fleet(a={}, b={}))
    assert bench.leave("a", drain=True) == [Forget("a")]


def test_whoever_waits_for_it_waits_for_others() -> None:
    bench = Bench(one("a", max_concurrency=1), one("b", max_concurrency=1))
    for number in range(1, 5):
        bench.submit(f"r{number}")
    assert bench.leave("a", 1.0, drain=True) == []
    assert bench.finish(1, 2.0) == [Forget("a"), completed("r1", "a")]
    assert bench.finish(2, 3.0) == [completed("r2", "b"), Start(3, "r3", "b")]


def test_what_fails_there_goes_on_elsewhere() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.leave("a", 1.0, drain=True)
    assert bench.fail(1, 2.0) == [Forget("a"), Start(2, "r1", "b")]
    assert bench.engine.requests["r1"].tried == (), "who is gone was not tried"


def test_what_fails_there_does_not_begin_anew_there() -> None:
    bench = Bench(one("a"))
    bench.submit("r1")
    bench.submit("r2")
    bench.leave("a", 1.0, drain=True)
    assert bench.fail(1, 2.0, FailureKind.OWNER_GONE) == [failed("r1", FailureKind.OWNER_GONE, "a")]
    assert bench.finish(2, 3.0) == [Forget("a"), completed("r2", "a")]


@pytest.mark.parametrize("end", ["cancel", "expire", "close"])
def test_it_is_gone_however_its_last_call_ends(end: str) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1", deadline=9.0)
    bench.leave("a", 1.0, drain=True)
    if end == "cancel":
        commands = bench.cancel("r1", 2.0)
    elif end == "expire":
        commands = bench.wake(9.0)
        assert commands[-1] == expired("r1", "a", 1)
    else:
        commands = bench.close(2.0)
    assert commands[:2] == [Abort(1), Forget("a")]


def test_draining_twice_is_draining_once() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    assert bench.leave("a", 1.0, drain=True) == []
    assert bench.leave("a", 2.0, drain=True) == []
    assert bench.finish(1, 3.0) == [Forget("a"), completed("r1", "a")]


def test_removing_ends_the_draining() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.leave("a", 1.0, drain=True)
    assert bench.leave("a", 2.0) == [Abort(1), Forget("a"), Start(2, "r1", "b")]


# -- removing ----------------------------------------------------------------------------------------------


def test_what_runs_is_moved_at_no_charge() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.submit("r2")
    assert bench.leave("a", 1.0) == [Abort(1), Forget("a"), Start(3, "r1", "b")]
    assert bench.told("r1") == ["submitted", "queued", "started", "attempt failed", "queued", "started"]
    assert bench.engine.story("r1")[3].facts["why"] == REMOVED
    assert bench.engine.requests["r1"].tried == ()
    assert bench.finish(3, 2.0) == [completed("r1", "b", 2)]
    assert bench.finish(1, 3.0) == [], "what was aborted says nothing any more"


def test_what_the_caller_has_seen_fails() -> None:
    bench = Bench(*fleet(a={}, b={}))
    for number in range(1, 5):
        bench.submit(f"r{number}")
    commands = bench.leave("a", 1.0, seen=(1, 2))
    assert commands == [
        Abort(1),
        failed("r1", REMOVED, "a", delivered=True),
        Abort(3),
        Forget("a"),
        Start(5, "r3", "b"),
    ]


def test_what_the_caller_has_seen_goes_on_where_it_drains() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    assert bench.leave("a", 1.0, drain=True, seen=(1,)) == []
    assert bench.finish(1, 2.0) == [Forget("a"), completed("r1", "a")]


def test_moved_calls_go_before_later_arrivals() -> None:
    bench = Bench(one("a", max_concurrency=1), one("b", max_concurrency=1))
    for number in range(1, 5):
        bench.submit(f"r{number}")
    assert bench.leave("a", 1.0) == [Abort(1), Forget("a")]
    assert bench.finish(2, 2.0) == [completed("r2", "b"), Start(3, "r1", "b")]
    assert bench.finish(3, 3.0) == [completed("r1", "b", 2), Start(4, "r3", "b")]


def test_a_moved_call_keeps_its_deadline() -> None:
    bench = Bench(one("a"), one("b", max_concurrency=1))
    bench.submit("r1", deadline=5.0)
    bench.submit("r2")
    assert bench.leave("a", 1.0) == [Abort(1), Forget("a")]
    assert bench.wake(5.0) == [expired("r1", "a", 1)]


def test_a_moved_call_for_which_nobody_is_left_fails_with_its_last_failure() -> None:
    bench = Bench(one("a"), one("b"), one("c", models=["other"]))
    bench.submit("r1")
    bench.fail(1, 1.0)
    assert bench.leave("b", 2.0) == [Abort(2), Forget("b"), failed("r1", REMOVED, "b", 2)]


def test_waiting_calls_for_which_nobody_is_left_end() -> None:
    bench = Bench(one("a", max_concurrency=1), one("b", max_concurrency=1), one("c", models=["other"]))
    for number in range(1, 4):
        bench.submit(f"r{number}")
    bench.fail(1, 1.0)  # r1 waits for b, r3 runs at a
    bench.submit("r4", 2.0)
    bench.leave("b", 3.0, drain=True)
    assert bench.told("r1")[-1] == "failed"
    assert bench.leave("a", 4.0, drain=True) == [rejected("r4", Reason.UNKNOWN_MODEL)]
    assert list(bench.engine.requests) == ["r2", "r3"]


def test_calls_that_wait_for_its_answer_do_not_hang() -> None:
    bench = Bench(unlisted("a"), one("b", models=["other"]))
    assert bench.submit("r1")[0] == ListModels("a")
    assert bench.leave("a", 0.1) == [Forget("a"), rejected("r1", Reason.UNKNOWN_MODEL)]
    assert bench.wake(SETTLE_S) == []


def test_what_is_heard_of_one_that_is_gone_says_nothing() -> None:
    bench = Bench(unlisted("a"), one("b"))
    bench.submit("r1")
    bench.leave("a", 0.1)
    assert bench.listed("a", 0.2, MODEL) == []
    assert bench.feed(ModelsListed(at=0.2, backend="a", answered=False)) == []
    assert bench.feed(Signalled(at=0.3, backend="a", signals=Signals(running=1))) == []
    assert list(bench.engine.directory) == ["b"]


def test_one_of_the_same_name_is_another_one() -> None:
    bench = Bench(*fleet(a={}, b={"max_concurrency": 1}))
    bench.submit("r1")
    bench.submit("r2")
    bench.fail(1, 1.0, FailureKind.UNKNOWN_MODEL)
    assert bench.engine.requests["r1"].tried == ("a",)
    assert bench.leave("a", 2.0) == [Forget("a")]
    assert bench.join(one("a"), 3.0) == [Start(3, "r1", "a")], (
        "it has not failed the call, nor refused the model"
    )
    assert bench.engine.backends["a"].failed == 0


@pytest.mark.parametrize("drain", [False, True])
def test_nobody_leaves_who_is_not_there(drain: bool) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    with pytest.raises(UsageError, match="the fleet has no backend 'z'; it has a, b"):
        bench.leave("z", 1.0, drain=drain)
    assert bench.engine.commands == []
    bench.engine.check()
    assert bench.finish(1, 2.0) == [completed("r1", "a")]


# -- the last one ------------------------------------------------------------------------------------------


def test_without_any_backend_calls_are_rejected() -> None:
    bench = full()
    assert bench.leave("a", 1.0) == [
        Abort(1),
        Forget("a"),
        failed("r1", REMOVED, "a"),
        rejected("r2", Reason.NO_BACKEND),
    ]
    assert bench.submit("r3", 2.0) == [rejected("r3", Reason.NO_BACKEND)]
    assert bench.submit("r4", 2.0, model=None) == [rejected("r4", Reason.NO_BACKEND)]
    with pytest.raises(UsageError, match="the fleet has no backend 'a'; it is empty"):
        bench.leave("a", 2.0)
    bench.join(one("b"), 3.0)
    assert bench.submit("r5", 3.0) == [Start(2, "r5", "b")]


def test_a_fleet_that_only_drains_takes_no_calls() -> None:
    bench = full()
    assert bench.leave("a", 1.0, drain=True) == [rejected("r2", Reason.NO_BACKEND)]
    assert bench.submit("r3", 2.0) == [rejected("r3", Reason.NO_BACKEND)]
    assert bench.finish(1, 3.0) == [Forget("a"), completed("r1", "a")]


def test_a_call_that_is_rejected_uses_nothing_of_its_query_up() -> None:
    bench = full()
    bench.open("q", max_calls=1)
    bench.submit("r3", query="q")
    bench.leave("a", 1.0)
    bench.join(one("b"), 2.0)
    assert bench.submit("r4", 2.0, query="q") == [Start(2, "r4", "b")]


# -- a successor -------------------------------------------------------------------------------------------


def test_one_takes_the_place_of_another_and_nobody_is_rejected() -> None:
    bench = full()
    bench.submit("r3")
    successor = Backend("http://a/v1", name="a", models=[MODEL], max_concurrency=2)
    assert bench.leave("a", 1.0, successor=successor) == [
        Abort(1),
        Forget("a"),
        Start(2, "r1", "a"),
        Start(3, "r2", "a"),
    ]
    assert bench.engine.backends["a"].spec is successor
    assert bench.finish(2, 2.0) == [completed("r1", "a", 2), Start(4, "r3", "a")]


def test_what_was_learned_of_the_other_one_is_forgotten() -> None:
    bench = Bench(one("a"))
    bench.submit("r1")
    bench.progress(1, 1.0, 1)
    bench.finish(1, 2.0, input_tokens=10, output_tokens=50)
    assert bench.engine.backends["a"].stay_s == 2.0
    bench.leave("a", 3.0, successor=one("a"))
    row = bench.engine.backends["a"]
    assert (row.index, row.started, row.stay_s) == (1, 0, None)


def test_a_successor_may_have_a_name_of_its_own() -> None:
    bench = full()
    assert bench.leave("a", 1.0, drain=True, successor=one("b")) == [Start(2, "r2", "b")]
    assert bench.finish(1, 2.0) == [Forget("a"), completed("r1", "a")]


@pytest.mark.parametrize(
    ("drain", "successor"),
    [(True, one("a")), (False, one("b")), (False, Backend("http://b/v1", name="a")), (True, one("b"))],
)
def test_a_successor_has_no_others_name_or_address(drain: bool, successor: Backend) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    with pytest.raises(UsageError, match="already"):
        bench.leave("a", 1.0, drain=drain, successor=successor)
    assert bench.engine.commands == []
    bench.engine.check()
    assert not bench.engine.backends["a"].draining
    assert bench.submit("r2", 2.0) == [Start(2, "r2", "b")]
    assert bench.submit("r3", 2.0) == [Start(3, "r3", "a")]


def test_one_without_models_that_follows_is_asked_for_those_who_were_moved() -> None:
    bench = Bench(unlisted("a"))
    bench.submit("r1")
    bench.listed("a", 0.1, MODEL)
    assert bench.leave("a", 1.0, successor=unlisted("a")) == [Abort(1), Forget("a"), ListModels("a")]
    assert bench.listed("a", 1.1, MODEL) == [Start(2, "r1", "a")]


# -- a policy that is interrupted --------------------------------------------------------------------------


@pytest.mark.parametrize("successor", [None, one("d")])
def test_an_interrupted_policy_leaves_nobody_behind(successor: Backend | None) -> None:
    interrupts = False

    def cost(*_: Any) -> float:
        if interrupts:
            raise KeyboardInterrupt
        return 1.0

    limited = fleet(**{name: {"max_concurrency": 1} for name in "abc"})
    bench = Bench(*limited, policy=Policy(cost=cost))
    for number in range(1, 7):
        bench.submit(f"r{number}")
    interrupts = True
    with pytest.raises(KeyboardInterrupt):
        bench.leave("a", 1.0, successor=successor)
    assert bench.engine.commands[:2] == [Abort(1), Forget("a")]
    bench.engine.check()
    interrupts = False
    bench.leave("b", 2.0, drain=True)
    ended: set[str] = set()
    for attempt_id in range(1, 10):
        commands = bench.finish(attempt_id, 3.0)
        ended |= {command.request_id for command in commands if isinstance(command, Resolve)}
    assert ended == {f"r{number}" for number in range(1, 7)}


# -- the journal -------------------------------------------------------------------------------------------

SECRET = Backend(
    "http://gpu-secret:8000/v1",
    name="b c",
    api_key="sk-secret",
    models={"m": "org/secret"},
    rpm=5,
    max_concurrency=3,
    metrics=False,
)


@pytest.mark.parametrize(
    "event",
    [
        BackendJoined(at=1.0, backend=SECRET),
        BackendLeft(at=1.0, backend="a", drain=False, seen=(1, 2), successor=SECRET),
    ],
)
def test_a_backend_is_recorded_without_address_and_key(event: Event) -> None:
    line = encode(event)
    assert "secret" not in line
    found: Any = decode(line)
    backend = found.backend if isinstance(found, BackendJoined) else found.successor
    facts = ("name", "rpm", "tpm", "max_concurrency", "metrics")
    assert [getattr(backend, fact) for fact in facts] == [getattr(SECRET, fact) for fact in facts]
    assert list(backend.models) == ["m"]
    assert encode(found) == line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"event":"BackendJoined","at":1.0}', "does not say 'backend'"),
        ('{"event":"BackendJoined","at":1.0,"backend":"b"}', "backend is 'b'; it must be an object"),
        ('{"event":"BackendJoined","at":1.0,"backend":{}}', "it does not say 'name'"),
        ('{"event":"BackendJoined","at":1.0,"backend":{"name":"b","url":"u"}}', "a backend has no 'url'"),
        ('{"event":"BackendJoined","at":1.0,"backend":{"name":"b","rpm":0}}', "rpm must be a whole number"),
        ('{"event":"BackendLeft","at":1.0,"backend":"a"}', "does not say 'drain'"),
        ('{"event":"BackendLeft","at":1.0,"backend":"a","drain":1}', "it must be true or false"),
        (
            '{"event":"BackendLeft","at":1.0,"backend":"a","drain":true,"seen":["x"]}',
            "a list of whole numbers",
        ),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(line)
    assert message in str(caught.value)


def played(seed: int, steps: int = 250) -> tuple[list[str], "FleetPlay"]:
    lines: list[str] = []
    backends = [
        Backend("http://a/v1", name="a", models=list(SERVED), max_concurrency=2),
        Backend("http://b/v1", name="b"),
    ]
    journal = Journal(lines.append, backends, policy=Policy.fcfs())
    engine = Engine(backends, policy=Policy.fcfs(), journal=journal)
    play = FleetPlay(engine, Random(seed), journal)
    play.run(steps)
    return lines, play


class FleetPlay(Play):
    """A random run in which backends come and go."""

    def __init__(self, engine: Engine, rng: Random, journal: Journal) -> None:
        super().__init__(engine, rng)
        self.journal = journal
        self.changes = 0

    def feed(self, event: Event) -> None:
        super().feed(event)
        self.journal.decided(self.steps[-1][1])

    def next_event(self) -> Event:
        if self.armed > self.now and self.rng.random() < 0.2:
            self.changes += 1
            names = list(self.engine.backends)
            if not names or (len(names) < 4 and self.rng.random() < 0.5):
                return BackendJoined(at=self.now, backend=self.made(f"n{self.changes}"))
            name = self.rng.choice(names)
            drain = self.rng.random() < 0.5
            return BackendLeft(
                at=self.now,
                backend=name,
                drain=drain,
                seen=tuple(number for number in self.running if self.rng.random() < 0.2),
                successor=None if drain or self.rng.random() < 0.5 else self.made(name),
            )
        return super().next_event()

    def made(self, name: str) -> Backend:
        return Backend(
            f"http://{name}-{self.changes}/v1",
            name=name,
            models=self.rng.choice([None, SERVED, SERVED[:1]]),
            max_concurrency=self.rng.choice([None, 1, 2]),
            rpm=self.rng.choice([None, None, 5]),
        )


@pytest.mark.parametrize("seed", range(30))
def test_a_random_run_loses_nothing_and_happens_again(seed: int) -> None:
    lines, play = played(seed)
    assert play.changes > 20
    assert play.live == []
    assert play.running == {}
    ends = [c.request_id for _, commands in play.steps for c in commands if isinstance(c, Resolve)]
    assert len(ends) == len(set(ends))
    assert list(replay(lines, Policy.fcfs())) != []
    assert [commands for _, commands in replay(lines, Policy.fcfs())] == [c for _, c in play.steps]
    assert first_difference(lines, Policy.fcfs()) is None


def test_the_random_runs_have_everything_in_them() -> None:
    commands: list[Command] = [c for seed in range(30) for _, each in played(seed)[1].steps for c in each]
    moved = sum(isinstance(command, Abort) for command in commands)
    gone = sum(isinstance(command, Forget) for command in commands)
    ends = [command for command in commands if isinstance(command, Resolve)]
    removed = sum(end.failure is not None and end.failure.kind is REMOVED for end in ends)
    empty = sum(end.reason is Reason.NO_BACKEND for end in ends)
    assert min(moved, gone, removed, empty) > 20, (moved, gone, removed, empty)
    assert sum(end.outcome is Outcome.COMPLETED and end.attempts > 1 for end in ends) > 100


def test_a_change_that_cannot_have_been_is_refused_with_its_line() -> None:
    lines, _ = played(0, 5)
    for event, message in (
        (BackendJoined(at=1e6, backend=one("a")), "a backend with the name 'a' already"),
        (BackendLeft(at=1e6, backend="z", drain=True), "the fleet has no backend 'z'"),
    ):
        head = [lines[0], encode(event) + "\n"]
        with pytest.raises(UsageError, match="line 2: ") as caught:
            list(replay(head, Policy.fcfs()))
        assert message in str(caught.value)


def test_an_answer_of_one_that_has_left_may_come_late() -> None:
    head = played(0, 0)[0][0]
    events = [
        BackendLeft(at=1.0, backend="b", drain=False),
        ModelsListed(at=2.0, backend="b"),
        BackendJoined(at=3.0, backend=one("n")),
        ModelsListed(at=4.0, backend="n"),
    ]
    lines = [head, *(encode(event) + "\n" for event in events)]
    assert [commands for _, commands in replay(lines, Policy.fcfs())] == [[Forget("b")], [], [], []]


def test_a_difference_says_what_happened_to_the_fleet() -> None:
    head = json.loads(played(0, 0)[0][0])
    events = [
        (BackendLeft(at=1.0, backend="b", drain=False, successor=one("c")), [Forget("a")]),
        (BackendLeft(at=2.0, backend="c", drain=True), [Forget("c")]),
    ]
    lines = [json.dumps(head) + "\n"]
    for event, commands in events:
        lines.append(encode(event) + "\n")
        lines.append(
            json.dumps({"commands": [{"command": "Forget", "backend": c.backend} for c in commands]})
        )
    said = str(first_difference(lines, Policy.fcfs()))
    assert "b is removed, c joins in its place" in said
    assert "recorded: forget a" in said
    assert "now:      forget b" in said
    assert "b: no such backend" in said
