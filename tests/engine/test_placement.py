"""Where a call goes: least expected finish time, with what was learned of each backend."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest

from agentsched.engine.commands import Start
from agentsched.model import BackendLoad, Job
from agentsched.policy import Policy
from agentsched.predict.lengths import PRIOR_TOKENS
from agentsched.predict.speed import BATCH_SLOPE, PRIOR_DECODE_S, PRIOR_PREFILL_S, READ_SHARE
from tests.engine.bench import Bench, completed, fleet


def prices(bench: Bench, request_id: str) -> Mapping[str, float]:
    """Return what each backend with room was expected to need when the call was started last."""
    started = [entry for entry in bench.engine.story(request_id) if entry.what == "started"]
    return started[-1].facts["expected_cost_s"]  # type: ignore[return-value]


def taught(prefill_s: Mapping[str, float], decode_s: Mapping[str, float]) -> Bench:
    """Return a bench whose idle, unlimited backends have been measured once each: 100 tokens in, 101 out."""
    bench = Bench(*fleet(**{name: {} for name in prefill_s}))
    for attempt_id, name in enumerate(prefill_s, start=1):
        assert bench.submit(f"teach {name}", 0.0, input_tokens=100) == [
            Start(attempt_id, f"teach {name}", name)
        ]
    events: list[tuple[float, int, str]] = []
    for attempt_id, name in enumerate(prefill_s, start=1):
        first = 100 * prefill_s[name]
        events += [(first, attempt_id, "first"), (first + 100 * decode_s[name], attempt_id, "last")]
    for at, attempt_id, what in sorted(events):
        if what == "first":
            bench.progress(attempt_id, at, 1)
        else:
            bench.finish(attempt_id, at, output_tokens=101)
    return bench


def test_equal_backends_take_turns() -> None:
    bench = Bench(*fleet(a={}, b={}, c={}))
    where = [bench.submit(f"r{n}")[0].backend for n in range(6)]  # type: ignore[union-attr]
    assert where == ["a", "b", "c", "a", "b", "c"]


def test_idle_equals_take_turns_too() -> None:
    bench = Bench(*fleet(a={}, b={}))
    for number, backend in enumerate("abab", start=1):
        assert bench.submit(f"r{number}") == [Start(number, f"r{number}", backend)]
        bench.finish(number)


def test_the_price_is_reading_what_is_ahead_then_the_prompt_then_writing_and_what_others_lose() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1", input_tokens=1_000)
    bench.submit("r2", input_tokens=10, max_tokens=50)
    own = (1_000 + 10) * PRIOR_PREFILL_S + 50 * PRIOR_DECODE_S * (1 + BATCH_SLOPE)
    others = 10 * PRIOR_PREFILL_S + 50 * PRIOR_DECODE_S * BATCH_SLOPE
    busy = own + others
    idle = 10 * PRIOR_PREFILL_S + 50 * PRIOR_DECODE_S
    assert prices(bench, "r2") == {"a": pytest.approx(busy), "b": pytest.approx(idle)}


def test_a_prompt_that_was_read_is_no_longer_ahead() -> None:
    bench = Bench(*fleet(a={}, b={}))
    bench.submit("r1", input_tokens=1_000)
    bench.progress(1, 1.0, 0)
    assert bench.engine.backends["a"].unread_tokens == 1_000, "an answer's head is not a token"
    bench.progress(1, 1.0, 1)
    assert bench.engine.backends["a"].unread_tokens == 0
    bench.progress(1, 2.0, 2)
    assert bench.engine.backends["a"].unread_tokens == 0


def test_speeds_are_learned_from_the_times_of_tokens() -> None:
    bench = taught({"a": 0.01, "b": 0.001}, {"a": 0.1, "b": 0.01})
    speeds = {name: (row.speed.prefill_s, row.speed.decode_s) for name, row in bench.engine.backends.items()}
    assert speeds == {
        "a": (pytest.approx(0.01), pytest.approx(0.1)),
        "b": (pytest.approx(0.001), pytest.approx(0.01)),
    }


def test_the_learned_quicker_backend_gets_the_call() -> None:
    bench = taught({"a": 0.01, "b": 0.001}, {"a": 0.1, "b": 0.01})
    for number in range(3, 10):
        assert bench.submit(f"r{number}", 100.0) == [Start(number, f"r{number}", "b")]


def test_who_reads_fast_gets_long_prompts_and_who_writes_fast_long_answers() -> None:
    bench = taught({"reader": 0.001, "writer": 0.01}, {"reader": 0.1, "writer": 0.01})
    assert bench.submit("r3", 100.0, input_tokens=5_000, max_tokens=10) == [Start(3, "r3", "reader")]
    assert bench.submit("r4", 100.0, input_tokens=10, max_tokens=100) == [Start(4, "r4", "writer")]


def test_load_moves_calls_to_slower_backends_exactly_when_that_pays() -> None:
    prefill_s, decode_s = {"a": 0.002, "b": 0.001}, {"a": 0.02, "b": 0.01}
    bench = taught(prefill_s, decode_s)
    running, unread, chosen = {"a": 0, "b": 0}, {"a": 0, "b": 0}, []
    for number in range(3, 80):
        cost = {
            name: (unread[name] + 50) * prefill_s[name]
            + 101 * decode_s[name] * (1 + BATCH_SLOPE * running[name])
            + running[name] * decode_s[name] * (50 * READ_SHARE + 101 * BATCH_SLOPE)
            for name in running
        }
        best = min(cost, key=lambda name: cost[name])
        assert bench.submit(f"r{number}", 100.0, input_tokens=50) == [Start(number, f"r{number}", best)]
        assert prices(bench, f"r{number}") == pytest.approx(cost)
        running[best] += 1
        unread[best] += 50
        chosen.append(best)
    assert 10 < chosen.count("a") < chosen.count("b")


def test_a_full_backend_is_not_priced_and_nobody_waits_for_it() -> None:
    bench = Bench(
        *fleet(a={"max_concurrency": 1}, b={}),
        policy=Policy(cost=lambda _job, load: load.name == "b", patience=0),
    )
    assert bench.submit("r1") == [Start(1, "r1", "a")]
    assert bench.submit("r2") == [Start(2, "r2", "b")]
    assert prices(bench, "r1") == {"a": 0, "b": 1}
    assert prices(bench, "r2") == {"b": 1}


def test_what_was_never_measured_counts_as_the_mean_of_the_others() -> None:
    bench = Bench(*fleet(a={}, b={}, c={}))
    for attempt_id, (prefill_s, decode_s) in enumerate([(0.01, 0.1), (0.03, 0.3)], start=1):
        start = 100.0 * attempt_id
        bench.submit(f"r{attempt_id}", start, input_tokens=100)
        bench.progress(attempt_id, start + 100 * prefill_s, 1)
        bench.finish(attempt_id, start + 100 * prefill_s + 100 * decode_s, output_tokens=101)
    bench.submit("r3", 900.0, input_tokens=10, max_tokens=20)
    cost = {"a": 10 * 0.01 + 20 * 0.1, "b": 10 * 0.03 + 20 * 0.3, "c": 10 * 0.02 + 20 * 0.2}
    assert prices(bench, "r3") == pytest.approx(cost)


def test_what_was_measured_in_part_counts_as_the_others_for_the_rest() -> None:
    bench = taught({"a": 0.01}, {"a": 0.1})
    half = Bench(*fleet(a={}, b={}))
    half.engine.backends["a"].speed = bench.engine.backends["a"].speed
    half.engine.backends["b"].speed.observe_prefill(1_000, 3.0)
    half.submit("r1", 900.0, input_tokens=10, max_tokens=20)
    assert prices(half, "r1") == pytest.approx({"a": 10 * 0.01 + 20 * 0.1, "b": 10 * 0.003 + 20 * 0.1})


def test_queueing_behind_prompts_is_not_held_against_the_speed() -> None:
    """Two prompts are read one after the other: the second took both, and says so."""
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, input_tokens=1_000)
    bench.submit("r2", 0.0, input_tokens=3_000)
    bench.progress(1, 1.0, 1)
    bench.progress(2, 4.0, 1)
    assert bench.engine.backends["a"].speed.prefill_s == pytest.approx(0.001)


def test_connecting_is_not_held_against_the_speed() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0, input_tokens=1_000)
    bench.progress(1, 3.0, 1, connect_s=2.0)
    assert bench.engine.backends["a"].speed.prefill_s == pytest.approx(0.001)


def test_company_is_not_held_against_the_speed() -> None:
    """Two calls decode together at the pace of a batch of two; what is learned is the pace alone."""
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    bench.submit("r2", 0.0)
    bench.progress(1, 1.0, 1)
    bench.progress(2, 1.0, 1)
    pace = 0.05 * (1 + BATCH_SLOPE)  # the growth per call that is taken for granted until it is seen
    bench.finish(1, 1.0 + 100 * pace, output_tokens=101)
    assert bench.engine.backends["a"].speed.decode_s == pytest.approx(0.05, rel=1e-3)
    bench.finish(2, 1.0 + 100 * pace, output_tokens=101)
    assert bench.engine.backends["a"].speed.decode_s == pytest.approx(0.05, rel=1e-3)


def test_times_that_say_nothing_are_not_learned_but_lengths_are() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    bench.progress(1, 1.0, 1)
    bench.finish(1, 500.0, output_tokens=700, learn=False)
    assert bench.engine.backends["a"].speed.decode_s is None
    assert bench.engine.past.lengths.expected(("m", None, None), None) == 700


def test_an_empty_answer_says_nothing_about_lengths() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    bench.finish(1, 1.0, output_tokens=0)
    assert len(bench.engine.past.lengths) == 0


def test_an_answer_that_came_at_once_teaches_no_pace() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    bench.finish(1, 5.0, output_tokens=100)
    assert (bench.engine.backends["a"].speed.prefill_s, bench.engine.backends["a"].speed.decode_s) == (
        None,
        None,
    )


def test_lengths_are_learned_per_step() -> None:
    seen: list[Job] = []

    def note(job: Job, _load: BackendLoad) -> float:
        seen.append(job)
        return 0.0

    bench = Bench(*fleet(a={}), policy=Policy(cost=note))
    bench.submit("r1", step="draft", workflow="w")
    bench.finish(1, 1.0, output_tokens=40)
    bench.submit("r2", step="draft", workflow="w")
    bench.submit("r3", step="judge", workflow="w")
    bench.submit("r4", step="draft", workflow="v")
    assert [job.output_tokens for job in seen] == [PRIOR_TOKENS, 40, PRIOR_TOKENS, PRIOR_TOKENS]


def test_where_the_backend_counts_nothing_the_stream_is_counted() -> None:
    bench = Bench(*fleet(a={}))
    bench.submit("r1")
    bench.progress(1, 1.0, 1)
    bench.progress(1, 2.0, 33)
    bench.progress(1, 3.0, 31)  # an estimate that was too high before
    bench.finish(1, 4.0)
    assert bench.engine.past.lengths.expected(("m", None, None), None) == 33


@pytest.mark.parametrize("bad", [nan, inf, None, "cheap"])
def test_a_price_that_is_no_number_loses(bad: Any) -> None:
    bench = Bench(*fleet(a={}, b={}), policy=Policy(cost=lambda _job, load: bad if load.name == "a" else 1e9))
    assert bench.submit("r1") == [Start(1, "r1", "b")]
    assert prices(bench, "r1") == {"a": inf, "b": 1e9}


def test_a_price_that_raises_loses_and_harms_nobody() -> None:
    def cost(job: Job, load: BackendLoad) -> float:
        return 1.0 if load.name == "b" or job.step is None else 1 / 0

    bench = Bench(
        *fleet(a={"max_concurrency": 1}, b={"max_concurrency": 1}), policy=Policy(cost=cost, patience=0)
    )
    assert bench.submit("r1", step="hard") == [Start(1, "r1", "b")]
    assert bench.submit("r2", step="hard") == [Start(2, "r2", "a")], "the last choice is a choice"
    assert bench.submit("r3", step="hard") == []
    assert bench.finish(2) == [completed("r2", "a"), Start(3, "r3", "a")]


def test_a_changing_batch_is_averaged_over_time() -> None:
    """Alone for 5 s, by two for 2 s, alone for 3 s: 12 call-seconds in 10 s."""
    bench = Bench(*fleet(a={}))
    bench.submit("r1", 0.0)
    bench.progress(1, 1.0, 1)
    bench.submit("r2", 6.0)
    bench.cancel("r2", 8.0)
    bench.finish(1, 11.0, output_tokens=101)
    alone = 10.0 / 100 / (1 + BATCH_SLOPE * 0.2)
    assert bench.engine.backends["a"].speed.decode_s == pytest.approx(alone)


def test_the_policy_sees_the_load() -> None:
    seen: list[BackendLoad] = []

    def note(_job: Job, load: BackendLoad) -> float:
        seen.append(load)
        return 0.0

    bench = Bench(*fleet(a={}), policy=Policy(cost=note))
    bench.submit("r1", input_tokens=30)
    bench.submit("r2", input_tokens=5)
    assert seen == [
        BackendLoad(
            name="a",
            running=running,
            unread_tokens=unread,
            cached_tokens=0,
            entry_s=0.0,
            prefill_s=PRIOR_PREFILL_S,
            decode_s=pytest.approx(PRIOR_DECODE_S * factor),  # type: ignore[arg-type]
            batch_s=PRIOR_DECODE_S * BATCH_SLOPE,
            read_s=PRIOR_PREFILL_S,
        )
        for running, unread, factor in [(0, 0, 1.0), (1, 30, 1.0 + BATCH_SLOPE)]
    ]
