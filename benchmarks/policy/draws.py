"""Drawing lengths and popular things."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from statistics import NormalDist


def tag(dice: Random) -> str:
    """Name something that is like nothing else in the stream."""
    return f"{dice.getrandbits(48):012x}"


def length(dice: Random, mu: float, sigma: float, *, most: int = 20_000) -> int:
    """Draw a lognormal number of tokens; `mu` and `sigma` are of its natural logarithm."""
    return min(max(round(dice.lognormvariate(mu, sigma)), 1), most)


def normal_scores(values: Sequence[float]) -> list[float]:
    """Return for each value where it would stand were they all drawn from a standard normal distribution."""
    order = sorted(range(len(values)), key=values.__getitem__)
    scores = [0.0] * len(values)
    for rank, index in enumerate(order):
        scores[index] = NormalDist().inv_cdf((rank + 0.5) / len(values))
    return scores


class Odds:
    """Numbers from 0 on that come up in proportion to weights."""

    def __init__(self, weights: Iterable[float]) -> None:
        self._sums = list(accumulate(weights))

    @classmethod
    def zipf(cls, count: int, exponent: float) -> "Odds":
        """Let the n-th most popular of `count` come up in proportion to n to the power of -`exponent`."""
        return cls((rank + 1) ** -exponent for rank in range(count))

    def draw(self, dice: Random) -> int:
        """Draw one."""
        return bisect_right(self._sums, dice.random() * self._sums[-1], hi=len(self._sums) - 1)

    def sample(self, dice: Random, count: int) -> list[int]:
        """Draw `count` different ones, in order."""
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[self.draw(dice)] = None
        return sorted(drawn)
