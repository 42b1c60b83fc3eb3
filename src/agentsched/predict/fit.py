"""Least squares that forget: what a value is made of, by the recent past, for a handful of features.

Errors are relative to what was expected: short times and long ones are met with equal shares of error. Every
observation moves each coefficient once to where it is best given the others (one sweep of coordinate descent, held at
0 from below). What the past cannot tell apart therefore stays as it was at first, in proportions that are given.
"""

from collections.abc import Sequence
from math import sqrt

from agentsched.model.value import record

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

WEIGHT = 10.0
"""Observations that what an earlier fit has learned counts for at most: some dozens of new ones outweigh it."""

TINY = 1e-15
"""Coefficients below it are 0 to whoever begins with them."""

ROUNDED = 1e-6
"""By how much a matrix may miss to be one of squares: it was added up from many."""

_KEEP = 1.0 - 1.0 / MEMORY


@record
class Fitted:
    """What a fit has learned, for another one to begin with.

    Attributes:
        coefficients: none negative, one above 0.
        gram: how much it was learned from, of each pair of features: the upper triangle of the matrix, row by row.
        count: observations it was learned from, at least 1.
    """

    coefficients: tuple[float, ...]
    gram: tuple[float, ...]
    count: int


class Fit:
    """Coefficients, none negative, of `value = sum of coefficient * feature`.

    Args:
        shape: proportions in which the first observation is shared out among the coefficients.
        above: weight of a value above what was expected, where one below weighs 1. With less than 1 the fit keeps to
            the low side of what is seen (an expectile), as of times to which now and then something else is added;
            then it takes no run of high values for a change of all.
    """

    __slots__ = ("_above", "_gram", "_right", "_shape", "_some", "_strange", "coefficients", "count")

    def __init__(self, *shape: float, above: float = 1.0) -> None:
        self.coefficients = [0.0] * len(shape)
        self.count = 0
        self._above = above
        self._shape = shape
        self._gram = [[0.0] * len(shape) for _ in shape]
        self._right = [0.0] * len(shape)
        self._strange = 0.0
        self._some = SOME

    def learned(self) -> Fitted | None:
        """Return what the past says; None without a past."""
        if not self.count:
            return None
        gram = tuple([entry for index, row in enumerate(self._gram) for entry in row[index:]])
        coefficients = tuple([one if one >= TINY else 0.0 for one in self.coefficients])
        return Fitted(coefficients, gram, self.count)

    def resume(self, fitted: Fitted) -> None:
        """Begin with what another fit of such features has learned, as if it were `WEIGHT` observations at most."""
        coefficients, entries = list(fitted.coefficients), iter(fitted.gram)
        width = range(len(coefficients))
        gram = [[0.0] * len(coefficients) for _ in width]
        for row in width:
            for column in width[row:]:
                gram[row][column] = gram[column][row] = next(entries)
        weight = _product(coefficients, [_product(row, coefficients) for row in gram])
        share = WEIGHT / weight if weight > WEIGHT else 1.0
        self.coefficients, self.count = coefficients, fitted.count
        self._gram = [[share * entry for entry in row] for row in gram]
        self._right = [_product(row, coefficients) for row in self._gram]
        self._some = 1  # of what is only said to be so, the first case is evidence enough

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
        self._strange += ((share - 1.0) / max(share, 1.0) - self._strange) / self._some
        if self._some < SOME:
            self._some += 1
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


def is_of_squares(entries: Sequence[float], width: int) -> bool:
    """Whether this is the upper triangle of a matrix that no direction is negative in, but for rounding (Cholesky)."""
    flat = iter(entries)
    triangle = {(row, column): next(flat) for row in range(width) for column in range(row, width)}
    scale = [sqrt(triangle[row, row]) for row in range(width)]
    left = {
        (row, column): 0.0 if not entry else entry / (scale[row] or 1.0) / (scale[column] or 1.0)
        for (row, column), entry in triangle.items()
    }
    for pivot in range(width):
        here = left[pivot, pivot]
        beside = {column: left[pivot, column] for column in range(pivot + 1, width)}
        if here < -ROUNDED:
            return False
        if here <= ROUNDED:
            if max(map(abs, beside.values()), default=0.0) > sqrt(ROUNDED):
                return False
            continue
        for row, entry in beside.items():
            for column in range(row, width):
                left[row, column] -= entry * beside[column] / here
    return True
