"""Least squares that forget: what a value is made of, by the recent past, for a handful of features.

Errors are relative to what was expected: short times and long ones are met with equal shares of error. Every
observation moves each coefficient once to where it is best given the others (one sweep of coordinate descent, held at
0 from below). What the past cannot tell apart therefore stays as it was at first, in proportions that are given.
"""

from collections.abc import Sequence

MEMORY = 60
"""Observations after which an old one has lost weight 1/e."""

DRIFT = 0.3
"""Mean relative error of some observations in a row from which on the past is no guide."""

SOME = 8
"""Observations over which that mean is taken."""

KEPT = 0.05
"""Share of its weight that the past keeps where it is no guide any more."""

CLIP = 4.0
"""A value counts as at most so many times what was expected: one that had to wait for something else says nothing."""

_KEEP = 1.0 - 1.0 / MEMORY


class Fit:
    """Coefficients, none negative, of `value = sum of coefficient * feature`.

    Args:
        shape: proportions in which the first observation is shared out among the coefficients.
        above: weight of a value above what was expected, where one below weighs 1. With less than 1 the fit keeps to
            the low side of what is seen (an expectile), as of times to which now and then something else is added;
            then it takes no run of high values for a change of all.
    """

    __slots__ = ("_above", "_gram", "_right", "_shape", "_strange", "coefficients", "count")

    def __init__(self, *shape: float, above: float = 1.0) -> None:
        self.coefficients = [0.0] * len(shape)
        self.count = 0
        self._above = above
        self._shape = shape
        self._gram = [[0.0] * len(shape) for _ in shape]
        self._right = [0.0] * len(shape)
        self._strange = 0.0

    def expected(self, *features: float) -> float:
        """Return what the past says of such a case; 0 without a past."""
        return _product(self.coefficients, features)

    def observe(self, value: float, *features: float) -> float:
        """Learn from one case: a value above 0, and features of which none is negative and one is above 0.

        Returns:
            By how much all has become slower since, where this case is one too many; 1 otherwise.
        """
        coefficients = self.coefficients
        expected = _product(coefficients, features)
        if self.count == 0:
            scale = value / _product(self._shape, features)
            coefficients[:] = [part * scale for part in self._shape]
        if expected <= 0.0:
            expected = value
        share = min(value / expected, CLIP)
        factor = self._watch(share)
        self.count += 1
        weight = self._above if share > 1.0 else 1.0
        right = self._right
        scaled = [feature / expected for feature in features]
        for index, row in enumerate(self._gram):
            mine, rest = weight * scaled[index], 0.0
            for other, feature in enumerate(scaled):
                row[other] = entry = row[other] * _KEEP + mine * feature
                rest += entry * coefficients[other]
            right[index] = wanted = right[index] * _KEEP + mine * share
            if row[index] > 0.0:
                best = coefficients[index] + (wanted - rest) / row[index]
                coefficients[index] = max(0.0, best)
        return factor

    def scale(self, factor: float) -> None:
        """Take all for so many times as much as it was, and the past for little of a guide."""
        self.coefficients[:] = [factor * coefficient for coefficient in self.coefficients]
        self._gram = [[KEPT / factor**2 * entry for entry in row] for row in self._gram]
        self._right = [KEPT / factor * entry for entry in self._right]
        self._strange = 0.0

    def _watch(self, share: float) -> float:
        """Let the past go where several cases in a row say that all has become slower, or quicker."""
        self._strange += ((share - 1.0) / max(share, 1.0) - self._strange) / SOME
        if -DRIFT <= self._strange <= (DRIFT if self._above == 1.0 else 1.0):
            return 1.0
        factor = 1.0 / (1.0 - self._strange) if self._strange > 0 else 1.0 + self._strange
        self.scale(factor)
        return factor


def _product(coefficients: Sequence[float], features: Sequence[float]) -> float:
    total = 0.0
    for coefficient, feature in zip(coefficients, features, strict=True):
        total += coefficient * feature
    return total
