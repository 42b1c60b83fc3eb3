"""Release control: how much each backend is given, who waits for what, and that no engine idles for it."""

from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.engine import Engine
from agentsched.engine.budget import FULL, GROWTH, LATE, LATE_S, LEAST, SHARE, Budget, is_late
from agentsched.engine.commands import LookAt, Start, WakeAt
from agentsched.engine.heard import FRESH_S, FROZEN, LOOK_FROM, LOOK_S, SILENT_S
from agentsched.model import Backend, BackendLoad, Job, Signals
from agentsched.policy import Policy
from tests.engine.bench import Bench, completed, fleet
from tests.engine.play import Play
from tests.strategies import fleets

SMALL, LARGE = {"input_tokens": 90, "max_tokens": 10}, {"input_tokens": 900, "max_tokens": 100}
"""Calls that commit 100 and 1,000 tokens."""


def holding(bench: Bench, name: str, kv_tokens: int) -> None:
    """Have a backend say how much its memory holds."""
    bench.signal(name, 0.0, Signals(kv_tokens=kv_tokens))


def slow_costs(seconds: float) -> Policy:
    """Return a policy by which a call costs 1 s at the backend "fast" and so many at any other."""
    return Policy(cost=lambda _job, load: 1.0 if load.name == "fast" else seconds)


# -- the budget --------------------------------------------------------------------------------------------


def test_a_share_of_the_memory_that_the_engine_has_is_given_out() -> None:
    bench = Bench(*fleet(a={}))
    holding(bench, "a", 1_000)
    started = [bench.submit(f"r{number}", 1.0, **SMALL) for number in range(10)]
    assert [bool(commands) for commands in started] == [True] * 9 + [False]
    assert bench.engine.backends["a"].held_tokens == 900 == SHARE * 1_000
    assert bench.finish(1, 2.0, input_tokens=90, output_tokens=10) == [
        completed("r0", "a"),
        Start(10, "r9", "a"),
    ]


def test_without_release_control_everything_leaves_at_once() -> None:
    bench = Bench(*fleet(a={}), policy=Policy(release_control=False))
    holding(bench, "a", 1_000)
    for number in range(1, 30):
        assert bench.submit(f"r{number}", 1.0, **SMALL) == [Start(number, f"r{number}", "a")]


def test_a_call_that_is_larger_than_the_budget_runs_alone() -> None:
    bench = Bench(*fleet(a={}))
    holding(bench, "a", 1_000)
    assert bench.submit("small", 1.0, **SMALL) == [Start(1, "small", "a")]
    assert bench.submit("large", 1.0, input_tokens=5_000) == []
    assert bench.finish(1, 2.0) == [completed("small", "a"), Start(2, "large", "a")]


def test_what_is_cached_commits_nothing() -> None:
    bench = Bench(*fleet(a={}))
    holding(bench, "a", 830)
    shared = {"input_tokens": 640, "max_tokens": 50, "marks": (1, 2, 3, 4, 5)}
    started = [bench.submit(f"r{number}", 1.0, **shared) for number in range(3)]
    assert [bool(commands) for commands in started] == [True, True, False]
    assert bench.engine.backends["a"].held_tokens == 690 + 1 + 50, "one token of a prompt is always read"


def test_an_answer_that_is_longer_than_expected_holds_more() -> None:
    bench = Bench(*fleet(a={}))
    holding(bench, "a", 1_000)
    bench.submit("r1", 1.0, input_tokens=100, step="s")
    bench.finish(1, 2.0, output_tokens=100)
    bench.submit("r2", 3.0, input_tokens=100, step="s")
    assert bench.engine.backends["a"].held_tokens == 200
    bench.progress(2, 4.0, 90)
    assert bench.engine.backends["a"].held_tokens == 200
    bench.progress(2, 5.0, 400)
    assert bench.engine.backends["a"].held_tokens == 500


