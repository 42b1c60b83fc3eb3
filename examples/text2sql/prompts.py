"""What is the model asked at each step? The instructions are in `data/prompts`; here they meet the question.

What many calls share comes first and what changes comes last: instructions, examples, schema, question. An
engine with a prefix cache then computes the long common part once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from .candidates import Trial
from .databases import DATA

Prompt = list[BaseMessage]


class Stage(StrEnum):
    """A step of the agent that asks the model."""

    LINK = "link"
    DRAFT = "draft"
    CORRECT = "correct"
    EVALUATE = "evaluate"


INSTRUCTIONS = {
    stage: (DATA / "prompts" / f"{stage}.txt").read_text(encoding="utf-8").strip() for stage in Stage
}

APPROACHES = (
    "divide and conquer. Split the question, write a subquery for each part, then combine them.",
    "follow the query plan. Say which table is read first, then what is joined, filtered and grouped.",
    "begin with the result. Say what one row of it stands for, then look up where each column comes from.",
    "keep it short. Look for the fewest tables and clauses that are enough.",
)
"""Candidates differ by more than the dice: each follows another way of thinking (as in CHASE-SQL)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with all that is known about it beforehand."""

    question: str
    evidence: str
    schema: str

    def __str__(self) -> str:
        hint = f"\nHint: {_line(self.evidence)}" if self.evidence else ""
        return f"Question: {_line(self.question)}{hint}"


def link(asked: Asked) -> Prompt:
    return _prompt(Stage.LINK, f"# Schema\n\n{asked.schema}", str(asked))


def draft(asked: Asked, *, examples: str, linked: Mapping[str, Sequence[str]], candidate: int) -> Prompt:
    shots = f"# Examples\n\n{examples}" if examples else ""
    likely = "\n".join(
        ["Probably relevant:", *(f"- {table}: {', '.join(linked[table])}" for table in linked)]
    )
    return _prompt(
        Stage.DRAFT,
        shots,
        f"# Schema\n\n{asked.schema}",
        str(asked),
        likely if linked else "",
        approach(candidate),
    )


def correct(asked: Asked, *, trials: Sequence[Trial], candidate: int) -> Prompt:
    tried = [
        f"Attempt {n}:\n```sql\n{trial.sql}\n```\nSQLite: {trial.outcome.complaint}"
        for n, trial in enumerate(trials, 1)
    ]
    return _prompt(Stage.CORRECT, f"# Schema\n\n{asked.schema}", str(asked), approach(candidate), *tried)


def evaluate(asked: Asked, rivals: Sequence[Trial]) -> Prompt:
    shown = [
        f"Candidate {letter(n)}:\n```sql\n{trial.sql}\n```\nResult, {len(trial.outcome.rows)} rows:\n"
        f"{trial.outcome}"
        for n, trial in enumerate(rivals)
    ]
    return _prompt(Stage.EVALUATE, str(asked), *shown)


def approach(candidate: int) -> str:
    return f"Approach {candidate + 1}: {APPROACHES[candidate % len(APPROACHES)]}"


def letter(n: int) -> str:
    """Name the n-th rival: A, B, …"""
    return chr(ord("A") + n)


def _prompt(stage: Stage, *parts: str) -> Prompt:
    return [SystemMessage(INSTRUCTIONS[stage]), HumanMessage("\n\n".join(part for part in parts if part))]


def _line(text: str) -> str:
    return " ".join(text.split())
