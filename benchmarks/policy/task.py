"""One contender on one row with one seed, and a closed loop of FIFO: what a pool plays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.policy.cast import CAST
from benchmarks.policy.changing import Change
from benchmarks.policy.contender import Dials, limits
from benchmarks.policy.fleets import fleet
from benchmarks.policy.idling import Idle
from benchmarks.policy.limit import Limit
from benchmarks.policy.peers import FIFO
from benchmarks.policy.play import play, saturate
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.profile import profile
from benchmarks.policy.routers import ROUTERS, play_router
from benchmarks.policy.row import CLOSED, Row
from benchmarks.policy.traffic import plans

CROWDED = 1.5
"""Queries in a closed loop, in multiples of the calls that all backends have memory for."""
FEWEST = 20
"""Least queries in a closed loop per backend: a query has most often one call under way."""
QUERIES = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(Playable):
    """A contender, by name, on an open row.

    Attributes:
        rate: queries a second; in a closed loop it says nothing.
    """

    contender: str
    dials: Dials
    row: Row
    seed: int
    rate: float

    def play(self) -> Figures:
        if self.contender in ROUTERS:
            return play_router(ROUTERS[self.contender], self.row, self.seed, self.rate)
        contender = CAST[self.contender]
        if self.row.arrivals == CLOSED:
            return saturate(contender, self.dials, self.row, plans(self.row, self.seed), int(self.row.load))
        return play(contender, self.dials, self.row, self.seed, self.rate)


def tasks_at(
    row: Row, rate: float, settings: Iterable[tuple[str, Dials]], seeds: Iterable[int]
) -> list[Task]:
    """Return a task for each contender, by name and dials, seed by seed: a row's queries are made once."""
    chosen = list(settings)
    return [
        Task(contender=name, dials=dials, row=row, seed=seed, rate=rate)
        for seed in seeds
        for name, dials in chosen
    ]


def queries_of(task: Task | Limit | Change | Idle) -> tuple[str, int]:
    """Return what tells the queries of a task from those of others: sorted by it, tasks find theirs made already."""
    return task.row.workload, task.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation(Playable):
    """FIFO behind limits when queries always wait."""

    site: tuple[str, str]
    dials: Dials
    seed: int

    def play(self) -> Figures:
        workload, fleet_name = self.site
        specs = fleet(fleet_name)
        held = sum(limits(specs, profile(workload, fleet_name), 1.0).values())
        in_system = max(FEWEST * len(specs), int(CROWDED * held))
        row = Row(workload=workload, fleet=fleet_name, load=1.0, warm_up=2 * in_system, queries=QUERIES)
        return saturate(FIFO, self.dials, row, plans(row, self.seed), in_system)
