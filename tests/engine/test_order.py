"""Which call goes first, and that nothing is bound to a backend before that backend has room."""

from math import inf, nan

import pytest

from agentsched.engine.commands import Start
from agentsched.errors import UsageError
from agentsched.model import Backend, FailureKind, Job, Reason
from agentsched.policy import Policy
from tests.engine.bench import Bench, completed, failed, fleet, rejected


def starts(bench: Bench, *attempts: int) -> list[str]:
    """Finish the attempts one after another; return who was started by that."""
    found: list[str] = []
    for attempt_id in attempts:
        found += [command.request_id for command in bench.finish(attempt_id) if isinstance(command, Start)]
    return found


def test_a_call_starts_at_once_where_there_is_room() -> None:
    bench = Bench(*fleet(a={}))
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.finish(1) == [completed("r1", "a")]


def test_without_limits_nothing_waits() -> None:
    bench = Bench(*fleet(a={}))
    for number in range(1, 500):
        assert bench.submit(f"r{number}") == [Start(number, f"r{number}", "a")]


def test_first_come_first_served() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}))
    assert bench.submit("r1", 0.0) == [Start(1, "r1", "a")]
    for number in range(2, 6):
        assert bench.submit(f"r{number}", float(number)) == []
    assert starts(bench, 1, 2, 3, 4) == ["r2", "r3", "r4", "r5"]


def test_calls_of_one_instant_are_served_as_they_came() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}))
    for number in range(1, 6):
        bench.submit(f"r{number}", 1.0)
    assert starts(bench, 1, 2, 3, 4) == ["r2", "r3", "r4", "r5"]


def test_priority_goes_before_arrival() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}))
    bench.submit("running", 0.0)
    for at, (name, priority) in enumerate(
        [("low", -1), ("normal", 0), ("high", 5), ("high too", 5), ("top", 9)]
    ):
        assert bench.submit(name, float(at), priority=priority) == []
    assert starts(bench, 1, 2, 3, 4, 5) == ["top", "high", "high too", "normal", "low"]


def test_nobody_who_runs_is_put_aside_for_priority() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}))
    bench.submit("running")
    assert bench.submit("top", priority=100) == []


def test_limits_hold_per_backend() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 2}))
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.submit("r2") == [Start(2, "r2", "b")]
    assert bench.submit("r3") == [Start(3, "r3", "b")]
    assert bench.submit("r4") == []
    assert bench.submit("r5") == []
    assert {name: len(row.running) for name, row in bench.engine.backends.items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize("first", [1, 2])
def test_a_waiting_call_goes_to_whichever_backend_frees_first(first: int) -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}))
    bench.submit("r1")
    bench.submit("r2")
    bench.submit("r3")
    where, ended = {1: ("a", "r1"), 2: ("b", "r2")}[first]
    assert bench.finish(first) == [completed(ended, where), Start(3, "r3", where)]


def test_a_full_backend_holds_up_only_those_who_need_it() -> None:
    bench = Bench(
        Backend("http://a/v1", name="a", models=["x"], max_concurrency=1),
        Backend("http://b/v1", name="b", models=["y"], max_concurrency=1),
    )
    assert bench.submit("r1", model="x") == [Start(1, "r1", "a")]
    assert bench.submit("r2", model="x", priority=9) == []
    assert bench.submit("r3", model="y") == [Start(2, "r3", "b")]


def test_room_goes_to_the_best_ranked_of_all_who_may_use_it() -> None:
    bench = Bench(
        Backend("http://a/v1", name="a", models=["x", "y"], max_concurrency=1),
        Backend("http://b/v1", name="b", models=["y"], max_concurrency=1),
    )
    bench.submit("r1", 0.0, model="x")
    bench.submit("r2", 1.0, model="y")
    bench.submit("only a", 2.0, model="x")
    bench.submit("any", 3.0, model="y")
    bench.submit("later", 4.0, model="x")
    assert bench.finish(1, 5.0) == [completed("r1", "a"), Start(3, "only a", "a")]
    assert bench.finish(3, 6.0) == [completed("only a", "a"), Start(4, "any", "a")]
    assert bench.finish(2, 7.0) == [completed("r2", "b")]
    assert bench.finish(4, 8.0) == [completed("any", "a"), Start(5, "later", "a")]


