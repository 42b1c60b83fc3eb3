"""Each baseline does what it is named after."""

from collections.abc import Sequence

import pytest
from benchmarks.policy.cast import CAST
from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.contender import Contender, Dials, Stage, limits
from benchmarks.policy.profile import PerStep, Profile, depths_to_end, paths_to_end

from agentsched import Backend
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import CallRow, Player, Watch
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

QUICK, SLOW = Speed(step_s=0.01, prefill_s=1e-4), Speed(step_s=0.03, prefill_s=3e-4)
CALL_S = {"quick": 1.0, "slow": 3.0}


def spec(speed: Speed, *, tokens: int = 3200) -> BackendSpec:
    return BackendSpec(speed=speed, kv_blocks=tokens // 16)


class Seen(Watch):
    """Notes every start, and how many calls each backend had by then."""

    def __init__(self) -> None:
        self.starts: list[CallRow] = []
        self.before: list[dict[str, int]] = []
        self._running = dict.fromkeys(CALL_S, 0)

    def started(self, request_id: str, call: CallRow) -> None:
        assert call.backend is not None
        self.starts.append(call)
        self.before.append(dict(self._running))
        self._running[call.backend] += 1

    def ended(self, request_id: str, call: CallRow) -> None:
        if call.backend is not None:
            self._running[call.backend] -= 1


def profiled(plans: Sequence[Plan], specs: dict[str, BackendSpec], footprint: float) -> Profile:
    keys = [(plan.workflow, node.step) for plan in plans for node in plan.nodes]
    nodes = [node for plan in plans for node in plan.nodes]
    paths = [path for plan in plans for path in paths_to_end(plan, specs)]
    depths = [depth for plan in plans for depth in depths_to_end(plan)]
    return Profile(
        call_s=CALL_S,
        footprint_tokens=footprint,
        output_tokens={key: float(node.output_tokens) for key, node in zip(keys, nodes, strict=True)},
        path_s=dict(zip(keys, paths, strict=True)),
        depth=dict(zip(keys, depths, strict=True)),
        query_s=10.0,
    )


def played(
    contender: Contender, dials: Dials, arrivals: Sequence[tuple[float, Plan]], *names: str, footprint: float
) -> tuple[Seen, Player]:
    specs = {name: spec(QUICK if name == "quick" else SLOW) for name in names}
    servers = {name: BatchServer(one) for name, one in specs.items()}
    profile = profiled([plan for _, plan in arrivals], specs, footprint)
    setup = contender.prepare(Stage(specs=specs, servers=servers, profile=profile, slo_scale=4.0), *dials)
    fleet = [
        (
            Backend(
                f"http://{name}.invalid/v1",
                name=name,
                models=["m"],
                max_concurrency=None if setup.limits is None else setup.limits[name],
            ),
            server,
        )
        for name, server in servers.items()
    ]
    seen = Seen()
    player = setup.player(fleet, setup.policy, [*setup.watches, seen])
    for at, plan in arrivals:
        player.arrive(at, plan)
    player.run()
    assert all(run.completed for run in player.runs)
    return seen, player


def call(workflow: str = "w", step: str = "s", *, slo_s: float = 100.0, **facts: object) -> Plan:
    node = Node(step=step, input_tokens=100, **{"output_tokens": 50, **facts})  # type: ignore[arg-type]
    return Plan(nodes=[node], workflow=workflow, slo_s=slo_s)


FLOOD = [(0.01 * number, call()) for number in range(40)]


def test_round_robin_takes_turns() -> None:
    seen, _ = played(CAST["round robin"], (), FLOOD, "quick", "slow", footprint=150)
    assert [row.backend for row in seen.starts] == ["quick", "slow"] * 20
    assert all(row.started_at == row.submitted_at for row in seen.starts)


def test_least_outstanding_never_prefers_the_fuller() -> None:
    seen, _ = played(CAST["least outstanding"], (), FLOOD, "quick", "slow", footprint=150)
    for row, running in zip(seen.starts, seen.before, strict=True):
        assert row.backend is not None
        assert running[row.backend] == min(running.values())
        assert row.started_at == row.submitted_at


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_weighted_least_outstanding_counts_seconds(exponent: float) -> None:
    seen, _ = played(CAST["weighted LO"], (exponent,), FLOOD, "quick", "slow", footprint=150)
    for row, running in zip(seen.starts, seen.before, strict=True):
        assert row.backend is not None
        priced = {name: (count + 1) * CALL_S[name] ** exponent for name, count in running.items()}
        assert priced[row.backend] == min(priced.values())


def test_limits_are_shares_of_memory() -> None:
    specs = {"quick": spec(QUICK), "slow": spec(SLOW, tokens=32_000)}
    profile = profiled([call()], specs, footprint=400)
    assert limits(specs, profile, 1.0) == {"quick": 8, "slow": 80}
    assert limits(specs, profile, 0.01) == {"quick": 1, "slow": 1}
    assert limits(specs, profile, 100.0) == {"quick": 256, "slow": 256}


ONE_AT_A_TIME = 3200.0
"""A footprint with which a backend takes one call at factor 1."""


def order_of(name: str, arrivals: Sequence[tuple[float, Plan]], *dials: float | str) -> list[str]:
    """Return the workflows of the calls in the order in which one backend took them."""
    seen, _ = played(CAST[name], (1.0, *dials), arrivals, "quick", footprint=ONE_AT_A_TIME)
    assert all(sum(running.values()) == 0 for running in seen.before)
    return [row.run.plan.workflow for row in seen.starts]


HOT = (0.0, call("hot"))
"""What the backend is busy with while the others come."""


def test_fifo_goes_by_arrival() -> None:
    late_but_urgent = [HOT, (0.1, call("a", slo_s=90)), (0.2, call("b", slo_s=50))]
    assert order_of("FIFO + limit", late_but_urgent) == ["hot", "a", "b"]


def test_edf_goes_by_deadline_and_llf_by_laxity() -> None:
    short, long = call("short", slo_s=20), call("long", slo_s=21, output_tokens=400)
    arrivals = [HOT, (0.1, long), (0.2, short)]
    assert order_of("EDF", arrivals) == ["hot", "short", "long"]
    assert order_of("LLF", arrivals) == ["hot", "long", "short"]


def test_qlm_like_groups_near_deadlines() -> None:
    # groups are ten seconds wide here: 41 and 48 are of one group, 39 is of an earlier one
    arrivals = [
        HOT,
        (0.1, call("later", slo_s=47.9)),
        (0.2, call("near", slo_s=40.8)),
        (0.3, call("early", slo_s=38.7)),
    ]
    assert order_of("QLM-like", arrivals) == ["hot", "early", "later", "near"]


def chain(workflow: str, length: int) -> Plan:
    nodes = [
        Node(step=f"s{n}", after=(n - 1,) if n else (), input_tokens=100, output_tokens=50)
        for n in range(length)
    ]
    return Plan(nodes=nodes, workflow=workflow, slo_s=100.0)


def test_plas_serves_those_who_had_least() -> None:
    arrivals = [(0.0, chain("old", 3)), (0.1, chain("new", 2)), (0.2, chain("newer", 1))]
    assert order_of("PLAS", arrivals) == ["old", "new", "newer", "old", "new", "old"]


def test_ayo_like_goes_by_depth() -> None:
    """A call that is made when another is answered comes too late for the room that this one leaves."""
    arrivals = [HOT, (0.1, chain("long", 3)), (0.2, chain("short", 1))]
    assert order_of("Ayo-like", arrivals, "nearest") == ["hot", "short", "long", "long", "long"]
    assert order_of("Ayo-like", arrivals, "farthest") == ["hot", "long", "short", "long", "long"]


def test_vtc_like_takes_turns_between_tenants() -> None:
    flood = [Plan(nodes=call().nodes, workflow="flood", tenant="big", slo_s=100.0) for _ in range(6)]
    small = [Plan(nodes=call().nodes, workflow="small", tenant="small", slo_s=100.0) for _ in range(2)]
    arrivals = [(0.0, plan) for plan in flood] + [(0.1, plan) for plan in small]
    assert order_of("VTC-like", arrivals) == ["flood", "small", "flood", "small", *["flood"] * 4]


# -- clairvoyant ---------------------------------------------------------------------------------------------


def knowing(order: str, arrivals: Sequence[tuple[float, Plan]], *, tokens_each: int = 3000) -> list[str]:
    seen, _ = played(CLAIRVOYANT, (order, "cached", 1.0, 1e3), arrivals, "quick", footprint=tokens_each)
    return [row.run.plan.workflow for row in seen.starts]


def big(workflow: str, output_tokens: int, slo_s: float) -> Plan:
    return Plan(nodes=[Node(input_tokens=2000, output_tokens=output_tokens)], workflow=workflow, slo_s=slo_s)


def test_clairvoyant_orders() -> None:
    arrivals = [
        (0.0, big("hot", 50, 100.0)),
        (0.1, big("long", 900, 50.0)),
        (0.2, big("short", 100, 60.0)),
        (0.3, big("middle", 500, 48.0)),
    ]
    assert knowing("SRPT", arrivals) == ["hot", "short", "middle", "long"]
    assert knowing("EDF", arrivals) == ["hot", "middle", "long", "short"]
    assert knowing("LLF", arrivals) == ["hot", "long", "middle", "short"]


def test_clairvoyant_never_gives_more_than_there_is_memory_for() -> None:
    arrivals = [(0.05 * n, big("w", 400, 100.0)) for n in range(12)]
    seen, player = played(
        CLAIRVOYANT, ("SRPT", "cached", 1.0, 1e3), arrivals, "quick", "slow", footprint=3000
    )
    assert all(max(running.values()) <= 1 for running in seen.before)
    assert player.runs[-1].completed


def test_patience_waits_for_the_better_place() -> None:
    # the quick backend takes one of these at a time, and the slow one takes three times as long
    arrivals = [(0.05 * n, big("w", 400, 100.0)) for n in range(4)]
    patient, _ = played(CLAIRVOYANT, ("SRPT", "cached", 1.0, 1.1), arrivals, "quick", "slow", footprint=3000)
    hasty, _ = played(CLAIRVOYANT, ("SRPT", "cached", 1.0, 1e3), arrivals, "quick", "slow", footprint=3000)
    assert {row.backend for row in patient.starts} == {"quick"}
    assert {row.backend for row in hasty.starts} == {"quick", "slow"}


def test_the_hopeless_go_last() -> None:
    arrivals = [
        (0.0, big("hot", 300, 100.0)),
        (0.1, big("late anyway", 100, 0.5)),
        (0.2, big("too late soon", 150, 6.0)),
        (0.3, big("in time", 500, 60.0)),
    ]
    assert knowing("SRPT", arrivals) == ["hot", "late anyway", "too late soon", "in time"]
    assert knowing("SRPT, hopeless last", arrivals)[:2] == ["hot", "too late soon"]
    assert knowing("SRPT, hopeless last", arrivals)[-1] == "late anyway"


def test_fusing_computes_equal_nodes_once_and_everybody_gets_the_answer() -> None:
    node = Node(step="same", input_tokens=100, output_tokens=50, signature="x")
    then = Node(step="own", after=(0,), input_tokens=100, output_tokens=50)
    plans = [
        Plan(nodes=[node, then], workflow=name, slo_s=100.0) for name in ("first", "joins", "finds it done")
    ]
    arrivals = list(zip((0.0, 0.1, 30.0), plans, strict=True))
    alone, _ = played(CLAIRVOYANT, ("SRPT", "cached", 1.0, 1e3), arrivals, "quick", footprint=150)
    seen, player = played(FUSING, ("SRPT", "cached", 1.0, 1e3), arrivals, "quick", footprint=150)
    assert (len(alone.starts), len(seen.starts)) == (6, 4)
    same = [row for row in player.calls if row.node.step == "same"]
    assert [row.attempts for row in same] == [1, 0, 0]
    assert same[1].ended_at == same[0].ended_at
    assert same[2].ended_at == same[2].submitted_at == 30.0


def test_a_step_that_was_never_profiled_is_taken_for_the_mean_of_its_workflow() -> None:
    means = PerStep({("a", "draft"): 1.0, ("a", "fix"): 3.0, ("b", "draft"): 11.0})
    assert means["a", "fix"] == 3.0
    assert means["a", "reflect"] == 2.0
    assert means["c", "draft"] == 5.0
