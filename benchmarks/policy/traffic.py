"""The queries of a row: the same for every contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from functools import cache, lru_cache
from itertools import islice, tee
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.report import unloaded_s
from benchmarks.policy.arrivals import azure, bursts, poisson, servegen
from benchmarks.policy.fleets import fleet
from benchmarks.policy.profile import sampled
from benchmarks.policy.row import Row
from benchmarks.policy.workloads import WORKLOADS

BURST_CV = 3.0

ARRIVALS: Mapping[str, Callable[[Random, float], Iterator[float]]] = {
    "poisson": poisson,
    "bursts": lambda dice, rate: bursts(dice, rate, BURST_CV),
    "azure-conv": lambda dice, rate: azure(dice, rate, "conv"),
    "azure-code": lambda dice, rate: azure(dice, rate, "code"),
    "servegen": servegen,
}


def arrivals(row: Row, seed: int, rate: float) -> Iterator[tuple[float, Plan]]:
    """Yield the queries of an open row with the times at which they arrive, `rate` a second on average."""
    times = ARRIVALS[row.arrivals](Random(f"arrivals {seed}"), rate)
    return islice(zip(times, plans(row, seed), strict=False), row.arriving)


def plans(row: Row, seed: int) -> Iterator[Plan]:
    """Yield the queries of a row, without end, with what they wish for."""
    return copy(_wishing(row.workload, row.fleet, row.slo_scale, seed))


@lru_cache(maxsize=4)
def _wishing(workload: str, fleet_name: str, scale: float, seed: int) -> Iterator[Plan]:
    """Return an iterator whose copies begin at the beginning: what one of them has had made, all have."""
    alone = alone_of(fleet_name)
    wishing = (replace(plan, slo_s=scale * alone(plan)) for plan in wishless(workload, seed))
    return tee(wishing, 1)[0]


def wishless(workload: str, seed: int) -> Iterator[Plan]:
    """Yield the same queries, on whatever fleet, without what they wish for."""
    return copy(_plain(workload, seed))


@lru_cache(maxsize=4)
def _plain(workload: str, seed: int) -> Iterator[Plan]:
    return tee(WORKLOADS[workload](Random(f"plans {seed}")), 1)[0]


@cache
def alone_of(fleet_name: str) -> Callable[[Plan], float]:
    """Return what tells how long a plan takes on a fleet when nothing else is there."""
    specs = tuple(fleet(fleet_name).values())
    return lambda plan: unloaded_s(plan, specs)


@cache
def repeats(workload: str) -> bool:
    """Return whether some of a workload's work is done more than once."""
    nodes = (node for plan in sampled(workload) for node in plan.nodes)
    seen = [node.signature for node in nodes if node.signature is not None]
    return len(seen) > len(set(seen))
