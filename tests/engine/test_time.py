"""Deadlines, wake-ups and clocks that misbehave."""

from agentsched.engine.commands import Abort, Start, WakeAt
from tests.engine.bench import Bench, completed, expired, fleet

ONE = {"max_concurrency": 1}


def test_a_deadline_passes_while_the_call_runs() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.submit("r1", 0.0, deadline=5.0) == [Start(1, "r1", "a"), WakeAt(5.0)]
    assert bench.wake(5.0) == [Abort(1), expired("r1", "a", 1)]
    assert bench.told("r1") == ["submitted", "queued", "started", "expired"]


def test_a_deadline_passes_while_the_call_waits() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1", 0.0)
    assert bench.submit("r2", 0.0, deadline=5.0) == [WakeAt(5.0)]
    assert bench.wake(5.0) == [expired("r2")]
    assert bench.finish(1, 6.0) == [completed("r1", "a")]


def test_a_deadline_that_has_passed_starts_nothing() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.submit("r1", 10.0, deadline=10.0) == [expired("r1")]
    assert bench.submit("r2", 10.0, deadline=3.0) == [expired("r2")]


def test_the_room_of_an_expired_call_goes_to_the_next() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1", 0.0, deadline=5.0)
    bench.submit("r2", 0.0)
    assert bench.wake(5.0) == [Abort(1), expired("r1", "a", 1), Start(2, "r2", "a")]


def test_any_event_sees_that_a_deadline_has_passed() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    bench.submit("r2", 0.0)
    assert bench.progress(2, 7.0, 1) == [Abort(1), expired("r1", "a", 1)]


def test_an_answer_at_the_last_moment_counts() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    assert bench.finish(1, 5.0) == [completed("r1", "a")]


def test_expired_calls_end_in_the_order_of_their_deadlines() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("running", 0.0)
    bench.submit("late", 0.0, deadline=7.0)
    bench.submit("early", 0.0, deadline=5.0)
    assert bench.wake(9.0) == [expired("early"), expired("late")]


# -- wake-ups ----------------------------------------------------------------------------------------------


def test_only_an_earlier_wake_up_is_asked_for() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.submit("r1", 0.0, deadline=9.0)[-1] == WakeAt(9.0)
    assert bench.submit("r2", 0.0, deadline=11.0) == [Start(2, "r2", "a")]
    assert bench.submit("r3", 0.0, deadline=4.0)[-1] == WakeAt(4.0)


def test_the_next_deadline_is_armed_when_one_has_passed() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    bench.submit("r2", 0.0, deadline=7.0)
    assert bench.wake(5.0) == [Abort(1), expired("r1", "a", 1), WakeAt(7.0)]
    assert bench.wake(7.0) == [Abort(2), expired("r2", "a", 1)]


def test_a_deadline_of_an_ended_call_is_not_woken_for_again() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    bench.finish(1, 1.0)
    assert bench.wake(5.0) == []


def test_a_wake_up_too_early_asks_for_the_same_again() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    assert bench.wake(4.999) == [WakeAt(5.0)]
    assert bench.wake(5.0) == [Abort(1), expired("r1", "a", 1)]


def test_a_wake_up_too_late_expires_all_the_same() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=5.0)
    assert bench.wake(50.0) == [Abort(1), expired("r1", "a", 1)]


def test_a_wake_up_that_nobody_asked_for_changes_nothing() -> None:
    bench = Bench(*fleet(a=ONE))
    assert bench.wake(0.0) == []
    bench.submit("r1", 0.0)
    bench.submit("r2", 0.0)
    told = bench.told("r1"), bench.told("r2")
    for at in (0.0, 1.0, 1.0, 2.0):
        assert bench.wake(at) == []
    assert (bench.told("r1"), bench.told("r2")) == told
    assert bench.finish(1, 3.0) == [completed("r1", "a"), Start(2, "r2", "a")]


def test_nothing_is_armed_where_nothing_can_happen() -> None:
    bench = Bench(*fleet(a=ONE))
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.submit("r2") == []
    assert bench.cancel("r2")[1:] == []


# -- clocks ------------------------------------------------------------------------------------------------


def test_time_does_not_go_back() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 100.0, deadline=200.0)
    bench.submit("r2", 50.0)
    assert bench.engine.now == 100.0
    assert bench.engine.story("r2")[0].at == 100.0


def test_a_clock_that_went_back_spoils_no_deadline() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 100.0)
    assert bench.submit("r2", 50.0, deadline=99.0) == [expired("r2")]
    assert bench.submit("r3", 50.0, deadline=101.0) == [Start(2, "r3", "a"), WakeAt(101.0)]
    assert bench.wake(60.0) == [WakeAt(101.0)]


def test_a_clock_that_went_back_buys_no_allowance() -> None:
    bench = Bench(*fleet(a={"rpm": 1}))
    bench.submit("r1", 100.0)
    assert bench.submit("r2", 10.0) == [WakeAt(160.0)]
    assert bench.wake(80.0) == [WakeAt(160.0)]
    assert bench.wake(160.0) == [Start(2, "r2", "a")]


def test_a_clock_that_went_back_teaches_no_negative_speed() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 100.0)
    bench.progress(1, 90.0, 1)
    bench.finish(1, 80.0, output_tokens=50)
    speed = bench.engine.backends["a"].speed
    assert (speed.prefill_s, speed.decode_s) == (None, None)


# -- bounds ------------------------------------------------------------------------------------------------


def test_far_deadlines_of_ended_calls_do_not_pile_up() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, deadline=1e5)  # lives, and keeps the others from the top of the heap
    for number in range(2, 1_000):
        bench.submit(f"r{number}", 0.0, deadline=1e6)
        bench.finish(number, 0.0)
        assert len(bench.engine._deadlines) <= 64 + 2 * 2


def test_stories_of_ended_calls_do_not_pile_up() -> None:
    bench = Bench(*fleet(a={}), kept_stories=10)
    for number in range(1, 100):
        bench.submit(f"r{number}")
        bench.finish(number)
    assert len(bench.engine.stories) == 10
    assert bench.engine.story("r89") == ()
    assert bench.told("r90") == ["submitted", "queued", "started", "completed"]