def test_nothing_is_held_back_where_nobody_says_anything_and_first_tokens_come_in_time() -> None:
    bench = Bench(*fleet(a={"metrics": False}))
    for number in range(1, 200):
        assert bench.submit(f"r{number}", number, **LARGE) == [Start(number, f"r{number}", "a")]
        bench.progress(number, number + 0.2 * number, 1)


def test_late_first_tokens_cut_the_budget_to_what_was_held_and_timely_ones_let_it_grow() -> None:
    budget = Budget()
    budget.first_token(1.0, 0.0, 1_000.0, late=False)
    assert budget.tokens == inf
    budget.first_token(10.0, 5.0, 1_000.0, late=True)
    assert budget.tokens == SHARE * 1_000
    budget.first_token(11.0, 6.0, 900.0, late=True)
    assert budget.tokens == SHARE * 1_000, "what was released before the cut tells nothing new"
    budget.first_token(12.0, 10.5, 800.0, late=False)
    assert budget.tokens == pytest.approx(SHARE * 1_000 * GROWTH)
    before = budget.tokens
    budget.first_token(13.0, 10.5, 100.0, late=False)
    assert budget.tokens == before, "what is not used need not grow"
    budget.first_token(14.0, 10.6, 700.0, late=True)
    assert budget.tokens == pytest.approx(SHARE * 700)


def test_who_fits_once_a_timely_first_token_has_made_room_starts_then() -> None:
    """And not when something else happens next."""
    bench = Bench(*fleet(a={}))
    bench.engine.backends["a"].budget.tokens = 900.0
    bench.submit("r1", 1.0, **SMALL)
    bench.progress(1, 1.1, 1)
    bench.submit("r2", 1.2, input_tokens=650, max_tokens=50)
    assert bench.submit("r3", 1.3, input_tokens=105, max_tokens=5) == []  # 910 of 900 tokens
    assert bench.progress(2, 1.5, 1) == [Start(3, "r3", "a")]


def test_timely_first_tokens_say_nothing_against_a_size_that_was_told() -> None:
    budget = Budget()
    budget.tell(1_000)
    budget.first_token(1.0, 0.0, 900.0, late=False)
    assert budget.tokens == SHARE * 1_000
    budget.first_token(3.0, 2.0, 900.0, late=True)
    for at in range(4, 50):
        budget.first_token(float(at), float(at), 900.0, late=False)
    assert budget.tokens == SHARE * 1_000
    budget.tokens = 3_000.0  # as its gauge said, as long as it was believed
    budget.first_token(60.0, 59.0, 3_000.0, late=False)
    assert budget.tokens == 3_000.0


def test_an_engine_that_says_what_it_has_always_gets_a_part_of_it() -> None:
    budget = Budget()
    budget.tell(10_000)
    for at in range(1, 50):
        budget.first_token(float(at), float(at), 3_000.0, late=True)
    assert budget.tokens == LEAST * 10_000


@given(st.floats(0.01, 1.0), st.floats(0.3, 3.0))
def test_the_gauge_brings_the_budget_to_the_same_share_of_the_memory(
    usage_at_first: float, factor: float
) -> None:
    """Whatever the memory really is: it is in use to `FULL` in the end."""
    memory = 10_000.0 * factor
    budget = Budget()
    budget.tell(10_000)
    for _ in range(60):
        held = budget.tokens
        budget.follow(
            held, min(held / memory, 1.0) if held < memory else usage_at_first, running=8, waiting=0
        )
    if held < memory:
        assert budget.tokens == pytest.approx(FULL * memory, rel=0.02)


def test_a_first_token_is_late_by_more_than_a_little() -> None:
    assert not is_late(0.1, LATE * 0.1 + LATE_S)
    assert is_late(0.1, LATE * 0.1 + LATE_S + 0.01)
    assert not is_late(10.0, LATE * 10.0 + LATE_S)


# -- who waits for what --------------------------------------------------------------------------------------


