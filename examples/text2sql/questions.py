"""What can be asked, and what would be right? The example's own questions, in `data/*/questions.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from .databases import DATA
from .rows import DATABASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to one database, with the SQL that answers it and SQL that a model might write instead."""

    id: str
    database: str
    difficulty: str
    text: str
    sql: str
    evidence: str = ""
    wrong: Mapping[str, str] = field(default_factory=dict)
    """SQL by the way it goes wrong: it fails, finds nothing or finds something else."""


@cache
def load() -> tuple[Question, ...]:
    """Read all questions, in the order of the files."""
    return tuple(question for name in DATABASES for question in _read(name))


def _read(database: str) -> list[Question]:
    rows = tomllib.loads((DATA / database / "questions.toml").read_text(encoding="utf-8"))["question"]
    return [Question(database=database, **row) for row in rows]


@cache
def examples(database: str) -> str:
    """Write the few-shot block for a database: the questions of all the others, so that no answer leaks.

    The block is the same for every question to that database: an engine's prefix cache keeps it.
    """
    parts = []
    for name in DATABASES:
        if name != database:
            parts.append(f"## Database: {name}\n\n{(DATA / name / 'schema.sql').read_text(encoding='utf-8')}")
            parts += [_shown(question) for question in load() if question.database == name]
    return "\n".join(parts)


def _shown(question: Question) -> str:
    hint = f"Hint: {question.evidence}\n" if question.evidence else ""
    return f"Q: {question.text}\n{hint}```sql\n{question.sql.strip()}\n```\n"
