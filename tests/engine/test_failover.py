"""What a failure leads to: each other backend once, within the deadline, and never twice the same answer."""

from typing import Any

import pytest

from agentsched.engine.commands import ListModels, Start, WakeAt
from agentsched.engine.directory import SETTLE_S
from agentsched.engine.events import Finished
from agentsched.engine.rows import MAX_ORPHANED
from agentsched.model import Backend, FailureKind, Reason, Usage
from tests.engine.bench import Bench, completed, expired, failed, fleet, rejected

NOT_ELSEWHERE = (FailureKind.INVALID, FailureKind.UNSENDABLE, FailureKind.OWNER_GONE)
ELSEWHERE = [kind for kind in FailureKind if kind not in (*NOT_ELSEWHERE, FailureKind.UNABLE)]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_each_other_backend_is_tried_once(kind: FailureKind) -> None:
    bench = Bench(*fleet(a={}, b={}, c={}))
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.fail(1, 1.0, kind) == [Start(2, "r1", "b")]
    assert bench.fail(2, 2.0, kind) == [Start(3, "r1", "c")]
    assert bench.fail(3, 3.0, kind, status=500) == [failed("r1", kind, "c", 3, status=500)]
    assert bench.engine.requests == {}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_the_other_backend_may_do_better(kind: FailureKind) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.fail(1, 1.0, kind)
    assert bench.finish(2, 2.0) == [completed("r1", "b", 2)]


def test_a_lone_backend_is_not_tried_again() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    assert bench.fail(1) == [failed("r1", FailureKind.ERROR, "a")]


@pytest.mark.parametrize("kind", FailureKind)
def test_what_the_caller_has_seen_is_not_started_again(kind: FailureKind) -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    assert bench.fail(1, 1.0, kind, delivered=True) == [failed("r1", kind, "a", delivered=True)]


def test_a_call_that_is_wrong_is_wrong_everywhere() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    assert bench.fail(1, 1.0, FailureKind.INVALID, status=400) == [
        failed("r1", FailureKind.INVALID, "a", status=400)
    ]


def test_the_other_backend_must_serve_the_model() -> None:
    bench = Bench(
        Backend("http://a/v1", name="a", models=["x", "y"]), Backend("http://b/v1", name="b", models=["y"])
    )
    bench.submit("r1", model="x")
    assert bench.fail(1) == [failed("r1", FailureKind.ERROR, "a")]


def test_a_call_that_failed_elsewhere_waits_where_there_is_no_room() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}))
    bench.submit("r1")
    bench.submit("r2")
    assert bench.fail(1) == []
    assert bench.told("r1") == ["submitted", "queued", "started", "attempt failed", "queued"]
    assert bench.finish(2) == [completed("r2", "b"), Start(3, "r1", "b")]


def test_it_keeps_its_place_before_later_arrivals() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}))
    bench.submit("r1", 0.0)
    bench.submit("r2", 0.0)
    bench.submit("r3", 1.0)
    assert bench.fail(1, 2.0) == [Start(3, "r3", "a")], "a is free again, but not for r1"
    bench.submit("r4", 3.0)
    assert bench.finish(2, 4.0) == [completed("r2", "b"), Start(4, "r1", "b")]


def test_no_failover_after_the_deadline() -> None:
    bench = Bench(*fleet(a={}, b={}))
    assert bench.submit("r1", 0.0, deadline=5.0) == [Start(1, "r1", "a"), WakeAt(5.0)]
    assert bench.fail(1, 5.0) == [expired("r1", "a", 1)]


def test_the_deadline_holds_for_the_next_backend() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1", 0.0, deadline=5.0)
    assert bench.fail(1, 4.0) == [Start(2, "r1", "b")]
    assert bench.finish(2, 4.9) == [completed("r1", "b", 2)]


def test_the_failure_that_is_told_is_the_last_one() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    bench.fail(1, 1.0, FailureKind.REFUSED)
    assert bench.fail(2, 2.0, FailureKind.OVERLOADED, retry_after_s=7.0) == [
        failed("r1", FailureKind.OVERLOADED, "b", 2, retry_after_s=7.0)
    ]


def test_a_call_whose_loop_closed_is_sent_again_at_no_charge() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    for attempt_id in range(1, 1 + MAX_ORPHANED):
        assert bench.fail(attempt_id, 1.0, FailureKind.OWNER_GONE) == [Start(attempt_id + 1, "r1", "a")]
    last = 1 + MAX_ORPHANED
    assert bench.fail(last, 2.0, FailureKind.ERROR) == [failed("r1", FailureKind.ERROR, "a", last)]


def test_a_call_whose_task_is_cancelled_again_and_again_is_given_up() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    for attempt_id in range(1, 1 + MAX_ORPHANED):
        bench.fail(attempt_id, 1.0, FailureKind.OWNER_GONE)
    last = 1 + MAX_ORPHANED
    assert bench.fail(last, 1.0, FailureKind.OWNER_GONE) == [failed("r1", FailureKind.OWNER_GONE, "a", last)]


