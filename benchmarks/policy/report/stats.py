"""How sure a comparison over seeds is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from random import Random

RESAMPLES = 10_000
COVERED = 0.95
WORTH = 0.02
"""A gap between the strongest baseline and clairvoyant below this share is too small to say how much of it closed."""
NO_GAP, UNCERTAIN = "no gap worth 2 %", "gap uncertain"


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the bounds between which it lies in 95 % of the resamples."""

    value: float
    low: float
    high: float

    def excludes(self, value: float) -> bool:
        """Whether a value is outside."""
        return not self.low <= value <= self.high

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def paired(statistic: Callable[..., float], *samples: Sequence[float]) -> Interval:
    """Return a statistic of samples that belong together seed by seed, with its bootstrap interval.

    The interval is that of the percentiles: with ten seeds it covers about 90 % and with five about 85 %, if seeds
    vary normally. Where a sample is not finite nothing can be said, and its bounds are not numbers.

    Args:
        statistic: from the means of the samples, in order, to a value.
        samples: of equal length, one value per seed.
    """
    count = len(samples[0])
    value = statistic(*(sum(sample) / count for sample in samples))
    if not all(isfinite(one) for sample in samples for one in sample):
        return Interval(value, nan, nan)
    dice = Random("bootstrap")
    found: list[float] = []
    for _ in range(RESAMPLES):
        drawn = [dice.randrange(count) for _ in range(count)]
        found.append(statistic(*(sum(sample[i] for i in drawn) / count for sample in samples)))
    found.sort()
    cut = (1.0 - COVERED) / 2.0
    return Interval(
        value, found[int(cut * len(found))], found[min(int((1.0 - cut) * len(found)), len(found) - 1)]
    )


def change(ours: Sequence[float], baseline: Sequence[float]) -> Interval:
    """Return by which share ours is above the baseline; below 0 it is smaller."""
    return paired(lambda a, b: a / b - 1.0 if b else nan, ours, baseline)


def gap_closed(
    ours: Sequence[float], baseline: Sequence[float], ceiling: Sequence[float], *, sign: int
) -> Interval | str:
    """Return which share of the gap between baseline and ceiling is closed, or why that cannot be said.

    Where the gap itself may be none, by its own interval, a share of it means nothing.

    Args:
        sign: the metric's.
    """
    gap = paired(lambda b, c: sign * (b - c), baseline, ceiling)
    if not isfinite(gap.value) or gap.value < WORTH * abs(sum(baseline) / len(baseline)):
        return NO_GAP
    if not gap.low > 0:
        return UNCERTAIN
    return paired(lambda o, b, c: (b - o) / (b - c) if b != c else nan, ours, baseline, ceiling)
