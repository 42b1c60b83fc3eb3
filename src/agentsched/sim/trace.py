"""A user's own calls, to be played again: CSV, JSON Lines, or a journal that the library recorded."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from typing import Any, cast

from agentsched.engine.jsonline import read_line
from agentsched.errors import UsageError
from agentsched.sim.gathering import Gathering
from agentsched.sim.journaltrace import LeftOut, journal_queries
from agentsched.sim.observed import ObservedQuery
from agentsched.sim.plan import Plan
from agentsched.sim.tracerow import Row, check_columns, read_row

MAX_LINE = 1_000_000
"""Characters of one line."""

Numbered = Iterator[tuple[int, str]]


def read_trace(
    lines: Iterable[str], name: str, *, left_out: LeftOut | None = None
) -> list[tuple[float, Plan]]:
    """Return what each query does, with the second at which it arrives, in order of arrival.

    CSV has a line of column names first, JSON Lines one object per line; both have the columns of `Row`, rows in the
    order of `time_s`. Calls of equal `query` belong together; without one, a call is a query of its own. What waits
    for what is observed: see `ObservedQuery.plan`.

    Args:
        lines: of the file, line ends included or not.
        name: of the file, for messages.
        left_out: takes what of a journal cannot be played.

    Raises:
        UsageError: for whatever is no trace; the message names file, line, column and value, and what is right.
    """
    try:
        queries = _queries(checked_lines(lines), left_out if left_out is not None else LeftOut())
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return [(query.arrived_at, query.plan()) for query in queries]


def _queries(numbered: Numbered, left_out: LeftOut) -> Iterable[ObservedQuery]:
    number, line = next(((at, text) for at, text in numbered if text.strip()), (0, ""))
    if not number:
        raise UsageError("the file is empty; a trace begins with a line of column names or a JSON object")
    if _is_head(line):
        rest = (text for _, text in numbered)
        return journal_queries(chain(repeat("", number - 1), [line], rest), left_out)
    if line.lstrip().startswith(("{", "[")):
        return _gathered(_json_rows(chain([(number, line)], numbered)))
    return _gathered(_csv_rows(number, line, numbered))


def checked_lines(lines: Iterable[str]) -> Numbered:
    """Number the lines of a file, without a byte order mark.

    Raises:
        UsageError: for what is not text, on the way; the message names the line.
    """
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE:
            raise _bad(number, f"the line is longer than {MAX_LINE} characters")
        if "\0" in line:
            raise _bad(number, "the line holds a NUL byte; a trace is text")
        if not line.isascii():
            try:
                line.encode()
            except UnicodeEncodeError as error:
                raise _bad(number, f"character {error.start + 1} is not UTF-8 text") from None
        yield number, line.removeprefix("\ufeff") if number == 1 else line


def _bad(number: int, what: object) -> UsageError:
    return UsageError(f"line {number}: {what}")


def _is_head(line: str) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "agentsched" in found


# -- rows --------------------------------------------------------------------------------------------------


def _csv_rows(number: int, head: str, rest: Numbered) -> Iterator[tuple[int, Row]]:
    columns = [column.strip() for column in _cells(number, head)]
    counted = Counter(columns)
    try:
        check_columns(counted)
    except UsageError as error:
        raise _bad(number, error) from None
    if len(counted) < len(columns):
        twice = next(column for column, count in counted.items() if count > 1)
        raise _bad(number, f"the column {twice} is there twice")
    for at, line in rest:
        if not line.strip():
            continue
        cells = [cell.strip() for cell in _cells(at, line)]
        if len(cells) != len(columns):
            raise _bad(at, f"{len(cells)} fields instead of {len(columns)}: {', '.join(columns)}")
        yield at, _row(at, dict(zip(columns, cells, strict=True)))


def _cells(number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        why = str(error)
        if why == "unexpected end of data":
            why = "a quoted field does not end on it; each call has one line"
        raise _bad(number, f"the line is not CSV: {why}") from None


def _json_rows(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    for number, line in rows:
        if not line.strip():
            continue
        try:
            found = read_line(line)
        except ValueError as error:
            raise _bad(number, f"the line is not JSON, {line.strip()!r:.80}: {error}") from None
        if not isinstance(found, dict):
            raise _bad(number, f"a row is a JSON object on one line, not {line.strip()!r:.80}")
        yield number, _row(number, cast("dict[str, Any]", found))


def _row(number: int, cells: dict[str, object]) -> Row:
    try:
        return read_row(cells)
    except UsageError as error:
        raise _bad(number, error) from None


# -- queries -----------------------------------------------------------------------------------------------


def _gathered(rows: Iterable[tuple[int, Row]]) -> Iterable[ObservedQuery]:
    """Bring together what belongs together."""
    gathering = Gathering()
    for number, row in rows:
        try:
            gathering.add(number, row)
        except UsageError as error:
            raise _bad(number, error) from None
    if not gathering.queries:
        raise UsageError("there is a line of column names and no row below it")
    return gathering.queries
