"""What nobody can beat on a row with one seed, worked out by a pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice, repeat

from benchmarks.policy.bounds import Bounds, Own, bounds
from benchmarks.policy.fleets import fleet
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.row import CLOSED, Row
from benchmarks.policy.traffic import arrivals, plans, repeats, wishless


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Playable):
    """The bounds of a row.

    Attributes:
        rate: queries a second; in a closed loop it says nothing.
        fused: whether equal nodes may be computed once.
    """

    row: Row
    seed: int
    rate: float
    fused: bool = False

    def play(self) -> Figures:
        return asdict(self.bounds())

    def bounds(self) -> Bounds:
        """Return the bounds; of a closed row, whose arrivals follow from the schedule, by paths alone."""
        row = self.row
        last = row.warm_up + row.queries
        closed = row.arrivals == CLOSED
        queries = zip(repeat(0.0), plans(row, self.seed)) if closed else arrivals(row, self.seed, self.rate)
        own = _own(row.workload, self.seed, row.arriving, self.fused)
        found = bounds(list(islice(queries, last)), fleet(row.fleet), own=own, first=row.warm_up, last=last)
        return replace(found, pool_s=0.0, makespan_s=0.0) if closed else found


def limits_at(row: Row, rate: float, seeds: Iterable[int], *, fused: bool = False) -> list[Limit]:
    """Return a limit for each seed; none of those who fuse where there is nothing to fuse."""
    if fused and not repeats(row.workload):
        return []
    return [Limit(row=row, seed=seed, rate=rate, fused=fused) for seed in seeds]


@lru_cache(maxsize=8)
def _own(workload: str, seed: int, count: int, fused: bool) -> Own:
    return Own(islice(wishless(workload, seed), count), fused=fused)
