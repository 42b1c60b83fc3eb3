"""How would the agent fare on BIRD, whose databases are not here? Its questions, with measured lengths.

The rows in `data/bird` (CC BY-SA 4.0, see the notice there) tell how many tokens each stage of a published
system wrote for each question, and whether its SQL had to be corrected. `MeasuredExecutor` plays the database
accordingly. Useful for load, meaningless for accuracy.

`python -m examples.text2sql.bird SOURCE` rebuilds the file from the collection it was taken from.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .databases import DATA
from .executor import Outcome

FILE = DATA / "bird" / "questions.jsonl.gz"
SYSTEMS = {"gpt-4o": "rsl-gpt-4o", "deepseek": "rsl-deepseek"}
"""RSL-SQL with two models: the systems whose stages were measured one by one."""
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BirdQuestion:
    """A question of the BIRD development set, with the tokens that RSL-SQL's stages wrote for it."""

    id: str
    database: str
    difficulty: str
    text: str
    evidence: str
    schema_tokens: int
    link: int
    draft: int
    augmented: int
    """The second draft, written with keywords and conditions at hand."""
    choice: int
    final: int
    corrected: bool
    kept_augmented: bool


@cache
def load(system: str = "gpt-4o") -> tuple[BirdQuestion, ...]:
    """Read all questions with the lengths of one system."""
    with gzip.open(FILE, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return tuple(BirdQuestion(**row["asked"], **row["tokens"][system]) for row in rows)


def attempt(question: BirdQuestion, candidate: int, corrections: int) -> str:
    """Write the stand-in for a SQL attempt, short enough for the shortest measured answer."""
    return f"SELECT {question.id.removeprefix('bird-')}, {candidate}, {corrections}"


class MeasuredExecutor:
    """Let the candidate that the measured system kept fail once if that system corrected itself."""

    def __init__(self, questions: tuple[BirdQuestion, ...]) -> None:
        self._questions = {question.id: question for question in questions}
        self._schemas = {question.database: question.schema_tokens for question in questions}

    def schema(self, database: str) -> str:
        """Show a stand-in of the measured length, the same for all questions to a database."""
        lines = [f"-- stand-in for the schema of {database}", f"CREATE TABLE {database} ("]
        while sum(map(len, lines)) + len(lines) < self._schemas[database] * CHARS_PER_TOKEN:
            lines.append(f"    column_{len(lines) - 1:03} TEXT,")
        return "\n".join([*lines, ");"])

    async def execute(self, database: str, sql: str) -> Outcome:
        found = re.match(r"SELECT (\d+), (\d+), (\d+)", sql)
        question = self._questions.get(f"bird-{found[1]}") if found else None
        if not found or not question or question.database != database:
            return Outcome(columns=("not run",), rows=((sql,),))
        kept = int(found[2]) == int(question.kept_augmented)
        if question.corrected and kept and found[3] == "0":
            return Outcome()
        return Outcome(columns=("candidate",), rows=((int(found[2]),),))


def rebuild(source: Path, target: Path = FILE) -> None:
    """Reduce the collection's `text2sql_bird_dev.jsonl.gz` to what is used here, always to the same bytes."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        rows = [_reduced(json.loads(line)) for line in lines]
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))


def _reduced(row: dict) -> dict:
    asked = {
        "id": f"bird-{row['qid']}",
        "database": row["db_id"],
        "difficulty": row["difficulty"],
        "text": row["question"],
        "evidence": row["evidence"],
        "schema_tokens": row["schema_tokens"],
    }
    return {"asked": asked, "tokens": {system: _tokens(row["out"][name]) for system, name in SYSTEMS.items()}}


def _tokens(out: dict[str, int]) -> dict[str, int | bool]:
    return {
        "link": out["link"],
        "draft": out["draft"],
        "augmented": out["augsql"],
        "choice": out["binary"],
        "final": out["final"],
        "corrected": bool(out["corrected"]),
        "kept_augmented": bool(out["binary_kept_aug"]),
    }


if __name__ == "__main__":
    rebuild(Path(sys.argv[1]))
