"""Finding out who serves what: asked once, at first use, and waited for."""

import pytest

from agentsched.engine.commands import ListModels, Start, WakeAt
from agentsched.engine.directory import RELIST_S, SETTLE_S
from agentsched.model import Backend, FailureKind, Reason
from tests.engine.bench import Bench, cancelled, completed, expired, failed, rejected

A, B = Backend("http://a/v1", name="a"), Backend("http://b/v1", name="b")
C = Backend("http://c/v1", name="c", models=["m", "only c"])


def test_an_unknown_model_is_rejected_and_nothing_is_sent() -> None:
    bench = Bench(C)
    assert bench.submit("r1", model="absent") == [rejected("r1", Reason.UNKNOWN_MODEL)]
    assert bench.told("r1") == ["submitted", "rejected"]


def test_backends_are_asked_once_at_first_use() -> None:
    bench = Bench(A, C, B)
    assert bench.submit("r1", model="only c") == [ListModels("a"), ListModels("b"), WakeAt(SETTLE_S)]
    assert bench.submit("r2", model="only c") == []
    assert bench.listed("a", 0.1, "x") == []
    assert bench.listed("b", 0.1, "x") == [Start(1, "r1", "c"), Start(2, "r2", "c")]
    assert bench.submit("r3", 1e6, model="only c") == [Start(3, "r3", "c")]


def test_nobody_is_asked_where_all_is_configured() -> None:
    assert Bench(C).submit("r1") == [Start(1, "r1", "c")]


def test_the_first_calls_wait_for_the_list_and_start_in_order() -> None:
    bench = Bench(A)
    assert bench.submit("r1", 0.0) == [ListModels("a"), WakeAt(SETTLE_S)]
    assert bench.submit("r2", 0.1) == []
    assert bench.submit("r3", 0.2, priority=1) == []
    assert bench.listed("a", 1.0, "m") == [Start(1, "r3", "a"), Start(2, "r1", "a"), Start(3, "r2", "a")]


def test_the_first_calls_wait_until_all_have_answered() -> None:
    bench = Bench(A, B)
    assert bench.submit("r1") == [ListModels("a"), ListModels("b"), WakeAt(SETTLE_S)]
    assert bench.submit("r2") == []
    assert bench.listed("b", 0.1, "m") == []
    assert bench.submit("r3", 0.2) == []
    assert bench.listed("a", 0.3, "m") == [Start(1, "r1", "a"), Start(2, "r2", "b"), Start(3, "r3", "a")]
    assert bench.submit("r4", 0.4) == [Start(4, "r4", "b")]


def test_they_do_not_wait_long() -> None:
    bench = Bench(A, B, C)
    assert bench.submit("r1") == [ListModels("a"), ListModels("b"), WakeAt(SETTLE_S)]
    assert bench.listed("b", 0.1, "m") == []
    assert bench.wake(SETTLE_S) == [Start(1, "r1", "b")]
    assert bench.submit("r2", SETTLE_S) == [Start(2, "r2", "c")]
    assert bench.listed("a", 1.0, "m") == []


def test_when_they_have_waited_the_first_list_that_names_the_model_is_enough() -> None:
    bench = Bench(A, B)
    bench.submit("r1")
    assert bench.wake(SETTLE_S) == []
    assert bench.listed("b", 1.0, "m") == [Start(1, "r1", "b")]
    assert bench.listed("a", 1.5, "m") == []


def test_a_model_on_no_list_is_rejected_once_all_have_answered() -> None:
    bench = Bench(A, B)
    bench.submit("r1", model="absent")
    assert bench.listed("a", 0.5, "m") == []
    assert bench.listed("b", 1.0, "m") == [rejected("r1", Reason.UNKNOWN_MODEL)]


def test_where_listing_fails_any_name_may_be_tried() -> None:
    bench = Bench(A)
    bench.submit("r1", model="whatever")
    assert bench.not_listed("a", 2.0) == [Start(1, "r1", "a")]
    assert bench.fail(1, 3.0, FailureKind.UNKNOWN_MODEL) == [failed("r1", FailureKind.UNKNOWN_MODEL, "a")]
    assert bench.submit("r2", 4.0, model="whatever") == [rejected("r2", Reason.UNKNOWN_MODEL)]
    assert bench.submit("r3", 4.0, model="another") == [Start(2, "r3", "a")]


def test_a_call_without_a_model_waits_for_no_list() -> None:
    assert Bench(A).submit("r1", model=None) == [ListModels("a"), Start(1, "r1", "a")]


def test_a_missing_model_has_old_lists_asked_for_again() -> None:
    bench = Bench(A)
    bench.submit("r1", 0.0)
    bench.listed("a", 1.0, "m")
    assert bench.submit("r2", 0.9 + RELIST_S, model="new") == [rejected("r2", Reason.UNKNOWN_MODEL)]
    assert bench.submit("r3", 1.0 + RELIST_S, model="new") == [ListModels("a")]
    assert bench.submit("r4", 1.5 + RELIST_S, model="new") == []
    assert bench.listed("a", 2.0 + RELIST_S, "m", "new") == [Start(2, "r3", "a"), Start(3, "r4", "a")]