def test_a_call_whose_loop_closed_takes_its_place_among_many() -> None:
    """It comes back into the lane that it has just left."""
    bench = Bench(*fleet(a={"max_concurrency": 1}))
    for number in range(1, 6):
        bench.submit(f"r{number}")
    assert bench.fail(1, 1.0, FailureKind.OWNER_GONE) == [Start(2, "r1", "a")]
    for attempt_id in range(2, 7):
        bench.finish(attempt_id, 2.0)
    assert bench.engine.requests == {}


def test_a_backend_counts_its_own_failures_only() -> None:
    """The call's fault and the app's are not the backend's."""
    bench = Bench(*fleet(a={}))
    for attempt_id, kind in enumerate(FailureKind, start=1):
        bench.submit(f"r{attempt_id}", model=None)
        bench.fail(attempt_id, kind=kind, delivered=True)
    row = bench.engine.backends["a"]
    assert row.failed == len(FailureKind) - len(NOT_ELSEWHERE) - 3, (
        "nor is what is not there, nor its leaving, nor what it cannot go on with"
    )
    assert row.last_failure is not None
    assert row.last_failure.kind is FailureKind.UNKNOWN_MODEL


# -- an answer that others go on with -----------------------------------------------------------------------


def test_what_was_written_is_read_elsewhere_and_goes_first() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}))
    for name in ("r1", "r2", "r3"):
        bench.submit(name, input_tokens=100)
    bench.progress(1, 1.0, 40)
    bench.fail(1, 2.0, FailureKind.BROKEN, delivered=True, kept_tokens=40)
    row = bench.engine.requests["r1"]
    assert bench.engine.requests["r3"].attempt is not None, "it has the place that came free"
    assert (row.kept, row.job.input_tokens, row.job.output_tokens) == (40, 140, 256 - 40)
    bench.submit("r0", 3.0)
    assert bench.finish(2, 4.0)[-1] == Start(4, "r1", "b"), "before who has not begun"
    finished = Finished(at=9.0, attempt_id=4, usage=Usage(140, 60), kept_tokens=40)
    bench.feed(finished)
    assert bench.engine.past.lengths.expected(("m", None, None), None) == pytest.approx(100, rel=0.5)


def test_who_cannot_go_on_is_not_why_it_failed() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1")
    kept: dict[str, Any] = {"delivered": True, "kept_tokens": 5}
    assert bench.fail(1, 1.0, FailureKind.TIMEOUT, **kept) == [Start(2, "r1", "b")]
    assert bench.fail(2, 2.0, FailureKind.UNABLE, **kept) == [
        failed("r1", FailureKind.TIMEOUT, "a", 2, **kept)
    ]
    assert bench.engine.backends["b"].failed == 0


# -- a model that is not there -----------------------------------------------------------------------------


def test_a_404_teaches_for_a_while() -> None:
    bench = Bench(*fleet(a={}, b={}))
    assert bench.submit("r1", 0.0) == [Start(1, "r1", "a")]
    assert bench.fail(1, 1.0, FailureKind.UNKNOWN_MODEL, status=404) == [Start(2, "r1", "b")]
    bench.finish(2, 2.0)
    for number in range(3, 8):
        assert bench.submit(f"r{number}", 30.9) == [Start(number, f"r{number}", "b")]
    assert bench.submit("r8", 31.0) == [Start(8, "r8", "a")]


def test_a_404_says_nothing_about_other_models() -> None:
    models = ["x", "y"]
    bench = Bench(
        Backend("http://a/v1", name="a", models=models), Backend("http://b/v1", name="b", models=models)
    )
    bench.submit("r1", 0.0, model="x")
    bench.fail(1, 0.0, FailureKind.UNKNOWN_MODEL)
    bench.finish(2)
    assert bench.submit("r2", 1.0, model="y") == [Start(3, "r2", "a")]


def test_where_all_backends_said_404_the_next_call_is_not_even_sent() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    assert bench.fail(1, 1.0, FailureKind.UNKNOWN_MODEL) == [failed("r1", FailureKind.UNKNOWN_MODEL, "a")]
    assert bench.submit("r2", 2.0) == [rejected("r2", Reason.UNKNOWN_MODEL)]
    assert bench.submit("r3", 31.0) == [Start(2, "r3", "a")]


def test_a_404_for_a_call_without_a_model_teaches_nothing() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, model=None)
    bench.fail(1, 1.0, FailureKind.UNKNOWN_MODEL)
    assert bench.submit("r2", 2.0, model=None) == [Start(2, "r2", "a")]


def test_a_new_list_overrules_a_404() -> None:
    bench = Bench(Backend("http://a/v1", name="a"))
    assert bench.submit("r1", 0.0) == [ListModels("a"), WakeAt(SETTLE_S)]
    bench.listed("a", 0.0, "m")
    bench.fail(1, 1.0, FailureKind.UNKNOWN_MODEL)
    assert bench.submit("r2", 2.0) == [rejected("r2", Reason.UNKNOWN_MODEL)]
    bench.listed("a", 3.0, "m")
    assert bench.submit("r3", 4.0) == [Start(2, "r3", "a")]
