"""The LiteLLM Router as a contender: its decisions are its own, its time is virtual, nothing gets lost."""

import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

import pytest

from agentsched import Backend, Policy
from agentsched.model import Outcome
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import CallRow, Player
from agentsched.sim.prompt import Piece, tokens_of
from agentsched.sim.report import figures, unloaded_s
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

pytestmark = pytest.mark.filterwarnings("ignore:.* using the `ReadOnly` qualifier:UserWarning")
litellm: Any = pytest.importorskip("litellm")
from benchmarks.policy import litellm_router  # noqa: E402  after the package is known to be there
from benchmarks.policy.litellm_router import STRATEGIES, play  # noqa: E402

QUICK = BackendSpec(speed=Speed(step_s=0.01, prefill_s=0.0001, entry_s=0.002), prefix_cache=False)
SLOW = BackendSpec(speed=Speed(step_s=0.03, prefill_s=0.0003, entry_s=0.006), prefix_cache=False)
TWINS = {"a": QUICK, "b": QUICK}
UNEQUAL = {"slow": SLOW, "quick": QUICK}


def one(input_tokens: int = 50, output_tokens: int = 20, **options: Any) -> Plan:
    return Plan(nodes=(Node(input_tokens=input_tokens, output_tokens=output_tokens),), **options)


def every(gap_s: float, count: int, plan: Plan | None = None) -> list[tuple[float, Plan]]:
    return [(number * gap_s, plan or one()) for number in range(count)]


def chosen(calls: Sequence[CallRow]) -> list[str | None]:
    return [call.backend for call in calls]


def told(calls: Sequence[CallRow]) -> list[tuple[Any, ...]]:
    return [
        (
            row.run.query.id,
            row.number,
            row.submitted_at,
            row.started_at,
            row.ended_at,
            row.backend,
            row.outcome,
        )
        for row in calls
    ]


def in_player(fleet: Mapping[str, BackendSpec], arrivals: Sequence[tuple[float, Plan]]) -> Player:
    backends = [
        (Backend(f"http://{name}.test/v1", name=name, models=["m"]), BatchServer(spec))
        for name, spec in fleet.items()
    ]
    player = Player(backends, policy=Policy.fcfs())
    for at, plan in arrivals:
        player.arrive(at, plan)
    player.run()
    return player


def test_shuffle_gives_equal_shares() -> None:
    _, calls, _ = play("simple-shuffle", TWINS, every(1.0, 60), seed=1)
    assert 20 <= Counter(chosen(calls))["a"] <= 40


def test_least_busy_looks_at_outstanding_calls() -> None:
    long, short = one(output_tokens=1000), one(output_tokens=2)
    arrivals = [(0.0, long), (0.0, long), (0.0, long), *((1.0 + number, short) for number in range(10))]
    _, calls, _ = play("least-busy", TWINS, arrivals, seed=1)
    assert Counter(chosen(calls[:2])) == {"a": 1, "b": 1}
    busier = calls[2].backend
    assert set(chosen(calls[3:])) == {"a", "b"} - {busier}


def test_latency_based_sees_virtual_latencies() -> None:
    _, calls, _ = play("latency-based-routing", UNEQUAL, every(5.0, 25), seed=1)
    assert Counter(chosen(calls))["quick"] >= 23
    swapped = {"quick": SLOW, "slow": QUICK}
    _, calls, _ = play("latency-based-routing", swapped, every(5.0, 25), seed=1)
    assert Counter(chosen(calls))["slow"] >= 23