def test_a_call_that_does_not_fit_waits_at_its_home_and_those_behind_go_elsewhere() -> None:
    bench = Bench(*fleet(fast={}, b={}), policy=slow_costs(3.0))
    for name in ("fast", "b"):
        holding(bench, name, 2_000)
    assert bench.submit("first", 1.0, **LARGE) == [Start(1, "first", "fast")]
    assert bench.submit("second", 1.0, **LARGE) == [Start(2, "second", "b")], (
        "no patience for three times the cost"
    )
    assert bench.submit("large", 1.0, **LARGE) == []
    assert bench.engine.backends["fast"].homed == 1
    assert bench.submit("small", 1.0, **SMALL) == [Start(3, "small", "b")]
    assert bench.finish(1, 2.0) == [completed("first", "fast"), Start(4, "large", "fast")]
    assert bench.engine.backends["fast"].homed == 0


def test_who_waits_for_a_much_better_backend_that_is_free_soon_waits() -> None:
    bench = Bench(
        *fleet(fast={"max_concurrency": 1}, slow={}),
        policy=slow_costs(100.0),
    )
    bench.submit("taught", 0.0)
    bench.finish(1, 2.0)
    assert bench.submit("r1", 10.0) == [Start(2, "r1", "fast")]
    assert bench.submit("r2", 10.0) == [WakeAt(10.25)], (
        "2 s of waiting and 1 s there are less than a quarter of 100"
    )
    assert bench.engine.backends["fast"].homed == 1
    assert bench.finish(2, 11.0) == [completed("r1", "fast"), Start(3, "r2", "fast")]


def test_who_waits_by_choice_looks_again_and_gives_up_when_others_are_before_it() -> None:
    bench = Bench(
        *fleet(fast={"max_concurrency": 1}, slow={}),
        policy=slow_costs(100.0),
    )
    bench.submit("taught", 0.0)
    bench.finish(1, 20.0)
    assert bench.submit("r1", 30.0) == [Start(2, "r1", "fast")]
    assert bench.submit("r2", 30.0) == [WakeAt(30.25)]
    assert bench.wake(30.25) == [WakeAt(30.5)]
    assert bench.submit("r3", 30.3) == [Start(3, "r2", "slow")], "with another one it would be 40 s"


def test_without_patience_nobody_waits_while_there_is_room() -> None:
    policy = replace(slow_costs(1e9), patience=0)
    bench = Bench(*fleet(fast={"max_concurrency": 1}, slow={}), policy=policy)
    assert bench.submit("r1") == [Start(1, "r1", "fast")]
    assert bench.submit("r2") == [Start(2, "r2", "slow")]


def test_the_second_call_with_a_long_prompt_goes_to_where_it_is_cached_unless_it_is_crowded() -> None:
    bench = Bench(*fleet(a={}, b={}, c={}))
    prompt = {"input_tokens": 6_400, "max_tokens": 20}
    assert bench.submit("r1", 0.0, marks=tuple(range(50)), **prompt) == [Start(1, "r1", "a")]
    bench.progress(1, 1.3, 1)
    bench.finish(1, 2.0, output_tokens=20)
    assert bench.submit("other", 3.0, marks=tuple(range(100, 150)), **prompt) == [Start(2, "other", "b")]
    bench.progress(2, 4.3, 1)
    bench.finish(2, 5.0, output_tokens=20)
    assert bench.submit("r2", 6.0, marks=tuple(range(50)), **prompt) == [Start(3, "r2", "a")]
    for number in range(8):
        bench.submit(f"crowd{number}", 6.0, input_tokens=20_000, marks=(1_000 + number,), max_tokens=20)
    where = [row for row in bench.engine.backends.values() if row.prefixes.hit(tuple(range(50)))]
    assert [row.name for row in where] == ["a"]


# -- what engines say of themselves ---------------------------------------------------------------------------


