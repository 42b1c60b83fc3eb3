"""Distributions of lengths and costs: discrete, immutable, never empty.

Samples are rounded *up* to bucket edges. A distribution made of what was seen then never says that a job is nearly
done when it is not, and the Gittins index of such shifted samples comes to be that of the true distribution
(shifted empirical Gittins, arXiv 2606.24703).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import isfinite

GROWTH = 1.06
"""Ratio of neighbouring edges, where they are more than one token apart: rounding up adds about 3 % on average."""

LARGEST = 2**20


def _edges() -> tuple[float, ...]:
    edges = [1.0]
    while edges[-1] < LARGEST:
        edges.append(float(max(int(edges[-1]) + 1, int(edges[-1] * GROWTH))))
    return tuple(edges)


EDGES = _edges()
"""Bucket edges for tokens: every number up to 33, then about 6 % apart."""

WIDEST = 256
"""Most values that a sum keeps apart; beyond it they are rounded up to `EDGES`."""

TAIL_TO_COME = 2.0
"""What has lasted longer than anything seen is expected to last twice as long as it has."""


class Dist:
    """Finitely many positive values with their probabilities.

    Attributes:
        values: the support, ascending.
        weights: the probabilities of the values; they sum to 1.
    """

    __slots__ = ("_upto", "values", "weights")

    def __init__(self, values: Sequence[float], weights: Sequence[float]) -> None:
        """Take values, finite, above 0 and ascending, with weights in any unit, finite and above 0.

        Raises:
            ValueError: for others, or for none.
        """
        if not values or len(values) != len(weights):
            raise ValueError(f"need values and as many weights, not {len(values)} and {len(weights)}")
        if not (values[0] > 0 and isfinite(values[-1]) and all(a < b for a, b in pairwise(values))):
            raise ValueError(f"values must be finite, above 0 and ascending: {values!r:.200}")
        total = sum(weights)
        if not (isfinite(total) and all(weight > 0 for weight in weights)):
            raise ValueError(f"weights must be finite and above 0: {weights!r:.200}")
        self.values = tuple(values)
        self.weights = tuple([weight / total for weight in weights])
        self._upto = tuple(accumulate(self.weights))

    @classmethod
    def at(cls, value: float) -> "Dist":
        """Return what is certain."""
        return cls((value,), (1.0,))

    @classmethod
    def of(cls, samples: Iterable[float], edges: Sequence[float] = EDGES) -> "Dist":
        """Return the distribution of what was seen, each sample counted once and rounded up to an edge.

        Args:
            samples: finite, at least one; what is below the first edge counts as the first, what is above the last
                stays as it is.
            edges: above 0, ascending.
        """
        return cls.weighted(((sample, 1.0) for sample in samples), edges)

    @classmethod
    def weighted(cls, samples: Iterable[tuple[float, float]], edges: Sequence[float] = EDGES) -> "Dist":
        """Return the same of samples with weights; those of weight 0 do not count."""
        found: dict[float, float] = {}
        for sample, weight in samples:
            if weight:
                value = _up(sample, edges)
                found[value] = found.get(value, 0.0) + weight
        values = sorted(found)
        return cls(values, [found[value] for value in values])

    @classmethod
    def mixed(cls, parts: Iterable[tuple[float, "Dist"]]) -> "Dist":
        """Return one of several distributions, each as likely as its weight says; those of weight 0 do not count."""
        return cls.weighted(
            ((value, share * weight) for share, part in parts for value, weight in part.pairs()), edges=()
        )

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dist) and self.values == other.values and self.weights == other.weights

    def __hash__(self) -> int:
        return hash((self.values, self.weights))

    def __repr__(self) -> str:
        shown = ", ".join(f"{value:g}: {weight:.3g}" for value, weight in [*self.pairs()][:8])
        return f"<Dist of {len(self)}: {shown}{', ...' if len(self) > 8 else ''}>"

    # -- numbers --------------------------------------------------------------------------------------

    @property
    def mean(self) -> float:
        """Return the expectation."""
        return sum(value * weight for value, weight in self.pairs())

    @property
    def variance(self) -> float:
        """Return the expectation of the squared distance from the mean."""
        mean = self.mean
        return sum((value - mean) ** 2 * weight for value, weight in self.pairs())

    def cdf(self, value: float) -> float:
        """Return how likely it is that `value` is not exceeded."""
        upto = bisect_right(self.values, value)
        return min(self._upto[upto - 1], 1.0) if upto else 0.0

    def quantile(self, share: float) -> float:
        """Return the least value that is not exceeded with at least this probability.

        Args:
            share: from 0 to 1.
        """
        return self.values[min(bisect_left(self._upto, share), len(self.values) - 1)]

    def cvar(self, share: float) -> float:
        """Return the expectation of the worst, what lies beyond the quantile of `share`: the mean for 0.

        Args:
            share: from 0 up to, not including, 1.
        """
        left = 1.0 - share
        taken = total = 0.0
        for value, weight in zip(reversed(self.values), reversed(self.weights), strict=True):
            counted = min(weight, left - taken)
            total += value * counted
            taken += counted
            if taken >= left:
                break
        return total / taken if taken > 0 else self.values[-1]

    # -- other distributions --------------------------------------------------------------------------

    def beyond(self, attained: float) -> "Dist":
        """Return what it will be in all, given that it is more than `attained`.

        Where nothing as large was ever seen, it is expected to be `TAIL_TO_COME` times as large.
        """
        first = bisect_right(self.values, attained)
        if not first:
            return self
        if first == len(self.values):
            return Dist.at(TAIL_TO_COME * attained)
        return Dist(self.values[first:], self.weights[first:])

    def left(self, attained: float) -> "Dist":
        """Return what is still to come of it, given that `attained` has come and that was not all."""
        total = self.beyond(attained)
        return total if attained <= 0 else Dist([value - attained for value in total.values], total.weights)

    def truncated(self, most: float) -> "Dist":
        """Return the same where whatever is more ends at `most`."""
        kept = bisect_left(self.values, most)
        if kept == len(self.values):
            return self
        return Dist([*self.values[:kept], most], [*self.weights[:kept], sum(self.weights[kept:])])

    def times(self, factor: float) -> "Dist":
        """Return the distribution of a multiple, for another unit."""
        return Dist([value * factor for value in self.values], self.weights)

    def plus(self, other: "Dist") -> "Dist":
        """Return the distribution of the sum of two that have nothing to do with each other."""
        pairs = ((a + b, p * q) for a, p in self.pairs() for b, q in other.pairs())
        edges = EDGES if len(self) * len(other) > WIDEST else ()
        return Dist.weighted(pairs, edges)

    def pairs(self) -> Iterable[tuple[float, float]]:
        """Return the values with their probabilities."""
        return zip(self.values, self.weights, strict=True)


def _up(value: float, edges: Sequence[float]) -> float:
    at = bisect_left(edges, value)
    return float(edges[at]) if at < len(edges) else float(value)