def test_latencies_are_forgotten_in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the strategy has learnt is a second per thirty tokens, and counts for an hour."""
    seen: list[dict[str, Any]] = []
    handler = litellm_router.importlib.import_module("litellm.router_strategy.lowest_latency")
    kind = handler.LowestLatencyLoggingHandler
    decide = kind._get_available_deployments

    def spy(self: Any, *args: Any, **options: Any) -> Any:
        found = args[5] if len(args) > 5 else options["request_count_dict"]
        seen.append({key: list(row.get("latency_normalized", [])) for key, row in found.items()})
        return decide(self, *args, **options)

    monkeypatch.setattr(kind, "_get_available_deployments", spy)
    _, calls, _ = play(
        "latency-based-routing", {"a": QUICK}, [(0.0, one()), (10.0, one()), (4000.0, one())], seed=1
    )
    latency_s = calls[0].ended_at - calls[0].submitted_at
    assert [list(row.values()) for row in seen] == [[], [[pytest.approx(latency_s / 20, abs=1e-6)]], []]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_plays_the_same(strategy: str) -> None:
    arrivals = every(0.05, 20)
    first, again = (told(play(strategy, UNEQUAL, arrivals, seed=7)[1]) for _ in range(2))
    assert first == again
    assert all(outcome is Outcome.COMPLETED for *_, outcome in first)


def test_another_seed_plays_another_way() -> None:
    shares = [chosen(play("simple-shuffle", TWINS, every(0.05, 20), seed=seed)[1]) for seed in (1, 2)]
    assert shares[0] != shares[1]


def test_a_plan_takes_as_long_as_in_a_player() -> None:
    nodes = (
        Node(input_tokens=5000, output_tokens=30),
        Node(input_tokens=100, output_tokens=60, after=(0,)),
        Node(input_tokens=70, output_tokens=5, after=(0,), delay_s=1.5),
        Node(input_tokens=3, output_tokens=9, after=(1, 2)),
    )
    arrivals = [(0.25, Plan(nodes=nodes)), (0.5, Plan(nodes=nodes)), (30.0, one(700, 90))]
    player = in_player({"a": QUICK}, arrivals)
    runs, calls, _ = play("least-busy", {"a": QUICK}, arrivals, seed=1)
    expected = {(row.run.query.id, row.number): row for row in player.calls}
    assert len(expected) == len(calls) == 9
    for call in calls:
        twin = expected[call.run.query.id, call.number]
        assert call.submitted_at == pytest.approx(twin.submitted_at, abs=1e-6)
        assert call.ended_at == pytest.approx(twin.ended_at, abs=1e-6)
    assert [run.ended_at for run in runs] == pytest.approx([run.ended_at for run in player.runs], abs=1e-6)


def test_its_figures_can_be_told() -> None:
    runs, calls, backends = play("least-busy", TWINS, every(0.3, 20, one(slo_s=100.0)), seed=1)
    found = figures(runs, calls, lambda plan: unloaded_s(plan, TWINS.values()))
    assert found["slo_share"] == found["upstream_calls"] == 1.0
    assert found["slowdown"] == pytest.approx(1.0, abs=0.2)
    assert all(not backend.live.model.gauges().running for backend in backends)


def test_prompts_have_their_length_and_share_their_beginning() -> None:
    spec = BackendSpec(speed=QUICK.speed, block_tokens=16)
    mark, template = Piece("<u>", 1), Piece("template", 200)
    plans: list[Plan] = []
    for question in ("first", "second"):
        pieces = (mark, template, Piece(question, 77))
        plans.append(Plan(nodes=(Node(input_tokens=tokens_of(pieces) + 2, output_tokens=11, pieces=pieces),)))
    _, _, (backend,) = play("simple-shuffle", {"a": spec}, [(0.0, plans[0]), (60.0, plans[1])], seed=1)
    assert [row.prompt_tokens for row in backend.calls] == [280, 280]
    assert [row.output_tokens for row in backend.calls] == [11, 11]
    assert [row.cached_tokens for row in backend.calls] == [0, 201 // 16 * 16]


def test_it_stops_when_the_first_have_ended() -> None:
    arrivals = [(0.0, one()), (0.1, one(output_tokens=4000)), (0.2, one()), *every(1.0, 100)]
    runs, calls, _ = play(
        "simple-shuffle", TWINS, sorted(arrivals, key=lambda row: row[0]), seed=1, until_done=1
    )
    assert runs[0].completed
    assert len(runs) < 10
    assert {call.outcome for call in calls} <= {Outcome.COMPLETED, None}


def test_a_refused_call_ends_its_query() -> None:
    nodes = (
        Node(input_tokens=50, output_tokens=500),
        Node(input_tokens=50_000),
        Node(after=(0,), input_tokens=9),
    )
    runs, calls, _ = play("simple-shuffle", TWINS, [(0.0, Plan(nodes=nodes)), (1.0, one())], seed=1)
    assert [call.outcome for call in calls] == [Outcome.CANCELLED, Outcome.FAILED, Outcome.COMPLETED]
    assert [run.completed for run in runs] == [False, True]
    assert [run.ended_at for run in runs] == [0.0, calls[2].ended_at]


def test_a_query_is_given_up_at_its_deadline() -> None:
    runs, calls, _ = play("least-busy", TWINS, [(1.0, one(output_tokens=900, timeout_s=2.0))], seed=1)
    assert calls[0].outcome is Outcome.EXPIRED
    assert runs[0].given_up
    assert runs[0].ended_at == pytest.approx(3.0)


def kept() -> list[str]:
    """Name what still holds a clock of ours by name."""
    return [
        f"{module}.{name}"
        for module, loaded in list(sys.modules.items())
        for name, found in list(vars(loaded).items())
        if isinstance(found, FunctionType | type) and found.__qualname__.startswith("_clocks.")
    ]


def test_all_is_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def state() -> list[Any]:
        clocks = [time.time, time.monotonic, time.perf_counter, litellm.utils.datetime]
        package = [
            litellm.aclient_session,
            litellm.callbacks,
            list(litellm.callbacks),
            litellm.success_callback,
        ]
        return [*clocks, *package, random.getstate()]

    before = state()
    play("least-busy", TWINS, every(1.0, 2), seed=1)
    assert state() == before
    assert not kept()

    def broken(*_: object) -> str:
        assert time.time() < litellm_router.EPOCH_S + 1.0
        raise LookupError

    monkeypatch.setattr(litellm_router, "prompt", broken)
    with pytest.raises(ExceptionGroup):
        play("least-busy", TWINS, every(1.0, 2), seed=1)
    assert state() == before
