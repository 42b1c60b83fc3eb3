"""Figures: what a query would take alone, and what cannot be said."""

from math import inf, isnan

from hypothesis import given
from hypothesis import strategies as st

from agentsched.model import Outcome, Query
from agentsched.sim.calls import Call
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import CallRow, Run
from agentsched.sim.report import METRICS, figures, room_tokens, takes, unloaded_s
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

FAST = BackendSpec(speed=Speed(step_s=0.01), max_model_len=1_000)
SLOW = BackendSpec(speed=Speed(step_s=0.05))
SHORT, LONG = Node(input_tokens=500, output_tokens=100), Node(input_tokens=5_000, output_tokens=100)


def test_engines_that_would_refuse_a_call_are_no_yardstick() -> None:
    assert unloaded_s(Plan(nodes=[SHORT]), [FAST, SLOW]) == FAST.alone_s(500, 100)
    assert unloaded_s(Plan(nodes=[LONG]), [FAST, SLOW]) == SLOW.alone_s(5_000, 100)
    assert unloaded_s(Plan(nodes=[LONG]), [FAST]) == inf
    tight = BackendSpec(speed=Speed(step_s=0.001), kv_blocks=10)
    assert unloaded_s(Plan(nodes=[SHORT]), iter([tight, FAST])) == FAST.alone_s(500, 100)


def test_engines_that_do_not_serve_a_call_are_no_yardstick() -> None:
    plan = Plan(
        nodes=[SHORT, Node(model="other", input_tokens=500, output_tokens=100, after=(0,), delay_s=1.0)]
    )
    serving = {"m": [FAST, SLOW], "other": [SLOW]}
    found = unloaded_s(plan, [FAST, SLOW], serving=lambda node: serving[node.model or ""])
    assert found == FAST.alone_s(500, 100) + 1.0 + SLOW.alone_s(500, 100)


@given(st.integers(1, 3_000), st.integers(0, 3_000), st.integers(1, 3_000), st.integers(1, 100))
def test_what_an_engine_has_room_for_is_what_it_takes(read: int, written: int, longest: int, kv: int) -> None:
    spec = BackendSpec(max_model_len=longest, kv_blocks=kv)
    call = Call(call_id=0, prompt_tokens=read, output_tokens=written)
    assert takes(spec, Node(input_tokens=read, output_tokens=written)) == (spec.refusal(call, 0) is None)
    assert room_tokens(spec) == min(longest, 16 * kv)


def run(arrived_at: float, ended_at: float, *, completed: bool = True) -> Run:
    plan = Plan(nodes=[Node()], slo_s=2.0)
    made = Run(plan, Query(id="q", workflow="w"), arrived_at)
    made.ended_at, made.completed = ended_at, completed
    return made


def of(*runs: Run) -> dict[str, float]:
    calls = [
        CallRow(one, 0, one.arrived_at, one.arrived_at, one.ended_at, "b", 1, Outcome.COMPLETED)
        for one in runs
    ]
    found = figures(runs, calls, lambda plan: 1.0)
    assert list(found) == list(METRICS)
    return found


def test_rates_are_of_completions_between_the_first_and_the_last_arrival() -> None:
    found = of(run(0.0, 1.0), run(1.0, 9.0), run(10.0, 11.0))
    assert (found["throughput"], found["goodput"]) == (0.2, 0.1)


def test_rates_that_say_nothing_are_no_numbers() -> None:
    for runs in ([run(1.0, 2.0)], [run(1.0, 2.0), run(1.0, 3.0)], [run(0.0, 5.0), run(1.0, 6.0)]):
        found = of(*runs)
        assert isnan(found["throughput"])
        assert isnan(found["goodput"])


def test_rates_of_a_fleet_that_completes_nothing_are_nought() -> None:
    found = of(run(0.0, 0.5, completed=False), run(1.0, 1.5, completed=False))
    assert (found["throughput"], found["goodput"], found["slowdown"]) == (0.0, 0.0, inf)


def test_a_query_that_nobody_could_have_answered_is_infinitely_slow() -> None:
    lost = run(0.0, 0.5, completed=False)
    assert figures([lost], [], lambda plan: inf)["slowdown"] == inf
