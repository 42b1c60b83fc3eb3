"""rpm and tpm: what may start in any minute, when the wait ends, and what is given back."""

from typing import Any

import pytest

from agentsched.engine.commands import Abort, Start, WakeAt
from agentsched.model import Failure, FailureKind
from tests.engine.bench import Bench, cancelled, completed, expired, failed, fleet

SIZE: dict[str, Any] = {"input_tokens": 10, "max_tokens": 30}
"""A call that is expected to take 40 tokens."""


def test_requests_per_minute() -> None:
    bench = Bench(*fleet(a={"rpm": 2}))
    assert bench.submit("r1", 0.0) == [Start(1, "r1", "a")]
    assert bench.submit("r2", 20.0) == [Start(2, "r2", "a")]
    assert bench.submit("r3", 21.0) == [WakeAt(60.0)]
    assert bench.submit("r4", 22.0) == []
    assert bench.finish(1, 30.0) == [completed("r1", "a")], "that it has ended does not count"
    assert bench.wake(60.0) == [Start(3, "r3", "a"), WakeAt(80.0)]
    assert bench.wake(80.0) == [Start(4, "r4", "a")]


def test_tokens_per_minute_count_what_is_expected() -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    assert bench.submit("r1", 0.0, **SIZE) == [Start(1, "r1", "a")]
    assert bench.submit("r2", 1.0, **SIZE) == [Start(2, "r2", "a")]
    assert bench.submit("r3", 2.0, **SIZE) == [WakeAt(60.0)]
    assert bench.wake(60.0) == [Start(3, "r3", "a")]


def test_tokens_that_were_not_needed_are_given_back() -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.submit("r2", 1.0, **SIZE)
    assert bench.submit("r3", 2.0, input_tokens=10, max_tokens=35) == [WakeAt(60.0)]
    assert bench.finish(1, 3.0, input_tokens=10, output_tokens=5) == [
        completed("r1", "a"),
        Start(3, "r3", "a"),
    ]


def test_just_enough_is_enough_and_one_less_is_not() -> None:
    for max_tokens, starts in [(20, True), (21, False)]:
        bench = Bench(*fleet(a={"tpm": 70}))
        bench.submit("r1", 0.0, **SIZE)
        assert (
            bool(bench.submit("r2", 0.0, input_tokens=10, max_tokens=max_tokens) != [WakeAt(60.0)]) is starts
        )


def test_tokens_beyond_what_was_expected_count_too() -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.finish(1, 3.0, input_tokens=20, output_tokens=60)
    assert bench.submit("r2", 4.0, **SIZE) == [WakeAt(60.0)]


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ({"input_tokens": 7, "output_tokens": 9}, 16),
        ({"input_tokens": None, "output_tokens": 9}, 19),
        ({"input_tokens": 7, "output_tokens": None}, 12),
        ({}, 15),
    ],
)
def test_what_the_backend_does_not_count_is_counted_here(usage: dict[str, Any], counted: int) -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.progress(1, 1.0, 5)
    bench.finish(1, 2.0, **usage)
    tpm = bench.engine.backends["a"].tpm
    assert tpm is not None
    assert tpm.used == counted


def test_a_call_larger_than_the_limit_waits_for_a_quiet_minute() -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.submit("r2", 10.0, **SIZE)
    assert bench.submit("large", 11.0, input_tokens=500) == [WakeAt(70.0)]
    assert bench.submit("small", 12.0, input_tokens=1, max_tokens=1) == [], "nobody overtakes it in its lane"
    assert bench.wake(70.0) == [Start(3, "large", "a"), WakeAt(130.0)]
    assert bench.wake(130.0) == [Start(4, "small", "a")]


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_when_a_large_call_gives_up_those_behind_it_start_at_once(how: str) -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.submit("large", 1.0, input_tokens=500, deadline=9.0)
    assert bench.submit("r2", 2.0, **SIZE) == []
    if how == "cancel":
        assert bench.cancel("large", 3.0) == [cancelled("large"), Start(2, "r2", "a")]
    else:
        assert bench.wake(9.0)[:2] == [expired("large"), Start(2, "r2", "a")]


