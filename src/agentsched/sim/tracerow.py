"""One row of a trace: which columns there are, and what may stand in them."""

from collections.abc import Callable, Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any

from agentsched.errors import UsageError
from agentsched.model.value import value
from agentsched.sim.plan import Node

STEP = "call"
"""Where a trace names none."""

MAX_TOKENS = 2**31
MAX_S = 1e12
MAX_PRIORITY = 2**31
MAX_NAME = 1_000
"""Characters of a name."""


@value
class Row:
    """One call; times in seconds."""

    time_s: float
    input_tokens: int
    output_tokens: int
    query: str | None = None
    workflow: str | None = None
    step: str = STEP
    tenant: str | None = None
    model: str | None = None
    priority: int | None = None
    slo_s: float | None = None
    max_tokens: int | None = None
    duration_s: float | None = None

    def node(self) -> Node:
        """Return what the call asks for."""
        return Node(
            step=self.step,
            model=self.model,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            max_tokens=self.max_tokens,
        )


def read_row(cells: Mapping[str, object]) -> Row:
    """Return the call that the cells by column describe; an empty cell of an optional column says nothing.

    Raises:
        UsageError: if they do not describe one, or contradict each other; the message names the column.
    """
    check_columns(cells)
    found: dict[str, Any] = {}
    for column, cell in cells.items():
        if cell is None or cell == "":
            if column in REQUIRED:
                raise UsageError(f"{column} is empty; it must be {COLUMNS[column][1]}")
            continue
        read, right = COLUMNS[column]
        try:
            found[column] = read(cell)
        except (ValueError, TypeError, OverflowError):
            raise UsageError(f"{column} is {cell!r:.80}; it must be {right}") from None
    row = Row(**found)
    if row.max_tokens is not None and row.output_tokens > row.max_tokens:
        raise UsageError(
            f"output_tokens is {row.output_tokens}, above max_tokens, {row.max_tokens}, where an engine stops"
        )
    return row


def check_columns(columns: Mapping[str, object]) -> None:
    """Refuse columns that nobody knows, and rows without those that are needed.

    Raises:
        UsageError: for either.
    """
    for column in columns:
        if column not in COLUMNS:
            raise UsageError(f"no column is called {column!r:.80}; there are {', '.join(COLUMNS)}")
    for column in REQUIRED:
        if column not in columns:
            raise UsageError(f"the column {column} is missing; it holds {COLUMNS[column][1]}")


def _number(cell: object) -> float:
    if isinstance(cell, str) and cell.isascii() and "_" not in cell:
        return float(cell)
    if isinstance(cell, (int, float)) and not isinstance(cell, bool):
        return float(cell)
    raise ValueError


def _seconds(cell: object) -> float:
    number = _number(cell)
    if not 0 <= number <= MAX_S:
        raise ValueError
    return number


def _wish(cell: object) -> float:
    number = _seconds(cell)
    if not number:
        raise ValueError
    return number


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(cell: object) -> int:
        number = _number(cell)
        if not isfinite(number) or int(number) != number or not least <= number <= most:
            raise ValueError
        return int(number)

    return read


def _name(cell: object) -> str:
    text = str(cell) if isinstance(cell, int) and not isinstance(cell, bool) else cell
    if not isinstance(text, str) or not text.isprintable() or len(text) > MAX_NAME:
        raise ValueError
    return text


_SECONDS = f"a number of seconds from 0 to {MAX_S:.0e}"
_NAME = f"printable text of at most {MAX_NAME} characters"
_SOME = f"a whole number from 1 to {MAX_TOKENS}"

COLUMNS: Mapping[str, tuple[Callable[[object], Any], str]] = MappingProxyType(
    {
        "time_s": (_seconds, _SECONDS),
        "input_tokens": (_whole(1, MAX_TOKENS), _SOME),
        "output_tokens": (_whole(0, MAX_TOKENS), f"a whole number from 0 to {MAX_TOKENS}"),
        "query": (_name, _NAME),
        "workflow": (_name, _NAME),
        "step": (_name, _NAME),
        "tenant": (_name, _NAME),
        "model": (_name, _NAME),
        "priority": (_whole(-MAX_PRIORITY, MAX_PRIORITY), f"a whole number within ±{MAX_PRIORITY}"),
        "slo_s": (_wish, f"a number of seconds above 0 and up to {MAX_S:.0e}"),
        "max_tokens": (_whole(1, MAX_TOKENS), _SOME),
        "duration_s": (_seconds, _SECONDS),
    }
)
"""How each column is read, and what is right there."""

REQUIRED = ("time_s", "input_tokens", "output_tokens")
