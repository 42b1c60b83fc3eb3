"""The highest rate at which enough queries are in time, found by bisection for many contenders at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf, sqrt

from agentsched.sim.report import mean
from benchmarks.policy.contender import Dials
from benchmarks.policy.pool import Pool
from benchmarks.policy.row import Row
from benchmarks.policy.task import Task, queries_of, tasks_at
from benchmarks.policy.tuned import Site, tuned

ENOUGH = 0.95
LOWEST, HIGHEST = 0.2, 3.0
"""Loads between which the capacity is looked for."""
STEPS = 7
"""Bisections; the last two rates differ by 2 %."""
QUERIES, WARM_UP = 300, 100


@dataclass(frozen=True, slots=True)
class Probe:
    """Whose capacity is looked for, where."""

    site: Site
    contender: str
    dials: Dials


def capacities(probes: Iterable[Probe], seeds: Sequence[int], pool: Pool) -> Mapping[Probe, float]:
    """Return the capacity of each probe in queries a second; 0 if `LOWEST` is more, infinite if `HIGHEST` is less.

    Whether a rate is held is said by the shares of all seeds together, since those of single seeds go up and
    down with the rate.
    """
    between = dict.fromkeys(probes, (LOWEST, HIGHEST))
    for _ in range(STEPS):
        tried = {probe: sqrt(low * high) for probe, (low, high) in between.items()}
        tasks = {probe: _tasks(probe, load, seeds) for probe, load in tried.items()}
        pool.play(sorted(chain(*tasks.values()), key=queries_of))
        for probe, load in tried.items():
            share = mean([found["slo_share"] for found in pool.play(tasks[probe])])
            low, high = between[probe]
            between[probe] = (load, high) if share >= ENOUGH else (low, load)
    return {probe: tuned(probe.site).rate * _found(low, high) for probe, (low, high) in between.items()}


def _found(low: float, high: float) -> float:
    if low == LOWEST:
        return 0.0
    return inf if high == HIGHEST else low


def _tasks(probe: Probe, load: float, seeds: Iterable[int]) -> list[Task]:
    workload, fleet = probe.site
    row = Row(workload=workload, fleet=fleet, load=load, warm_up=WARM_UP, queries=QUERIES)
    return tasks_at(row, tuned(probe.site).rate * load, [(probe.contender, probe.dials)], seeds)