# -- the policy's part -------------------------------------------------------------------------------------


def shortest_first(job: Job) -> float:
    return job.output_tokens


def test_the_policy_ranks_calls_of_equal_priority() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}), policy=Policy(rank=shortest_first))
    bench.submit("running")
    bench.submit("long", max_tokens=200)
    bench.submit("short", max_tokens=5)
    bench.submit("urgent", max_tokens=250, priority=1)
    bench.submit("short too", max_tokens=5)
    assert starts(bench, 1, 2, 3, 4) == ["urgent", "short", "short too", "long"]


def test_the_policy_sees_what_is_known() -> None:
    seen: list[Job] = []

    def look(job: Job) -> float:
        seen.append(job)
        return 0.0

    bench = Bench(*fleet(a={}), policy=Policy(rank=look))
    facts = {"workflow": "w", "step": "s", "tenant": "t", "priority": 3, "deadline": 99.0, "slo_at": 50.0}
    bench.submit("r1", 7.0, input_tokens=40, max_tokens=20, **facts)
    (job,) = seen
    facts |= {
        "id": "r1",
        "query": None,
        "model": "m",
        "submitted_at": 7.0,
        "input_tokens": 40,
        "output_tokens": 20.0,
    }
    assert {name: getattr(job, name) for name in facts} == facts


@pytest.mark.parametrize("rank", [inf, -inf])
def test_first_and_last_are_ranks_too(rank: float) -> None:
    ranks = {"x": rank, None: 0.0}
    bench = Bench(*fleet(a={"max_concurrency": 1}), policy=Policy(rank=lambda job: ranks[job.step]))
    bench.submit("running")
    bench.submit("other")
    bench.submit("extreme", step="x")
    assert starts(bench, 1, 2) == (["other", "extreme"] if rank > 0 else ["extreme", "other"])


def test_a_rank_that_is_no_number_is_the_policys_fault_and_leaves_no_trace() -> None:
    bench = Bench(*fleet(a={}), policy=Policy(rank=lambda job: nan if job.step == "bad" else 0.0))
    with pytest.raises(UsageError, match="returned NaN"):
        bench.submit("r1", step="bad")
    bench.engine.check()
    assert bench.engine.requests == {}
    assert bench.engine.story("r1") == ()
    assert bench.submit("r1") == [Start(1, "r1", "a")]


def test_a_rank_that_raises_leaves_no_trace_either() -> None:
    bench = Bench(*fleet(a={}), policy=Policy(rank=lambda job: 1 / job.priority))
    with pytest.raises(UsageError, match="ZeroDivisionError"):
        bench.submit("r1")
    bench.engine.check()
    assert bench.engine.requests == {}
    assert bench.submit("r1", priority=1) == [Start(1, "r1", "a")]


# -- how many may wait -------------------------------------------------------------------------------------


def test_one_more_than_may_wait_is_rejected() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}), max_queued=2)
    bench.submit("r1")
    assert bench.submit("r2") == []
    assert bench.submit("r3") == []
    assert bench.submit("r4") == [rejected("r4", Reason.QUEUE_FULL)]
    assert bench.submit("r5", priority=9) == [rejected("r5", Reason.QUEUE_FULL)]
    assert starts(bench, 1) == ["r2"]
    assert bench.submit("r6") == []


def test_where_none_may_wait_calls_start_or_are_rejected() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}), max_queued=0)
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.submit("r2") == [rejected("r2", Reason.QUEUE_FULL)]
    bench.finish(1)
    assert bench.submit("r3") == [Start(2, "r3", "a")]


def test_a_call_that_was_let_in_waits_for_another_backend_whatever_the_bound() -> None:
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}), max_queued=0)
    bench.submit("r1")
    bench.submit("r2")
    assert bench.fail(1) == []
    assert bench.submit("r3") == [Start(3, "r3", "a")]
    assert bench.finish(2) == [completed("r2", "b"), Start(4, "r1", "b")]
    assert bench.fail(4) == [failed("r1", FailureKind.ERROR, "b", 2)]
