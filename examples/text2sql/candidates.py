"""Which SQL has been tried, and which tries agree? The values that travel through the agent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .executor import Outcome


@dataclass(frozen=True, slots=True)
class Trial:
    """One SQL text and what it led to."""

    sql: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Candidate:
    """One line of trials, each correcting the one before; the last one counts."""

    number: int
    trials: tuple[Trial, ...]

    @property
    def last(self) -> Trial:
        return self.trials[-1]

    @property
    def corrections(self) -> int:
        return len(self.trials) - 1


def agreeing(candidates: Sequence[Candidate]) -> list[list[Trial]]:
    """Group the candidates' last trials by equal rows, the largest group first.

    Those that found rows shut out those that found none, and these shut out the ones that failed, of which a
    single one is left to report.
    """
    last = [candidate.last for candidate in sorted(candidates, key=lambda candidate: candidate.number)]
    found = [trial for trial in last if not trial.outcome.complaint]
    ran = [trial for trial in last if not trial.outcome.error]
    groups: list[list[Trial]] = []
    for trial in found or ran or last[:1]:
        for group in groups:
            if trial.outcome.same_rows(group[0].outcome):
                group.append(trial)
                break
        else:
            groups.append([trial])
    return sorted(groups, key=len, reverse=True)
