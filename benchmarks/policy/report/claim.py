"""A claim: what is said, what has to be played to see whether it holds, and how that is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentsched.sim.report import mean
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.report.verdict import Verdict
from benchmarks.policy.row import Row, rows

P95, MEAN = "p95_s", "mean_s"
HEAVY = rows(("text2sql", "mixed"), ("hetero1",), (0.85,))

Players = Mapping[str, Callable[[int], Playable]]
"""What is played of a row with a seed, by who plays."""

Found = Mapping[str, Sequence[Figures]]
"""What came of that, one for each seed."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a claim's table.

    Attributes:
        verdict: whether the claim holds there; None where nothing is claimed.
    """

    cells: Sequence[str]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something that is claimed.

    Attributes:
        name: in commands.
        says: what is claimed, in words.
        notes: what a reader of the table has to know.
        head: of the table's columns, less the verdict.
        players: who plays a row.
        judged: from a row and what was found there to lines.
    """

    name: str
    says: str
    notes: str
    rows: Sequence[Row]
    head: Sequence[str]
    players: Callable[[Row], Players]
    judged: Callable[[Row, Found], list[Line]]

    def tasks(self, seeds: Iterable[int]) -> list[Playable]:
        """Return all that has to be played."""
        chosen = list(seeds)
        return [make(seed) for row in self.rows for make in self.players(row).values() for seed in chosen]


def values_of(found: Found, name: str, metric: str) -> list[float]:
    """Return the values of a metric, one for each seed."""
    return [figures[metric] for figures in found[name]]


def best_of(found: Found, names: Iterable[str], metric: str) -> str:
    """Return the contender with the least mean of a metric of which less is better."""
    return min(names, key=lambda name: mean(values_of(found, name, metric)))


def seconds_of(found: Found, name: str, metric: str) -> str:
    """Return the mean over the seeds, as it is shown."""
    return f"{mean(values_of(found, name, metric)):.2f}"
