"""Quantiles that mean what they say: split conformal prediction over the last answers of one backend.

What an answer took is compared with what was expected of it; the share of the recent ratios below a bound is the
share of the next ones to be expected there (Vovk et al., Algorithmic Learning in a Random World, 2005, ch. 4).
"""

from bisect import bisect_left, insort
from collections import deque
from math import ceil

RECENT = 200
"""Answers looked back at."""

FEWEST = 20
"""Answers from which on their ratios are a guide."""


class Calibration:
    """The recent ratios of what was to what had been expected."""

    __slots__ = ("_order", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._order: list[float] = []

    def observe(self, expected: float, actual: float) -> None:
        """Learn from one answer; both are above 0."""
        ratio = actual / expected
        self._recent.append(ratio)
        insort(self._order, ratio)
        if len(self._recent) > RECENT:
            del self._order[bisect_left(self._order, self._recent.popleft())]

    def factor(self, share: float) -> float | None:
        """Return how many times the expectation is not exceeded by such a share of answers; None without a guide."""
        count = len(self._order)
        if count < FEWEST:
            return None
        return self._order[min(ceil((count + 1) * share), count) - 1]
