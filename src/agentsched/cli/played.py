"""What policies made of a trace, as a table or as JSON."""

import json
from collections.abc import Mapping
from math import isfinite, isnan

from rich.console import Console
from rich.table import Table

from agentsched.model import Outcome
from agentsched.model.value import value
from agentsched.sim.report import METRICS, Figures

COLUMNS = (
    "mean_s",
    "p50_s",
    "p95_s",
    "p99_s",
    "slowdown",
    "slo_share",
    "goodput",
    "throughput",
    "call_p95_s",
)
"""The figures that the table has room for."""
WIDTH = 1_000
"""More than any table needs: nothing is cut."""

Names = tuple[str, ...]
"""What one policy is called."""


@value
class Played:
    """What one policy made of the queries that count.

    Attributes:
        queries: how many there are.
        lost: how many of them were not completed, by what became of them.
    """

    queries: int
    lost: Mapping[Outcome, int]
    figures: Figures

    @property
    def completed(self) -> int:
        """How many got all their answers."""
        return self.queries - sum(self.lost.values())


def label(names: Names) -> str:
    """Return a policy's names as one; several mean that it is the same by all of them."""
    return " = ".join(names)


def as_table(played: Mapping[Names, Played]) -> str:
    """Return a line per policy, and below them which are the same and what was not completed."""
    table = Table(box=None, padding=(0, 1), header_style="")
    table.add_column("\npolicy")
    table.add_column("completed\nqueries", justify="right")
    for name in COLUMNS:
        metric = METRICS[name]
        table.add_column(f"{metric.title}\n{metric.unit}", justify="right")
    for names, one in played.items():
        cells = [_cell(name, one.figures[name]) for name in COLUMNS]
        table.add_row(names[0], f"{one.completed}/{one.queries}", *cells)
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    same = [f"{label(names)}: the same policy in this version" for names in played if len(names) > 1]
    return "\n".join([*lines, *same, *(_losses(names[0], one) for names, one in played.items() if one.lost)])


def as_json(played: Mapping[Names, Played], facts: Mapping[str, int]) -> str:
    """Return the facts of the trace and all figures; those that are not finite are null."""
    policies = {
        name: {
            "completed": one.completed,
            "not_completed": {str(outcome): count for outcome, count in one.lost.items()},
            **{what: number if isfinite(number) else None for what, number in one.figures.items()},
        }
        for names, one in played.items()
        for name in names
    }
    return json.dumps({**facts, "policies": policies}, indent=2)


def _cell(name: str, figure: float) -> str:
    return "-" if isnan(figure) else f"{figure:.{METRICS[name].digits}f}"


def _losses(name: str, one: Played) -> str:
    lost = ", ".join(f"{count} {outcome}" for outcome, count in one.lost.items())
    return (
        f"{name}: {one.queries - one.completed} of {one.queries} queries not completed ({lost}); "
        "each counts as infinitely long: inf"
    )