def test_asking_again_holds_up_nobody_whose_model_is_on_the_list() -> None:
    bench = Bench(A)
    bench.submit("r1", 0.0)
    bench.listed("a", 1.0, "m")
    assert bench.submit("r2", 40.0, model="new") == [ListModels("a")]
    assert bench.submit("r3", 40.1) == [Start(2, "r3", "a")]
    assert bench.listed("a", 41.0, "m") == [rejected("r2", Reason.UNKNOWN_MODEL)]


def test_a_new_list_loses_nobody_who_waits() -> None:
    """All come back into the lane that they have just left."""
    bench = Bench(Backend("http://a/v1", name="a", max_concurrency=1))
    for number in range(1, 8):
        bench.submit(f"r{number}", 0.0)
    bench.listed("a", 1.0, "m")
    for at in range(2, 6):
        assert bench.listed("a", float(at), "m") == []
    for attempt_id in range(1, 7):
        assert bench.finish(attempt_id, 10.0) == [
            completed(f"r{attempt_id}", "a"),
            Start(attempt_id + 1, f"r{attempt_id + 1}", "a"),
        ]


def test_those_whom_a_list_rejects_are_told_in_the_order_of_the_queue() -> None:
    bench = Bench(A)
    for name, priority in [("first", 3), ("third", 1), ("second", 2), ("fourth", 0)]:
        bench.submit(name, model="absent", priority=priority)
    assert bench.listed("a", 1.0, "m") == [
        rejected(name, Reason.UNKNOWN_MODEL) for name in ("first", "second", "third", "fourth")
    ]


def test_a_failed_call_has_nobody_asked_again() -> None:
    bench = Bench(A)
    bench.submit("r1", 0.0)
    bench.listed("a", 1.0, "m")
    assert bench.fail(1, 100.0) == [failed("r1", FailureKind.ERROR, "a")]


def test_a_list_that_no_longer_names_the_model_rejects_those_who_wait() -> None:
    bench = Bench(Backend("http://a/v1", name="a", max_concurrency=1))
    bench.submit("r1")
    bench.submit("r2")
    assert bench.listed("a", 1.0, "m") == [Start(1, "r1", "a")]
    assert bench.listed("a", 2.0, "other") == [rejected("r2", Reason.UNKNOWN_MODEL)]
    assert bench.finish(1, 3.0) == [completed("r1", "a")], "who runs may finish"


@pytest.mark.parametrize("others", [[], [Backend("http://b/v1", name="b", max_concurrency=1)]])
def test_who_waits_behind_a_call_that_a_list_moves_starts(others: list[Backend]) -> None:
    """A large call waits for its minute to pass, and a small one behind it; then nobody serves the large one here."""
    bench = Bench(Backend("http://a/v1", name="a", tpm=100), *others)
    bench.submit("r0", 0.0, model="n", input_tokens=50, max_tokens=1)
    for backend in ("a", *(other.name for other in others)):
        bench.listed(backend, 0.1, *(("m", "n") if backend == "a" else ("x",)))
    bench.submit("big", 1.0, model="m", input_tokens=80, max_tokens=1)
    assert bench.submit("small", 2.0, model="n", input_tokens=10, max_tokens=1) == []
    bench.submit("asks", 7.0, model="absent")
    assert Start(2, "small", "a") in bench.listed("a", 7.1, "n")


def test_waiting_for_a_list_ends_at_the_deadline_and_with_the_caller() -> None:
    bench = Bench(A)
    assert bench.submit("r1", deadline=1.0) == [ListModels("a"), WakeAt(SETTLE_S)]
    assert bench.submit("r2") == []
    assert bench.wake(SETTLE_S) == [WakeAt(1.0)]
    assert bench.wake(1.0) == [expired("r1")]
    assert bench.cancel("r2", 1.0) == [cancelled("r2")]
    assert bench.listed("a", 2.0, "m") == []


def test_after_a_failure_a_backend_that_has_not_answered_is_waited_for() -> None:
    bench = Bench(C, A)
    bench.submit("r1")
    assert bench.wake(SETTLE_S) == [Start(1, "r1", "c")]
    assert bench.fail(1, 1.0) == []
    assert bench.listed("a", 1.5, "m") == [Start(2, "r1", "a")]


def test_after_a_failure_and_no_list_that_helps_the_failure_is_told() -> None:
    bench = Bench(C, A)
    bench.submit("r1")
    bench.wake(SETTLE_S)
    bench.fail(1, 1.0)
    assert bench.listed("a", 1.5, "x") == [failed("r1", FailureKind.ERROR, "c")]
