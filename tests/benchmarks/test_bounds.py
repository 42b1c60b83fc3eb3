"""Lower bounds are below all that can be done: brute force on small instances, and every contender on real ones."""

from itertools import permutations
from random import Random

import pytest
from benchmarks.policy.bounds import Own, bounds, srpt_mean_s
from hypothesis import given
from hypothesis import strategies as st

from agentsched import Backend, Policy
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import Player
from agentsched.sim.prompt import Piece, blocks_of
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

JOBS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=5)


@given(JOBS)
def test_srpt_is_the_best_of_all_orders_slot_by_slot(jobs: list[tuple[int, int]]) -> None:
    """With whole numbers, preemptive schedules are priority lists over unit slots; the best list is found by trying."""
    jobs = sorted(jobs)
    best = min(total(jobs, order) for order in permutations(range(len(jobs))))
    found = srpt_mean_s([(float(at), float(work)) for at, work in jobs]) * len(jobs)
    assert found <= best + 1e-9


def total(jobs: list[tuple[int, int]], order: tuple[int, ...]) -> int:
    """Return the sum of times in system if the first of the order that is there has each slot."""
    left = [work for _, work in jobs]
    now = flow = 0
    while any(left):
        now += 1
        for job in order:
            if left[job] and jobs[job][0] < now:
                left[job] -= 1
                if not left[job]:
                    flow += now - jobs[job][0]
                break
    return flow


def test_srpt_of_a_known_case() -> None:
    # 0-2 first job, 2-3 the short one, 3-6 the rest: (6 - 0) + (3 - 2) over two jobs
    assert srpt_mean_s([(0.0, 5.0), (2.0, 1.0)]) == pytest.approx(3.5)
    assert srpt_mean_s([(0.0, 5.0), (2.0, 1.0)], speed=2.0) == pytest.approx((3.0 + 0.5) / 2)


def own(arrivals: list[tuple[float, Plan]], *, fused: bool = False) -> Own:
    return Own([plan for _, plan in arrivals], fused=fused)


def random_plan(dice: Random) -> Plan:
    shared = Piece("template", dice.randint(1, 300))
    nodes: list[Node] = []
    for number in range(dice.randint(1, 5)):
        own = Piece(f"own {dice.random()}", dice.randint(1, 400))
        nodes.append(
            Node(
                after=(dice.randrange(number),) if number and dice.random() < 0.7 else (),
                delay_s=dice.choice([0.0, 0.0, 0.5]),
                input_tokens=shared.tokens + own.tokens,
                output_tokens=dice.randint(1, 120),
                prompt_blocks=blocks_of((shared, own), 16),
            )
        )
    return Plan(nodes=nodes)


@pytest.mark.parametrize("seed", range(40))
def test_no_run_beats_its_bounds(seed: int) -> None:
    dice = Random(seed)
    specs = {
        name: BackendSpec(
            speed=Speed(
                step_s=dice.uniform(0.01, 0.05),
                prefill_s=dice.uniform(1e-5, 1e-3),
                batch_slope=dice.choice([0.0, 0.06, 1.0]),
            ),
            kv_blocks=dice.choice([80, 400]),
            max_num_seqs=dice.choice([1, 4, 64]),
        )
        for name in ("a", "b", "c")[: dice.randint(1, 3)]
    }
    arrivals: list[tuple[float, Plan]] = []
    now = 0.0
    for _ in range(25):
        now += dice.expovariate(dice.choice([0.2, 2.0, 20.0]))
        arrivals.append((now, random_plan(dice)))
    fleet = [
        (Backend(f"http://{n}.invalid/v1", name=n, models=["m"]), BatchServer(s)) for n, s in specs.items()
    ]
    player = Player(fleet, policy=Policy.fcfs())
    for at, plan in arrivals:
        player.arrive(at, plan)
    player.run()
    found = bounds(arrivals, specs, own=own(arrivals), first=5, last=20)
    latencies = [run.latency_s for run in player.runs[5:20]]
    assert 0 < found.mean_s <= sum(latencies) / len(latencies)
    span_s = max(run.ended_at for run in player.runs[5:20]) - arrivals[5][0]
    assert found.makespan_s <= span_s * (1 + 1e-9)
    assert 15 / span_s <= found.throughput * (1 + 1e-9)


def test_a_step_may_be_full_by_memory_and_by_seats_at_once() -> None:
    """One call fills the memory, three fill the seats: the larger shares of each would sum to more than 1."""
    speed = Speed(step_s=0.02, prefill_s=1e-7, batch_slope=0.0)
    spec = BackendSpec(speed=speed, kv_blocks=200, max_num_seqs=4, max_num_batched_tokens=4096)
    big, small = Node(input_tokens=2000, output_tokens=600), Node(input_tokens=1, output_tokens=590)
    arrivals = [(number * 1e-6, Plan(nodes=[big, small, small, small])) for number in range(40)]
    player = Player([(Backend("http://a.invalid/v1", models=["m"]), BatchServer(spec))], policy=Policy.fcfs())
    for at, plan in arrivals:
        player.arrive(at, plan)
    player.run()
    found = bounds(arrivals, {"a": spec}, own=own(arrivals), first=0, last=40)
    assert found.pool_s <= sum(run.latency_s for run in player.runs) / 40
    assert 40 / max(run.ended_at for run in player.runs) <= found.throughput
    assert found.pool_s > 0.8 * sum(run.latency_s for run in player.runs) / 40


def test_a_single_call_alone_meets_its_path_exactly() -> None:
    spec = BackendSpec(speed=Speed(step_s=0.02, prefill_s=1e-3))
    plan = Plan(nodes=[Node(input_tokens=100, output_tokens=50)])
    found = bounds([(0.0, plan)], {"a": spec}, own=own([(0.0, plan)]), first=0, last=1)
    assert found.path_s == pytest.approx(spec.speed.alone_s(100, 50))
    assert found.pool_s < found.path_s


def test_what_two_calls_share_counts_for_neither_and_equal_nodes_for_nothing() -> None:
    spec = BackendSpec(speed=Speed(step_s=0.02, prefill_s=1e-3))
    piece = Piece("all of it", 160)
    node = Node(
        input_tokens=160, output_tokens=10, prompt_blocks=blocks_of((piece,), 16), signature="the same"
    )
    arrivals = [(0.0, Plan(nodes=[node])), (1.0, Plan(nodes=[node]))]
    apart = bounds(arrivals, {"a": spec}, own=own(arrivals), first=0, last=2)
    fused = bounds(arrivals, {"a": spec}, own=own(arrivals, fused=True), first=0, last=2)
    assert apart.path_s == pytest.approx(spec.speed.alone_s(1, 10))
    assert fused.mean_s == 0