def test_both_limits_must_allow() -> None:
    bench = Bench(*fleet(a={"rpm": 1, "tpm": 1_000}))
    bench.submit("r1", 0.0, **SIZE)
    assert bench.submit("r2", 5.0, **SIZE) == [WakeAt(60.0)]
    bench = Bench(*fleet(a={"rpm": 10, "tpm": 50}))
    bench.submit("r1", 0.0, **SIZE)
    assert bench.submit("r2", 5.0, **SIZE) == [WakeAt(60.0)]


def test_the_later_of_both_limits_counts() -> None:
    bench = Bench(*fleet(a={"rpm": 2, "tpm": 90}))
    bench.submit("r1", 0.0, input_tokens=1, max_tokens=1)
    bench.submit("r2", 20.0, **SIZE)
    assert bench.submit("r3", 21.0, input_tokens=50, max_tokens=30) == [WakeAt(80.0)]


def test_who_is_not_limited_takes_over() -> None:
    bench = Bench(*fleet(a={"rpm": 1}, b={}))
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    for number in range(2, 6):
        assert bench.submit(f"r{number}") == [Start(number, f"r{number}", "b")]


def test_the_first_allowance_of_any_backend_is_woken_for() -> None:
    bench = Bench(*fleet(a={"rpm": 1}, b={"rpm": 1}))
    bench.submit("r1", 0.0)
    bench.submit("r2", 7.0)
    assert bench.submit("r3", 8.0) == [WakeAt(60.0)]
    assert bench.wake(60.0) == [Start(3, "r3", "a")]


def test_a_full_backend_is_not_woken_for() -> None:
    bench = Bench(*fleet(a={"rpm": 1, "max_concurrency": 1}))
    bench.submit("r1", 0.0)
    assert bench.submit("r2", 1.0) == []
    assert bench.finish(1, 2.0) == [completed("r1", "a"), WakeAt(60.0)]
    assert bench.wake(60.0) == [Start(2, "r2", "a")]


def test_deadline_and_allowance_share_the_wake_up() -> None:
    bench = Bench(*fleet(a={"rpm": 1}))
    bench.submit("r1", 0.0)
    assert bench.submit("r2", 0.0) == [WakeAt(60.0)]
    assert bench.submit("r3", 0.0, deadline=30.0) == [WakeAt(30.0)]
    assert bench.wake(30.0) == [expired("r3"), WakeAt(60.0)]


# -- refunds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"rpm": 2}, {"tpm": 90}])
def test_a_call_that_was_never_sent_is_given_back(limits: dict[str, int]) -> None:
    bench = Bench(*fleet(a=limits))
    bench.submit("r1", 0.0, **SIZE)
    bench.submit("r2", 0.0, **SIZE)
    assert bench.submit("r3", 1.0, **SIZE) == [WakeAt(60.0)]
    assert bench.fail(2, 2.0, FailureKind.REFUSED) == [
        failed("r2", FailureKind.REFUSED, "a"),
        Start(3, "r3", "a"),
    ]


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if Failure(kind=kind).sent])
@pytest.mark.parametrize("limits", [{"rpm": 1}, {"tpm": 50}])
def test_what_was_sent_counts_however_it_ended(kind: FailureKind, limits: dict[str, int]) -> None:
    bench = Bench(*fleet(a=limits))
    bench.submit("r1", 0.0, **SIZE)
    bench.fail(1, 2.0, kind, delivered=True)
    assert bench.submit("r2", 3.0, model=None, **SIZE) == [WakeAt(60.0)]


def test_a_cancelled_call_that_ran_counts() -> None:
    bench = Bench(*fleet(a={"rpm": 1}))
    bench.submit("r1", 0.0)
    assert bench.cancel("r1", 1.0) == [Abort(1), cancelled("r1", "a", 1)]
    assert bench.submit("r2", 2.0) == [WakeAt(60.0)]


def test_a_call_that_only_waited_does_not_count() -> None:
    bench = Bench(*fleet(a={"rpm": 2, "max_concurrency": 1}))
    bench.submit("r1", 0.0)
    bench.submit("r2", 0.0)
    bench.cancel("r2", 1.0)
    bench.finish(1, 2.0)
    assert bench.submit("r3", 3.0) == [Start(2, "r3", "a")]


def test_what_was_given_back_does_not_hold_up_a_large_call() -> None:
    bench = Bench(*fleet(a={"tpm": 100}))
    bench.submit("r1", 0.0, **SIZE)
    bench.fail(1, 1.0, FailureKind.REFUSED)
    assert bench.submit("large", 2.0, input_tokens=500) == [Start(2, "large", "a")]
