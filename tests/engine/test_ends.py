"""How calls end early: cancelled, over the limit of their query, closed; and what comes in afterwards."""

import pytest

from agentsched.engine.commands import Abort, Start, WakeAt
from agentsched.engine.queries import KEPT_LIMITS
from agentsched.errors import InvariantBroken, UsageError
from agentsched.model import Backend, FailureKind, Reason
from tests.engine.bench import Bench, cancelled, completed, expired, failed, fleet, rejected

ONE = {"max_concurrency": 1}


# -- cancelling --------------------------------------------------------------------------------------------


def test_cancelling_a_waiting_call() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1")
    bench.submit("r2")
    bench.submit("r3")
    assert bench.cancel("r2") == [cancelled("r2")]
    assert bench.finish(1) == [completed("r1", "a"), Start(2, "r3", "a")]


def test_cancelling_a_running_call_frees_its_room_at_once() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1")
    bench.submit("r2")
    assert bench.cancel("r1") == [Abort(1), cancelled("r1", "a", 1), Start(2, "r2", "a")]


def test_the_reason_is_passed_on() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    assert bench.cancel("r1", reason=Reason.READER_STALLED)[1:] == [
        cancelled("r1", "a", 1, reason=Reason.READER_STALLED)
    ]


def test_cancelling_what_is_unknown_or_over_changes_nothing() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.cancel("r1") == []
    bench.submit("r1")
    bench.finish(1)
    assert bench.cancel("r1") == []


def test_cancelling_after_a_failure_tells_no_failure() -> None:
    bench = Bench(*fleet(a=ONE, b=ONE))
    bench.submit("r1")
    bench.submit("r2")
    bench.fail(1)
    assert bench.cancel("r1") == [cancelled("r1", "a", 1)]


# -- max_calls ---------------------------------------------------------------------------------------------


def test_a_query_may_make_as_many_calls_as_it_was_given() -> None:
    bench = Bench(*fleet(a={}))
    bench.open("q", max_calls=2)
    assert bench.submit("r1", query="q") == [Start(1, "r1", "a")]
    assert bench.submit("r2", query="q") == [Start(2, "r2", "a")]
    assert bench.submit("r3", query="q") == [rejected("r3", Reason.CALL_LIMIT)]
    bench.finish(1)
    assert bench.submit("r4", query="q") == [rejected("r4", Reason.CALL_LIMIT)], "what has run counts"
    assert bench.submit("r5") == [Start(3, "r5", "a")]
    assert bench.submit("r6", query="another") == [Start(4, "r6", "a")]


def test_a_waiting_call_holds_its_place_in_the_count() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.open("q", max_calls=2)
    bench.submit("r1", query="q")
    assert bench.submit("r2", query="q") == []
    assert bench.submit("r3", query="q") == [rejected("r3", Reason.CALL_LIMIT)]


@pytest.mark.parametrize("how", ["cancel", "expire"])
def test_a_call_that_never_started_is_given_back(how: str) -> None:
    bench = Bench(*fleet(a=ONE))
    bench.open("q", max_calls=1)
    bench.submit("other")
    bench.submit("r1", query="q", deadline=5.0)
    ended = bench.cancel("r1", 5.0) if how == "cancel" else bench.wake(5.0)
    assert ended == [cancelled("r1")] or ended == [expired("r1")]
    assert bench.submit("r2", 6.0, query="q") == []
    assert bench.submit("r3", 6.0, query="q") == [rejected("r3", Reason.CALL_LIMIT)]


def test_a_call_turned_away_at_the_door_is_given_back() -> None:
    bench = Bench(*fleet(a=ONE), max_queued=0)
    bench.open("q", max_calls=1)
    bench.submit("other")
    assert bench.submit("r1", query="q") == [rejected("r1", Reason.QUEUE_FULL)]
    assert bench.submit("r2", query="q", model="absent") == [rejected("r2", Reason.UNKNOWN_MODEL)]
    bench.finish(1)
    assert bench.submit("r3", query="q") == [Start(2, "r3", "a")]


def test_failing_over_is_one_call() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.open("q", max_calls=2)
    bench.submit("r1", query="q")
    bench.fail(1)
    assert bench.submit("r2", query="q") == [Start(3, "r2", "a")]
    assert bench.submit("r3", query="q") == [rejected("r3", Reason.CALL_LIMIT)]


def test_what_a_closed_query_has_running_goes_on() -> None:
    bench = Bench(*fleet(a={}))
    bench.open("q")
    bench.submit("r1", query="q")
    assert bench.close_query("q") == []
    assert bench.engine.queries.rows == []
    assert bench.submit("r2", query="q") == [Start(2, "r2", "a")]
    assert bench.finish(1) == [completed("r1", "a")]
    assert bench.close_query("q") == []


def test_the_limit_of_a_closed_query_holds_for_what_it_left_behind() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.open("q", max_calls=2)
    bench.submit("r1", query="q")
    bench.submit("r2", query="q")
    bench.close_query("q")
    assert len(bench.engine.queries) == 0
    assert bench.submit("r3", query="q") == [rejected("r3", Reason.CALL_LIMIT)]
    bench.cancel("r2")
    assert bench.submit("r4", query="q") == [], "it waits: r2 was never sent"
    assert bench.submit("r5", query="q") == [rejected("r5", Reason.CALL_LIMIT)]


