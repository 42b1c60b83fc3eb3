"""What a profile holds, as tables or as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentsched.engine.words import shown
from agentsched.predict import Measured, Profile
from agentsched.predict.steps import StepRow

WIDTH = 1_000
"""More than any table needs: nothing is cut."""

BACKENDS = (
    ("prefill\ntok/s", "prefill_per_s", 0),
    ("decode alone\ntok/s", "decode_per_s", 1),
    ("step growth\nper call, %", "growth_percent", 1),
    ("calls\n", "calls", 0),
    ("time\ns", "seconds", 1),
)
STEPS = (
    ("calls\n", "calls", 0),
    ("prompt mean\ntok", "input_mean", 0),
    ("answer mean\ntok", "output_mean", 0),
    ("answer P95\ntok", "output_p95", 0),
    ("time mean\ns", "service_mean_s", 2),
    ("time P95\ns", "service_p95_s", 2),
)
"""Columns: title, name of the figure, digits."""


def as_table(profile: Profile) -> str:
    """Return a line per backend and, if there are any, one per step below."""
    tables = [_table("\nbackend", BACKENDS, [(shown(one.name), _backend(one)) for one in profile.backends])]
    if profile.steps:
        tables.append(_table("\nstep", STEPS, [(_place(one), _step(one)) for one in profile.steps]))
    return "\n\n".join(tables)


def as_json(profile: Profile) -> str:
    """Return the same figures; what was not measured is null."""
    found = {
        "backends": [
            {"base_url": one.base_url, "name": one.name, **_backend(one)} for one in profile.backends
        ],
        "steps": [
            {"model": one.model, "workflow": one.workflow, "step": one.step, **_step(one)}
            for one in profile.steps
        ],
    }
    return json.dumps(found, indent=2)


def _backend(one: Measured) -> dict[str, float | None]:
    prefill, decode = one.learned.prefill, one.learned.decode
    read_s = prefill.coefficients[1] if prefill is not None else 0.0
    step_s, batch_s = decode.coefficients[:2] if decode is not None else (0.0, 0.0)
    return {
        "prefill_per_s": 1.0 / read_s if read_s else None,
        "decode_per_s": 1.0 / step_s if step_s else None,
        "growth_percent": 100.0 * batch_s / step_s if step_s else None,
        "calls": one.calls,
        "seconds": one.seconds,
    }


def _step(one: StepRow) -> dict[str, float | None]:
    return {
        "calls": one.calls,
        "input_mean": one.input_tokens.mean,
        "output_mean": one.output_tokens.mean,
        "output_p95": one.output_tokens.quantile(0.95),
        "service_mean_s": one.service_s.mean,
        "service_p95_s": one.service_s.quantile(0.95),
    }


def _place(one: StepRow) -> str:
    return " / ".join(shown(part) if part is not None else "-" for part in one.key)


def _table(first: str, columns: Sequence[tuple[str, str, int]], rows: Sequence[tuple[str, Any]]) -> str:
    table = Table(box=None, padding=(0, 1), header_style="")
    table.add_column(first)
    for title, _, _ in columns:
        table.add_column(title, justify="right")
    for name, figures in rows:
        table.add_row(Text(name), *(_cell(figures[key], digits) for _, key, digits in columns))
    console = Console(width=WIDTH, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _cell(figure: float | None, digits: int) -> str:
    return "-" if figure is None else f"{figure:.{digits}f}"
