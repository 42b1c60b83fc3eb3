"""The backend model against a plain step-by-step engine, and against itself looked at in other rhythms."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.sim.backend import BackendModel
from agentsched.sim.calls import Call, Kind, Output
from agentsched.sim.gauges import Gauges
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from tests.sim.reference import ReferenceEngine

TICK_S = 0.0135713
"""Odd on purpose, as all times here: an arrival at the very end of a step is a tie that rounding decides."""

Script = list[tuple[float, str, object]]

speeds = st.builds(
    Speed,
    step_s=st.sampled_from([0.010173, 0.0203319]),
    prefill_s=st.sampled_from([0.0, 0.000103]),
    batch_slope=st.sampled_from([0.0, 0.0613]),
    context_s=st.sampled_from([0.0, 1.07e-6]),
    entry_s=st.sampled_from([0.00107, 0.03137]),
)

specs = st.builds(
    BackendSpec,
    speed=speeds,
    max_num_seqs=st.sampled_from([1, 2, 4, 8]),
    max_num_batched_tokens=st.sampled_from([8, 16, 64, 2048]),
    kv_blocks=st.sampled_from([8, 12, 30, 500]),
    block_tokens=st.sampled_from([4, 16]),
    scheduling=st.sampled_from(["fcfs", "priority"]),
    prefix_cache=st.booleans(),
)


@st.composite
def calls(draw: st.DrawFn, spec: BackendSpec, call_id: int) -> Call:
    width = spec.block_tokens
    prompt = draw(st.integers(1, 5 * width))
    output = draw(st.integers(0, min(3 * width, spec.kv_blocks * width - prompt)))
    stream = draw(st.integers(0, 2)) * 1000  # equal streams share their prefixes
    known = draw(st.sampled_from(["all", "first", "none"]))
    blocks = tuple(range(stream, stream + prompt // width))
    return Call(
        call_id=call_id,
        prompt_tokens=prompt,
        output_tokens=output,
        priority=draw(st.integers(-1, 1)),
        prompt_blocks={"all": blocks, "first": blocks[:1], "none": ()}[known],
        output_blocks=tuple(range(stream + prompt // width, stream + (prompt + output) // width))
        if known == "all"
        else (),
        report_every=draw(st.sampled_from([0, 1, 3])),
    )


@st.composite
def scenes(draw: st.DrawFn) -> tuple[BackendSpec, Script]:
    """Draw an engine, who comes and goes when, and when it becomes slower."""
    spec = draw(specs)
    script: Script = []
    at = 0.0
    for call_id in range(draw(st.integers(1, 12))):
        at += TICK_S * draw(st.sampled_from([0, 0, 1, 2, 7, 40]))
        script.append((at, "submit", draw(calls(spec, call_id))))
        if draw(st.integers(0, 3)) == 0:
            script.append((at + TICK_S * draw(st.floats(0.01, 60)), "abort", call_id))
    for _ in range(draw(st.integers(0, 2))):
        script.append((TICK_S * draw(st.floats(0.01, 90)), "slow", draw(st.sampled_from([1.0, 1.37, 2.0]))))
    return spec, sorted(script, key=lambda entry: entry[0])


def act(model: BackendModel, at: float, verb: str, what: object) -> None:
    if verb == "slow":
        assert isinstance(what, float)
        model.slow_down(at, what)
    elif isinstance(what, Call):
        assert model.submit(at, what) is None
    else:
        assert isinstance(what, int)
        model.abort(at, what)


def play(
    spec: BackendSpec, script: Script, looks: list[float] | None = None
) -> tuple[BackendModel, list[Output]]:
    """Play a script at the model's own times, and at `looks`, shares of the time to the next event, too."""
    model, outputs = BackendModel(spec), list[Output]()
    rhythm = iter(looks or [])

    def until(moment: float) -> None:
        while (event := model.next_at()) is not None and event < moment:
            for share in rhythm:
                outputs.extend(model.advance(min(model.now + (event - model.now) * share, event)))
                model.check()
                if share > 0.5:
                    break
            outputs.extend(model.advance(event))
            model.check()

    for entry in script:
        until(entry[0])
        act(model, *entry)
        model.check()
    until(float("inf"))
    return model, outputs


def said(output: Output) -> tuple[object, ...]:
    return (output.kind, output.call_id, output.tokens, output.cached_tokens)


@given(scenes())
def test_it_does_what_a_step_by_step_engine_does(scene: tuple[BackendSpec, Script]) -> None:
    spec, script = scene
    _, outputs = play(spec, script)
    expected = ReferenceEngine(spec).play(script)
    assert [said(output) for output in outputs] == [(kind, *rest) for kind, _, *rest in expected]
    assert [output.at for output in outputs] == pytest.approx([at for _, at, *_ in expected], abs=1e-9)


@given(scenes(), st.lists(st.floats(0, 1), max_size=200))
def test_looking_more_often_changes_nothing(scene: tuple[BackendSpec, Script], looks: list[float]) -> None:
    spec, script = scene
    quiet, expected = play(spec, script)
    watched, outputs = play(spec, script, looks)
    assert outputs == expected  # times too, to the last bit
    assert watched.counters.steps == quiet.counters.steps
    assert watched.counters.preemptions == quiet.counters.preemptions
    assert watched.counters.end_to_end.counts == quiet.counters.end_to_end.counts


@given(scenes())
def test_one_jump_to_the_end_says_the_same(scene: tuple[BackendSpec, Script]) -> None:
    spec, script = scene
    _, expected = play(spec, script)
    model = BackendModel(spec)
    for entry in script:
        act(model, *entry)
    assert model.advance(1e6) == expected


@given(scenes())
def test_every_call_ends_exactly_once_and_leaves_nothing_behind(scene: tuple[BackendSpec, Script]) -> None:
    spec, script = scene
    model, outputs = play(spec, script)
    submitted = {what.call_id: what for _, _, what in script if isinstance(what, Call)}
    ends = Counter(o.call_id for o in outputs if o.kind in (Kind.FINISHED, Kind.ABORTED))
    assert ends == Counter(list(submitted))
    for output in outputs:
        if output.kind is Kind.FINISHED:
            assert output.tokens == submitted[output.call_id].output_tokens
    assert model.gauges() == Gauges(running=0, waiting=0, kv_usage=0.0)
    assert model.next_at() is None
    counters = model.counters
    assert counters.finished + counters.aborted == len(submitted)
    assert model.generated() == sum(o.tokens for o in outputs if o.kind in (Kind.FINISHED, Kind.ABORTED))


@given(scenes())
def test_reports_change_nothing_else_and_come_at_their_multiples(scene: tuple[BackendSpec, Script]) -> None:
    spec, script = scene
    _, outputs = play(spec, script)
    silent = [
        (at, verb, Call(**{name: getattr(what, name) for name in Call.__slots__} | {"report_every": 0}))
        if isinstance(what, Call)
        else (at, verb, what)
        for at, verb, what in script
    ]
    _, others = play(spec, silent)
    assert [o for o in outputs if o.kind is not Kind.PROGRESS] == others
    every = {what.call_id: what.report_every for _, _, what in script if isinstance(what, Call)}
    for output in outputs:
        if output.kind is Kind.PROGRESS:
            assert output.tokens % every[output.call_id] == 0