def test_limits_of_closed_queries_are_forgotten_some_time() -> None:
    bench = Bench(*fleet(a={}))
    for number in range(KEPT_LIMITS + 10):
        bench.open(f"q{number}", max_calls=1)
        bench.close_query(f"q{number}")
    assert len(bench.engine.queries.rows) == KEPT_LIMITS
    assert bench.engine.queries.of("q9") is None
    assert bench.engine.queries.of("q10") is not None


# -- closing -----------------------------------------------------------------------------------------------


def test_closing_ends_everything() -> None:
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1")
    bench.submit("r2", deadline=9.0)
    assert bench.close(1.0) == [
        Abort(1),
        cancelled("r1", "a", 1, reason=Reason.CLOSED),
        rejected("r2", Reason.CLOSED),
    ]
    assert bench.engine.requests == {}


def test_closing_tells_a_call_that_was_sent_before_from_one_that_was_not() -> None:
    bench = Bench(*fleet(a=ONE, b=ONE))
    bench.submit("r1")
    bench.submit("r2")
    bench.fail(1)
    assert bench.close()[:1] == [cancelled("r1", "a", 1, reason=Reason.CLOSED)]


def test_after_closing_nothing_starts() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.close() == []
    assert bench.submit("r1") == [rejected("r1", Reason.CLOSED)]
    assert bench.submit("r2", model="absent") == [rejected("r2", Reason.CLOSED)]
    assert bench.submit("r3", deadline=-1.0) == [rejected("r3", Reason.CLOSED)]
    assert bench.close() == []
    assert bench.wake(5.0) == []
    assert bench.engine.closed


def test_after_closing_nobody_is_asked_for_models() -> None:
    bench = Bench(Backend("http://a/v1", name="a"))
    bench.close()
    assert bench.submit("r1") == [rejected("r1", Reason.CLOSED)]
    assert bench.listed("a", 1.0, "m") == []


# -- events of attempts that are over ----------------------------------------------------------------------


def late(bench: Bench, attempt_id: int) -> None:
    assert bench.progress(attempt_id, 9.0, 5) == []
    assert bench.finish(attempt_id, 9.0, output_tokens=5) == []
    assert bench.fail(attempt_id, 9.0, FailureKind.UNKNOWN_MODEL) == []
    assert bench.engine.past.lengths.expected(("m", None, None), None) == 256
    assert bench.submit("after", 9.0)[0] == Start(attempt_id + 1, "after", "a"), "nothing was taught"


def test_late_events_of_a_cancelled_attempt_are_ignored() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    bench.cancel("r1")
    late(bench, 1)


def test_late_events_of_an_expired_attempt_are_ignored() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", deadline=1.0)
    bench.wake(1.0)
    late(bench, 1)


def test_late_events_of_a_failed_attempt_do_not_touch_the_next() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.fail(1)
    assert bench.finish(1) == []
    assert bench.fail(1) == []
    assert bench.finish(2) == [completed("r1", "b", 2)]


def test_late_events_after_closing_are_ignored() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    bench.close()
    assert bench.finish(1) == []
    assert bench.fail(1) == []


def test_events_of_attempts_that_never_were_are_ignored() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.finish(7) == []
    assert bench.fail(7) == []
    assert bench.progress(7, 0.0, 1) == []


def test_a_call_ends_once() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    assert bench.finish(1) == [completed("r1", "a")]
    assert bench.finish(1) == []
    assert bench.fail(1) == []
    assert bench.cancel("r1") == []
    assert bench.close() == []


# -- mistakes ----------------------------------------------------------------------------------------------


def test_a_live_id_cannot_be_used_again() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    with pytest.raises(InvariantBroken, match="r1 was submitted twice") as caught:
        bench.submit("r1")
    assert caught.value.request_id == "r1"
    bench.engine.check()


def test_a_fleet_needs_distinct_backends() -> None:
    with pytest.raises(UsageError, match="at least one Backend"):
        Bench()
    with pytest.raises(UsageError, match="two backends have the name 'x'"):
        Bench(Backend("http://a/v1", name="x"), Backend("http://b/v1", name="x"))
    with pytest.raises(UsageError, match="two backends have the base_url 'http://a/v1'"):
        Bench(Backend("http://a/v1", name="x"), Backend("http://A/v1/", name="y"))


def test_what_waits_and_runs_at_a_broken_place_is_noticed() -> None:
    """`check` is worth nothing if it never complains."""
    bench = Bench(*fleet(a=ONE))
    bench.submit("r1")
    bench.submit("r2")
    row = bench.engine.requests["r2"]
    bench.engine.queue.remove(row.choice, row.key)
    with pytest.raises(InvariantBroken, match="neither runs nor waits") as caught:
        bench.engine.check()
    assert "submitted" in str(caught.value)
    assert "queued" in str(caught.value)


def test_commands_of_one_event_come_in_order() -> None:
    bench = Bench(*fleet(a=ONE, b=ONE))
    bench.submit("r1", deadline=5.0)
    bench.submit("r2")
    bench.submit("r3")
    bench.submit("r4", deadline=8.0)
    assert bench.fail(2, 5.0, FailureKind.INVALID) == [
        failed("r2", FailureKind.INVALID, "b"),
        Abort(1),
        expired("r1", "a", 1),
        Start(3, "r3", "a"),
        Start(4, "r4", "b"),
    ]
    assert bench.wake(5.0) == [WakeAt(8.0)]
