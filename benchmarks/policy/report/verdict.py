"""Whether what was found is what was claimed."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.policy.report.stats import Interval


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds.

    Attributes:
        sure: whether the whole interval says so.
    """

    holds: bool
    sure: bool = True

    def __str__(self) -> str:
        return ("holds" if self.holds else "missed") + ("" if self.sure else ", not for sure")


def at_least(found: Interval | str, bar: float) -> Verdict:
    """Judge a value that should be so large; a reason why there is none is a miss."""
    if isinstance(found, str):
        return Verdict(False)
    holds = found.value >= bar
    return Verdict(holds, found.low >= bar if holds else found.high < bar)


def at_most(found: Interval, bar: float) -> Verdict:
    """Judge a value that should not be larger."""
    holds = found.value <= bar
    return Verdict(holds, found.high <= bar if holds else found.low > bar)


def above(found: Interval, bar: float) -> Verdict:
    """Judge a value that should be above the bar with its whole interval."""
    return Verdict(found.low > bar)
