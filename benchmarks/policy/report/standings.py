"""How everybody did on a row: figures seed by seed, ceilings and bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice, repeat

from agentsched.sim.report import METRICS, mean
from benchmarks.policy.bounds import Bounds, Own, bounds
from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.fleets import fleet
from benchmarks.policy.pool import Figures, Playable, Pool
from benchmarks.policy.row import CLOSED, Row
from benchmarks.policy.task import Task, tasks_at
from benchmarks.policy.traffic import arrivals, plans, repeats
from benchmarks.policy.tuned import rate_of, tuned

KNOWING = (CLAIRVOYANT.name, FUSING.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standings:
    """A row's results.

    Attributes:
        figures: by contender, one for each seed; the fair ones in the order of the cast.
        ceilings: by clairvoyant contender and dials.
        bounds: one for each seed.
        fused_bounds: the same for those who compute equal nodes once; none where there are none.
    """

    row: Row
    seeds: Sequence[int]
    figures: Mapping[str, Sequence[Figures]]
    ceilings: Mapping[str, Sequence[Sequence[Figures]]]
    bounds: Sequence[Bounds]
    fused_bounds: Sequence[Bounds] = ()

    def values(self, contender: str, metric: str) -> list[float]:
        """Return a contender's figure of each seed; of a clairvoyant one with the dials that are best for it."""
        if contender not in KNOWING:
            return [found[metric] for found in self.figures[contender]]
        options = [[found[metric] for found in dials] for dials in self.ceilings[contender]]
        return min(options, key=lambda values: _sign(metric) * sum(values))

    def mean(self, contender: str, metric: str) -> float:
        """Return the mean over the seeds."""
        return mean(self.values(contender, metric))

    def spread(self, contender: str, metric: str) -> float:
        """Return half the range over the seeds."""
        values = self.values(contender, metric)
        return (max(values) - min(values)) / 2.0

    def strongest(self, metric: str, among: Iterable[str]) -> str:
        """Return the best of some contenders."""
        return min(among, key=lambda name: _sign(metric) * self.mean(name, metric))


def tasks_of(row: Row, contenders: Iterable[str], seeds: Sequence[int]) -> list[Task]:
    """Return what has to be played for a row, seed by seed so that the queries are made once."""
    kept = tuned(row.site)
    settings = [(name, kept.dials_of(name, row.load)) for name in contenders]
    settings += [(name, dials) for name in kept.ceilings for dials in _distinct(row, name)]
    return tasks_at(row, rate_of(row), settings, seeds)


def standings(row: Row, contenders: Sequence[str], seeds: Sequence[int], pool: Pool) -> Standings:
    """Play what has not been played yet, and return how everybody did."""
    tasks = tasks_of(row, contenders, seeds)
    return gather(row, contenders, seeds, dict(zip(map(_key, tasks), pool.play(tasks), strict=True)))


def gather(
    row: Row, contenders: Sequence[str], seeds: Sequence[int], found: Mapping[str, Figures]
) -> Standings:
    """Return the standings from what was found by task."""
    kept, rate = tuned(row.site), rate_of(row)

    def played(name: str, dials: tuple[float | str, ...]) -> list[Figures]:
        return [found[_key(Task(contender=name, dials=dials, row=row, seed=s, rate=rate))] for s in seeds]

    return Standings(
        row=row,
        seeds=seeds,
        figures={name: played(name, kept.dials_of(name, row.load)) for name in contenders},
        ceilings={name: [played(name, dials) for dials in _distinct(row, name)] for name in kept.ceilings},
        bounds=[row_bounds(row, seed) for seed in seeds],
        fused_bounds=[row_bounds(row, seed, fused=True) for seed in seeds] if repeats(row.workload) else [],
    )


def row_bounds(row: Row, seed: int, *, fused: bool = False) -> Bounds:
    """Return the bounds of a row; of a closed one, whose arrivals follow from the schedule, by paths alone."""
    last = row.warm_up + row.queries
    closed = row.arrivals == CLOSED
    queries = zip(repeat(0.0), plans(row, seed)) if closed else arrivals(row, seed, rate_of(row))
    own = _own(row.workload, seed, row.arriving, fused)
    found = bounds(list(islice(queries, last)), fleet(row.fleet), own=own, first=row.warm_up, last=last)
    return replace(found, pool_s=0.0, makespan_s=0.0) if closed else found


@lru_cache(maxsize=8)
def _own(workload: str, seed: int, count: int, fused: bool) -> Own:
    row = Row(workload=workload, fleet="homo", load=1.0)  # of any fleet: wishes do not matter here
    return Own(islice(plans(row, seed), count), fused=fused)


def _distinct(row: Row, name: str) -> list[tuple[float | str, ...]]:
    best = tuned(row.site).ceiling(name, row.load)
    return list(dict.fromkeys(best.values()))


def _key(task: Playable) -> str:
    return task.key


def _sign(metric: str) -> float:
    return 1.0 if METRICS[metric].less_is_better else -1.0
