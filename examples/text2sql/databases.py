"""Which databases does the example query? Four small invented ones, built on the spot.

Each folder `data/<name>` holds the `schema.sql`, `rows.py` draws the rows. What is asked of the databases is
in `questions.py`, how they are queried in `executor.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from .rows import DATABASES, Draw

DATA = Path(__file__).parent / "data"
SEED = 7


def create(name: str, path: Path | str = ":memory:", *, seed: int = SEED) -> sqlite3.Connection:
    """Create one database with its rows and return the open connection."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.executescript((DATA / name / "schema.sql").read_text(encoding="utf-8"))
    with connection:
        for table, rows in DATABASES[name](Draw(f"{name}-{seed}")).items():
            slots = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({slots})", rows)
    return connection


def create_all(folder: Path, *, seed: int = SEED) -> dict[str, Path]:
    """Create every database as a file in `folder` and return the paths by name."""
    paths = {name: folder / f"{name}.sqlite" for name in DATABASES}
    for name, path in paths.items():
        path.unlink(missing_ok=True)
        create(name, path, seed=seed).close()
    return paths


@contextmanager
def temporary(*, seed: int = SEED) -> Iterator[dict[str, Path]]:
    """Create every database in a folder that goes away afterwards."""
    with TemporaryDirectory(prefix="text2sql-") as folder:
        yield create_all(Path(folder), seed=seed)