def busy(bench: Bench, calls: int, at: float = 0.0) -> list[LookAt]:
    """Start calls and have each show its first token; return the looks that were asked for."""
    for number in range(calls):
        bench.submit(f"busy{at}-{number}", at, **SMALL)
    ids = [
        row.attempt.id
        for row in bench.engine.requests.values()
        if row.attempt and row.attempt.first_at is None
    ]
    found = [command for attempt_id in ids for command in bench.progress(attempt_id, at + 0.1, 1)]
    return [command for command in found if isinstance(command, LookAt)]


def test_a_backend_at_work_is_looked_at_now_and_then() -> None:
    bench = Bench(*fleet(a={}))
    assert busy(bench, LOOK_FROM - 1) == []
    assert busy(bench, 1, 1.0) == [LookAt("a")]
    assert busy(bench, 3, 1.0 + LOOK_S - 0.5) == []
    assert busy(bench, 3, 1.0 + LOOK_S + 0.5) == [LookAt("a")]


def test_one_that_does_not_say_is_left_alone_for_a_while_and_one_that_is_not_to_be_asked_for_ever() -> None:
    bench = Bench(*fleet(a={}))
    assert busy(bench, LOOK_FROM, 1.0) == [LookAt("a")]
    bench.signal("a", 1.2, None)
    assert busy(bench, 1, SILENT_S) == []
    assert busy(bench, 1, SILENT_S + 2.0) == [LookAt("a")]
    assert busy(Bench(*fleet(a={"metrics": False})), 50) == []


def test_others_calls_count_while_that_is_fresh() -> None:
    seen: list[int] = []

    def note(_job: Job, load: BackendLoad) -> float:
        seen.append(load.running)
        return 0.0

    bench = Bench(*fleet(a={}), policy=Policy(cost=note))
    bench.submit("r1", 0.0)
    bench.signal("a", 1.0, Signals(running=5, waiting=2))
    bench.submit("r2", 2.0)
    bench.submit("r3", 2.0 + FRESH_S)
    assert seen == [0, 7, 2]


def test_our_own_calls_come_first_whatever_the_engine_has_seen_of_them() -> None:
    """Case 88: a burst within one look; the gauges still say that nothing runs."""
    bench = Bench(*fleet(a={}, b={}))
    for name in "ab":
        bench.signal(name, 0.0, Signals(running=0, waiting=0, kv_usage=0.0))
    where = [bench.submit(f"r{number}", 0.1)[0].backend for number in range(200)]  # type: ignore[union-attr]
    assert abs(where.count("a") - where.count("b")) <= 2


def test_gauges_that_do_not_move_while_calls_come_and_go_are_not_believed() -> None:
    bench = Bench(*fleet(a={}))
    busy(bench, LOOK_FROM, 0.0)
    said = Signals(running=90, waiting=9, kv_usage=0.99)
    for number in range(FROZEN + 2):
        bench.signal("a", float(number), said)
        frozen = number >= FROZEN
        assert bench.engine.backends["a"].heard.frozen == frozen
        assert bench.engine.backends["a"].heard.foreign(float(number)) == (0 if frozen else 95)


# -- whatever happens --------------------------------------------------------------------------------------


class Checked(Play):
    """A random run in which nobody may wait while a backend that would take the call runs nothing at all."""

    def feed(self, event: object) -> None:
        super().feed(event)  # type: ignore[arg-type]
        for row in self.engine.requests.values():
            for name in row.choice if row.attempt is None else ():
                backend = self.engine.backends[name]
                limited = backend.rpm is not None or backend.tpm is not None
                claimed = any(
                    other.home is backend and other is not row for other in self.engine.requests.values()
                )
                assert backend.running or limited or claimed or row.home is backend or row.home is None
                assert row.home is not backend or backend.running or limited, f"{name} idles"


@given(fleets(), st.integers(0, 10**6))
@settings(max_examples=60)
def test_without_patience_no_backend_idles_while_somebody_waits(fleet: list[Backend], seed: int) -> None:
    Checked(Engine(fleet, policy=Policy(patience=0)), Random(seed)).run(120)
