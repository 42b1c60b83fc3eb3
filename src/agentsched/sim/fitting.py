"""Fit speeds to measured times: non-negative least squares with few columns, small enough to do without a library."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from agentsched.sim.speed import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Hold a fitted speed and, per measurement, `predicted / measured - 1`."""

    speed: Speed
    residuals: tuple[float, ...]


def fit_of(speed: Speed, predicted: Iterable[float], measured: Iterable[float]) -> Fit:
    """Return a fit with its residuals."""
    return Fit(speed=speed, residuals=tuple(p / m - 1.0 for p, m in zip(predicted, measured, strict=True)))


def fit_ones(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Return the non-negative weights whose products with the rows come closest to 1, in least squares.

    With three columns the best choice of those that stay above zero is simply tried out.
    """
    width = len(rows[0])
    best, least = (0.0,) * width, math.inf
    for columns in [c for size in range(1, width + 1) for c in combinations(range(width), size)]:
        part = _least_squares([[row[c] for c in columns] for row in rows])
        weights = dict(zip(columns, part, strict=True))
        error = sum((sum(row[c] * w for c, w in weights.items()) - 1.0) ** 2 for row in rows)
        if min(part) >= 0.0 and error < least:
            best, least = tuple(weights.get(c, 0.0) for c in range(width)), error
    return best


def _least_squares(rows: list[list[float]]) -> list[float]:
    """Solve the normal equations of `rows * x = 1` by elimination."""
    width = range(len(rows[0]))
    system = [
        [sum(row[i] * row[j] for row in rows) for j in width] + [sum(row[i] for row in rows)] for i in width
    ]
    for i in width:
        pivot = system[i][i]
        system[i] = [value / pivot for value in system[i]]
        for j in width:
            if j != i:
                factor = system[j][i]
                system[j] = [a - factor * b for a, b in zip(system[j], system[i], strict=True)]
    return [line[-1] for line in system]
