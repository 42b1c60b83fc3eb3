"""What a user of the backend model relies on, one fact at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.sim.backend import BackendModel
from agentsched.sim.calls import Call, CallId, Kind, Output, Refusal
from agentsched.sim.gauges import Gauges
from agentsched.sim.line import DEAD_ENTRIES
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

SPEED = Speed(step_s=0.02, prefill_s=0.0001, batch_slope=0.06, entry_s=0.001)


def run(model: BackendModel) -> list[Output]:
    """Play a model until nothing is left to happen."""
    outputs: list[Output] = []
    while (moment := model.next_at()) is not None:
        outputs += model.advance(moment)
        model.check()
    return outputs


def ends(outputs: list[Output]) -> dict[CallId, float]:
    return {output.call_id: output.at for output in outputs if output.kind is Kind.FINISHED}


def order(outputs: list[Output], kind: Kind) -> list[CallId]:
    return [output.call_id for output in outputs if output.kind is kind]


@given(
    prompt=st.integers(1, 6000),
    output=st.integers(0, 900),
    chunk=st.sampled_from([256, 512, 2048]),
    context_s=st.sampled_from([0.0, 2e-7]),
)
def test_a_call_alone_takes_the_closed_form(prompt: int, output: int, chunk: int, context_s: float) -> None:
    speed = Speed(step_s=0.02, prefill_s=0.0001, context_s=context_s, entry_s=0.004)
    model = BackendModel(BackendSpec(speed=speed, max_num_batched_tokens=chunk))
    model.submit(3.0, Call(call_id=0, prompt_tokens=prompt, output_tokens=output))
    done = ends(run(model))[0]
    assert done - 3.0 == pytest.approx(speed.alone_s(prompt, output, chunk_tokens=chunk), rel=1e-12)


@given(
    prompt=st.integers(1, 6000),
    output=st.integers(2, 900),
    context_s=st.sampled_from([0.0, 2e-7]),
    share=st.floats(0, 1),
    factor=st.sampled_from([1.0, 1.5, 2.0]),
)
def test_what_is_left_of_a_call_alone_takes_so_many_times_as_long(
    prompt: int, output: int, context_s: float, share: float, factor: float
) -> None:
    speed = Speed(step_s=0.02, prefill_s=0.0001, context_s=context_s, entry_s=0.004)
    model = BackendModel(BackendSpec(speed=speed))
    model.submit(3.0, Call(call_id=0, prompt_tokens=prompt, output_tokens=output))
    whole_s = speed.alone_s(prompt, output)
    slower_at = 3.0 + speed.entry_s + share * (whole_s - speed.entry_s) * 0.999
    model.slow_down(slower_at, factor)
    done = ends(run(model))[0]
    assert done - slower_at == pytest.approx(factor * (3.0 + whole_s - slower_at), rel=1e-9)


def test_tokens_come_at_the_new_pace_from_the_middle_of_a_step_on() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.submit(0.0, Call(call_id=0, prompt_tokens=100, output_tokens=5, report_every=1))
    first = 0.001 + 0.02 + 100 * 0.0001
    model.slow_down(first + 0.025, 2.0)  # the third token is a quarter done
    times = [o.at for o in run(model) if o.kind is not Kind.ADMITTED]
    assert times == pytest.approx([first, first + 0.02, first + 0.055, first + 0.095, first + 0.135])


def test_a_slower_engine_is_as_slow_to_those_who_come_later() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.slow_down(1.0, 2.0)
    model.submit(5.0, Call(call_id=0, prompt_tokens=100, output_tokens=11))
    assert ends(run(model))[0] == pytest.approx(5.0 + 0.001 + 2 * (100 * 0.0001 + 11 * 0.02))


def test_who_is_on_the_way_joins_the_first_of_the_slower_steps() -> None:
    model = BackendModel(BackendSpec(speed=Speed(step_s=0.02, prefill_s=0.0001, entry_s=0.05)))
    model.submit(0.0, Call(call_id="first", prompt_tokens=100, output_tokens=50))
    model.submit(0.081, Call(call_id="next", prompt_tokens=100, output_tokens=1))
    model.slow_down(0.085, 2.0)  # steps end at 0.08, and then at 0.115 and 0.155: the next is ready at 0.131
    admitted = {o.call_id: o.at for o in run(model) if o.kind is Kind.ADMITTED}
    assert admitted["next"] == pytest.approx(0.155)


@pytest.mark.parametrize("factor", [0.5, 0.0, -1.0, float("nan")])
def test_an_engine_only_slows_down(factor: float) -> None:
    with pytest.raises(ValueError, match="does not slow down"):
        BackendModel(BackendSpec(speed=SPEED)).slow_down(1.0, factor)


def test_every_token_of_a_call_alone_comes_one_step_after_the_last() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.submit(0.0, Call(call_id=0, prompt_tokens=100, output_tokens=5, report_every=1))
    times = [o.at for o in run(model) if o.kind is not Kind.ADMITTED]
    first = 0.001 + 0.02 + 100 * 0.0001
    assert times == pytest.approx([first + step * 0.02 for step in range(5)])


def test_a_batch_slows_its_members_by_the_slope() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    for call_id in range(4):
        model.submit(0.0, Call(call_id=call_id, prompt_tokens=10, output_tokens=11))
    step = 0.02 * (1 + 0.06 * 3)
    expected = 0.001 + (step + 40 * 0.0001) + 10 * step
    assert list(ends(run(model)).values()) == pytest.approx([expected] * 4)


def test_a_prefill_slows_the_decodes_of_its_step() -> None:
    def end_of_first(others_prompt: int) -> float:
        model = BackendModel(BackendSpec(speed=SPEED))
        model.submit(0.0, Call(call_id="first", prompt_tokens=10, output_tokens=100))
        model.submit(0.5, Call(call_id="other", prompt_tokens=others_prompt, output_tokens=1))
        return ends(run(model))["first"]

    assert end_of_first(1500) - end_of_first(500) == pytest.approx(1000 * 0.0001)


def test_a_long_prompt_is_prefilled_in_chunks_beside_the_decodes() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, max_num_batched_tokens=512))
    model.submit(0.0, Call(call_id="first", prompt_tokens=10, output_tokens=50, report_every=1))
    model.submit(0.1, Call(call_id="long", prompt_tokens=2000, output_tokens=1))
    outputs = run(model)
    begun = next(o.at for o in outputs if o.kind is Kind.ADMITTED and o.call_id == "long")
    done = ends(outputs)["long"]
    beside = [o for o in outputs if o.call_id == "first" and begun < o.at <= done]
    assert len(beside) == 4  # ceil(2000 / 511): the decode takes one token of every step
    assert done - begun == pytest.approx(4 * 0.02 * 1.06 + 2000 * 0.0001)


def test_queued_calls_go_by_priority_then_arrival_and_running_ones_are_left_alone() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, max_num_seqs=1, scheduling="priority"))
    for call_id, priority in [("running", 9), ("low", 5), ("low too", 5), ("high", -5), ("middle", 0)]:
        model.submit(0.0 if call_id == "running" else 0.1, call(call_id, priority=priority))
    assert order(run(model), Kind.FINISHED) == ["running", "high", "middle", "low", "low too"]


def test_without_priority_scheduling_priority_is_ignored() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, max_num_seqs=1))
    for call_id, priority in [("a", 5), ("b", -5), ("c", 0)]:
        model.submit(0.0, call(call_id, priority=priority))
    assert order(run(model), Kind.FINISHED) == ["a", "b", "c"]


def call(call_id: CallId, *, priority: int = 0, prompt: int = 64, output: int = 20) -> Call:
    return Call(call_id=call_id, prompt_tokens=prompt, output_tokens=output, priority=priority)


def test_a_known_prefix_shortens_the_prefill_and_is_counted() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    blocks = tuple(range(62))
    first = Call(call_id="cold", prompt_tokens=1000, output_tokens=2, prompt_blocks=blocks)
    model.submit(0.0, first)
    cold = ends(run(model))["cold"]
    model.submit(10.0, Call(call_id="warm", prompt_tokens=1000, output_tokens=2, prompt_blocks=blocks))
    outputs = run(model)
    assert outputs[-1].cached_tokens == 62 * 16
    assert cold - (ends(outputs)["warm"] - 10.0) == pytest.approx(62 * 16 * 0.0001)
    assert (model.counters.prefix_queries, model.counters.prefix_hits) == (2000, 992)


def test_a_prompt_known_to_its_end_still_computes_one_token() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    for call_id in range(2):
        model.submit(
            call_id, Call(call_id=call_id, prompt_tokens=64, output_tokens=1, prompt_blocks=(1, 2, 3, 4))
        )
        outputs = run(model)
    assert outputs[-1].cached_tokens == 48


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    for call_id in range(3):
        model.submit(
            0.0, Call(call_id=call_id, prompt_tokens=100, output_tokens=1, prompt_blocks=tuple(range(6)))
        )
    cached = [o.cached_tokens for o in run(model) if o.kind is Kind.FINISHED]
    assert cached == [0, 96, 96]


def test_generated_blocks_are_found_by_a_call_that_goes_on_from_them() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.submit(
        0.0, Call(call_id=0, prompt_tokens=20, output_tokens=60, prompt_blocks=(1,), output_blocks=(2, 3, 4))
    )
    model.advance(0.001 + 0.02 + 20 * 0.0001 + 30 * 0.02 + 1e-9)
    assert model.tokens(0) == 31
    model.abort(model.now, 0)
    run(model)
    model.submit(5.0, Call(call_id=1, prompt_tokens=51, output_tokens=1, prompt_blocks=(1, 2, 3)))
    assert run(model)[-1].cached_tokens == 48


def test_other_salt_other_blocks_no_hits() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, prefix_cache=False))
    for call_id in range(2):
        model.submit(
            call_id, Call(call_id=call_id, prompt_tokens=64, output_tokens=1, prompt_blocks=(1, 2, 3, 4))
        )
        outputs = run(model)
    assert outputs[-1].cached_tokens == 0
    assert model.counters.prefix_queries == 0


def test_old_blocks_make_way_for_new_ones() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, kv_blocks=8))
    for number, start in enumerate((0, 100, 200, 0)):
        blocks = tuple(range(start, start + 4))
        model.submit(number, Call(call_id=number, prompt_tokens=65, output_tokens=1, prompt_blocks=blocks))
        outputs = run(model)
    assert outputs[-1].cached_tokens == 0


def test_short_memory_preempts_the_latest_and_all_still_finish() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, kv_blocks=10))
    for call_id in range(3):
        model.submit(call_id * 0.01, call(call_id, prompt=48, output=60))
    outputs = run(model)
    assert order(outputs, Kind.PREEMPTED)[0] == 2
    assert 0 not in order(outputs, Kind.PREEMPTED)  # the first in line always goes on
    assert model.counters.preemptions == len(order(outputs, Kind.PREEMPTED)) > 0
    assert order(outputs, Kind.FINISHED) == [0, 1, 2]
    firsts = order(outputs, Kind.FIRST_TOKEN)
    assert sorted(firsts, key=str) == [0, 1, 2]  # once each: what was said isn't said again


def test_short_memory_preempts_the_lowest_priority_where_the_engine_looks_at_it() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, kv_blocks=10, scheduling="priority"))
    model.submit(0.0, call("low", prompt=48, output=60, priority=5))
    model.submit(0.01, call("high", prompt=48, output=60, priority=-5))
    outputs = run(model)
    assert set(order(outputs, Kind.PREEMPTED)) == {"low"}
    assert order(outputs, Kind.FINISHED) == ["high", "low"]


def test_a_call_that_cannot_be_held_is_refused_and_leaves_no_trace() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, kv_blocks=10, max_model_len=400, max_queued=1))
    assert model.submit(0.0, call("a", prompt=150, output=11)) is Refusal.EXCEEDS_KV
    assert model.submit(0.0, call("b", prompt=390, output=11)) is Refusal.TOO_LONG
    assert model.submit(0.0, call("c", prompt=150, output=10)) is None
    assert model.submit(0.0, call("d", prompt=1, output=1)) is Refusal.QUEUE_FULL
    assert order(run(model), Kind.FINISHED) == ["c"]
    assert model.counters.refused == {"exceeds_kv": 1, "too_long": 1, "queue_full": 1}


@pytest.mark.parametrize("at", [0.0005, 0.01, 0.5], ids=["waiting", "in prefill", "in decode"])
def test_an_aborted_call_ends_at_once_and_frees_its_room_after_the_step(at: float) -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.submit(0.0, call(0, prompt=400, output=1000))
    assert model.abort(at, 0) is not None
    assert model.abort(at, 0) is None
    last = model.advance(at)[-1]
    assert (last.kind, last.at) == (Kind.ABORTED, at)
    model.advance(at + 0.07)
    assert model.gauges() == Gauges(running=0, waiting=0, kv_usage=0.0)
    assert model.next_at() is None
    model.check()


def test_aborting_one_of_many_prefills_lets_the_others_go_on() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, max_num_batched_tokens=256))
    model.submit(0.0, call("long", prompt=4000, output=1))
    model.submit(0.0, call("short", prompt=100, output=1))
    model.abort(0.1, "long")
    done = ends(run(model))["short"]
    assert done < 0.2  # the chunk in hand, then its own; the whole prefill would have taken 0.7 s


def test_the_line_forgets_the_many_that_died_in_it() -> None:
    model = BackendModel(BackendSpec(speed=SPEED, max_num_seqs=1))
    model.submit(0.0, call("running", output=5000))
    for call_id in range(1000):
        model.submit(1.0, call(call_id))
    model.submit(1.0, call("survivor"))
    model.advance(2.0)
    for call_id in range(1000):
        model.abort(2.0, call_id)
    assert model.gauges().waiting == 1
    assert len(model._line) <= DEAD_ENTRIES + 1
    model.abort(3.0, "running")
    assert ends(run(model))["survivor"] < 4.0


def test_a_long_decode_costs_a_handful_of_events() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    for call_id in range(16):
        model.submit(0.0, call(call_id, output=4000))
    events = 0
    while (moment := model.next_at()) is not None:
        model.advance(moment)
        events += 1
    assert events <= 4
    assert model.counters.steps == 4000


def test_time_runs_forwards_and_ids_are_used_once_at_a_time() -> None:
    model = BackendModel(BackendSpec(speed=SPEED))
    model.submit(1.0, call(0))
    with pytest.raises(ValueError, match="in use"):
        model.submit(1.0, call(0))
    with pytest.raises(ValueError, match="backwards"):
        model.advance(0.5)


@pytest.mark.parametrize(
    "bad", [{"step_s": 0.0}, {"entry_s": 0.0}, {"prefill_s": -1.0}, {"step_s": float("nan")}]
)
def test_a_speed_under_which_time_stands_still_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        Speed(**bad)
