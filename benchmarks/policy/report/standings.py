"""How everybody did on a row: figures seed by seed, ceilings and bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentsched.sim.report import METRICS, mean
from benchmarks.policy.bounds import Bounds
from benchmarks.policy.clairvoyant import CLAIRVOYANT, FUSING
from benchmarks.policy.contender import Dials
from benchmarks.policy.limit import Limit, limits_at
from benchmarks.policy.pool import Figures, Playable, Pool
from benchmarks.policy.row import Row
from benchmarks.policy.task import Task, tasks_at
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
        return min(options, key=lambda values: METRICS[metric].sign * sum(values))

    def mean(self, contender: str, metric: str) -> float:
        """Return the mean over the seeds."""
        return mean(self.values(contender, metric))

    def spread(self, contender: str, metric: str) -> float:
        """Return half the range over the seeds."""
        values = self.values(contender, metric)
        return (max(values) - min(values)) / 2.0

    def strongest(self, metric: str, among: Iterable[str]) -> str:
        """Return the best of some contenders."""
        return min(among, key=lambda name: METRICS[metric].sign * self.mean(name, metric))


def tasks_of(row: Row, contenders: Iterable[str], seeds: Sequence[int]) -> list[Task | Limit]:
    """Return what has to be played for a row."""
    kept, rate = tuned(row.site), rate_of(row)
    settings = [(name, kept.dials_of(name, row.load)) for name in contenders]
    settings += [(name, dials) for name in kept.ceilings for dials in ceilings_of(row, name)]
    limits = [*limits_at(row, rate, seeds), *limits_at(row, rate, seeds, fused=True)]
    return [*tasks_at(row, rate, settings, seeds), *limits]


def standings(row: Row, contenders: Sequence[str], seeds: Sequence[int], pool: Pool) -> Standings:
    """Play what has not been played yet, and return how everybody did."""
    tasks = tasks_of(row, contenders, seeds)
    return gather(row, contenders, seeds, dict(zip(map(_key, tasks), pool.play(tasks), strict=True)))


def gather(
    row: Row, contenders: Sequence[str], seeds: Sequence[int], found: Mapping[str, Figures]
) -> Standings:
    """Return the standings from what was found by task."""
    kept, rate = tuned(row.site), rate_of(row)

    def played(name: str, dials: Dials) -> list[Figures]:
        return [found[_key(Task(contender=name, dials=dials, row=row, seed=s, rate=rate))] for s in seeds]

    def worked_out(limits: Iterable[Limit]) -> list[Bounds]:
        return [Bounds(**found[_key(limit)]) for limit in limits]

    return Standings(
        row=row,
        seeds=seeds,
        figures={name: played(name, kept.dials_of(name, row.load)) for name in contenders},
        ceilings={name: [played(name, dials) for dials in ceilings_of(row, name)] for name in kept.ceilings},
        bounds=worked_out(limits_at(row, rate, seeds)),
        fused_bounds=worked_out(limits_at(row, rate, seeds, fused=True)),
    )


def ceilings_of(row: Row, name: str) -> list[Dials]:
    """Return the dials that a clairvoyant contender plays a row with."""
    best = tuned(row.site).ceiling(name, row.load)
    return list(dict.fromkeys(best.values()))


def _key(task: Playable) -> str:
    return task.key
