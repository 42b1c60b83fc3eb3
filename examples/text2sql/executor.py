"""What happens when this SQL runs? One seam, `Executor`, between the agent and the databases.

`SqliteExecutor` runs a query on a SQLite file and cannot change it; `bird.py` has a second executor for
questions whose database is not at hand. Bring your own for another engine: it shows a schema and runs SQL.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ROW_LIMIT = 500
"""More rows than a reader wants; the rest is cut and the outcome says so."""
TIME_LIMIT_S = 2.0
"""The example's databases answer in milliseconds: what takes seconds is a forgotten join condition."""
VALUE_LIMIT = 1_000_000
"""Longest text or blob in bytes, so that a query cannot fill the memory with `zeroblob`."""
SHOWN_ROWS = 5
SHOWN_CHARS = 80
"""Of one value: a prompt wants to know what rows look like, not to read a stored document."""

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_LEADING = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one SQL text led to: rows or an error."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    error: str | None = None
    cut: bool = False

    @property
    def complaint(self) -> str | None:
        """Say what is wrong with this outcome as seen by somebody who expected rows."""
        return self.error or (None if self.rows else "The query ran but returned no rows.")

    def same_rows(self, other: Outcome) -> bool:
        """Compare the rows in any order, column names aside, numbers to four decimals."""
        return self.error is None and other.error is None and self._bag() == other._bag()

    def _bag(self) -> Counter[tuple[object, ...]]:
        return Counter(
            tuple(round(float(v), 4) if isinstance(v, int | float) else v for v in row) for row in self.rows
        )

    def __str__(self) -> str:
        if self.complaint:
            return self.complaint
        lines = [" | ".join(self.columns)]
        lines += [" | ".join(map(_shown, row)) for row in self.rows[:SHOWN_ROWS]]
        hidden = len(self.rows) - SHOWN_ROWS
        return "\n".join([*lines, f"... {hidden} more rows"] if hidden > 0 else lines)


def _shown(value: object) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


class Executor(Protocol):
    """Show the schema of a database and run SQL on it."""

    def schema(self, database: str) -> str: ...

    async def execute(self, database: str, sql: str) -> Outcome: ...


class SqliteExecutor:
    """Run queries on SQLite files, read only, within limits of time and size.

    Four fences, each enough for the common case: the file is opened read-only, `PRAGMA query_only` is set, an
    authorizer refuses all but reading, and only one statement that begins with SELECT or WITH is taken.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        *,
        time_limit_s: float = TIME_LIMIT_S,
        row_limit: int = ROW_LIMIT,
    ) -> None:
        self._paths = dict(paths)
        self._time_limit_s = time_limit_s
        self._row_limit = row_limit
        self._schemas: dict[str, str] = {}

    def schema(self, database: str) -> str:
        """Show each table's DDL with its first rows."""
        if database not in self._schemas:
            with closing(self._connect(database)) as connection:
                self._schemas[database] = _describe(connection)
        return self._schemas[database]

    async def execute(self, database: str, sql: str) -> Outcome:
        return await asyncio.to_thread(self._execute, database, sql)

    def _execute(self, database: str, sql: str) -> Outcome:
        if refusal := refuse(sql):
            return Outcome(error=refusal)
        with closing(self._connect(database)) as connection:
            fence(connection, deadline=time.monotonic() + self._time_limit_s)
            try:
                cursor = connection.execute(sql)
                rows = cursor.fetchmany(self._row_limit + 1)
            except sqlite3.OperationalError as error:
                if "interrupted" in str(error):
                    return Outcome(error=f"The query was stopped after {self._time_limit_s:g} s.")
                return Outcome(error=str(error))
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                return Outcome(error=str(error))
            columns = tuple(column[0] for column in cursor.description or ())
            return Outcome(columns, tuple(rows[: self._row_limit]), cut=len(rows) > self._row_limit)

    def _connect(self, database: str) -> sqlite3.Connection:
        if database not in self._paths:
            raise KeyError(f"no database {database!r}; there are: {', '.join(sorted(self._paths))}")
        return sqlite3.connect(f"{self._paths[database].absolute().as_uri()}?mode=ro", uri=True)


def refuse(sql: str) -> str | None:
    """Say why this text is not taken at all, or None if it is a query."""
    word = _LEADING.match(sql)
    verb = word.group(1).upper() if word else ""
    if verb in ("SELECT", "WITH"):
        return None
    return (
        f"Only SELECT queries are run, this begins with {verb!r}."
        if verb
        else "There is no SQL in the answer."
    )


def fence(connection: sqlite3.Connection, *, deadline: float) -> None:
    """Let the connection read and nothing else, until `deadline` on the monotonic clock."""
    connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_LIMIT)
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
    )
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)


def _describe(connection: sqlite3.Connection) -> str:
    parts = []
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    for name, ddl in tables.fetchall():
        cursor = connection.execute(f'SELECT * FROM "{name}" LIMIT 3')
        first = Outcome(tuple(column[0] for column in cursor.description), tuple(cursor.fetchall()))
        parts.append(f"{ddl};\n/* first rows of {name}\n{first}\n*/")
    return "\n".join(parts)
