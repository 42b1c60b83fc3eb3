"""Measures load 1.0 of a site, and sets everybody's dials there, with queries that no row plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TypeVar

from agentsched.sim.report import METRICS, mean
from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.contender import Contender, Dials
from benchmarks.policy.ours import OURS
from benchmarks.policy.peers import FACTORS, PEERS
from benchmarks.policy.pool import Figures, Pool
from benchmarks.policy.row import CLOSED, CORE, FULL, Row
from benchmarks.policy.task import Saturation, Task, tasks_at
from benchmarks.policy.traffic import repeats
from benchmarks.policy.tuned import Site, Tuned, keep

T = TypeVar("T")

SEED = 101
SATURATING = (101, 102)
LOADS = (0.85, 1.3)
QUERIES, WARM_UP = 300, 60
CEILINGS = ("mean_s", "p95_s", "slo_share")
"""What the clairvoyant are set for; any other figure of theirs is the best that one of these settings has."""


def tune(site: Site, pool: Pool) -> Tuned:
    """Measure and set everything of a site, and keep it."""
    rate, loads = load_one(site, pool), loads_of(site)
    fair = [contender for contender in (*PEERS, *OURS) if len(contender.dials) > 1]
    knowing = [CLAIRVOYANT, *([FUSING] if repeats(site[0]) else [])]
    pool.play([task for one in (*knowing, *fair) for load in loads for task in _tasks(one, site, rate, load)])
    dials = {
        one.name: {f"{load:g}": best_dials(one, site, rate, load, pool) for load in loads} for one in fair
    }
    ceilings = {
        one.name: {f"{load:g}": ceiling(one, site, rate, load, pool) for load in loads} for one in knowing
    }
    found = Tuned(rate=rate, dials=dials, ceilings=ceilings)
    keep(site, found)
    return found


def loads_of(site: Site) -> list[float]:
    """Return the loads at which dials are set: the nearest to those of the site's rows, all where it has none."""
    wanted = [row.load for row in (*CORE, *FULL) if row.site == site and row.arrivals != CLOSED]
    return sorted({min(LOADS, key=lambda load: abs(load - near)) for near in wanted or LOADS})


def load_one(site: Site, pool: Pool) -> float:
    """Return the most queries a second that FIFO with one of its limits completes in a closed loop."""
    tasks = [Saturation(site=site, dials=dials, seed=seed) for dials, seed in product(FACTORS, SATURATING)]
    found = [figures["throughput"] for figures in pool.play(tasks)]
    return max(mean(part) for part in _parts(found, len(SATURATING)))


def best_dials(contender: Contender, site: Site, rate: float, load: float, pool: Pool) -> Dials:
    """Return the dials with which mean and P95, multiplied, are least."""
    found = pool.play(_tasks(contender, site, rate, load))
    scores = [figures["mean_s"] * figures["p95_s"] for figures in found]
    return contender.dials[scores.index(min(scores))]


def ceiling(contender: Contender, site: Site, rate: float, load: float, pool: Pool) -> Mapping[str, Dials]:
    """Return for each metric the dials that are best for it."""
    found = pool.play(_tasks(contender, site, rate, load))
    return {metric: contender.dials[_best(found, metric)] for metric in CEILINGS}


def _tasks(contender: Contender, site: Site, rate: float, load: float) -> list[Task]:
    row = Row(workload=site[0], fleet=site[1], load=load, warm_up=WARM_UP, queries=QUERIES)
    return tasks_at(row, rate * load, [(contender.name, dials) for dials in contender.dials], (SEED,))


def _best(found: Sequence[Figures], metric: str) -> int:
    """Return the number of the best figures; of equal ones, those with the least mean."""
    sign = METRICS[metric].sign
    return min(range(len(found)), key=lambda number: (sign * found[number][metric], found[number]["mean_s"]))


def _parts(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[start : start + size] for start in range(0, len(values), size)]
