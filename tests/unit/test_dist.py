"""Distributions: mass, conditioning, tails, sums, against sums over the samples themselves."""

from itertools import pairwise
from math import inf, isfinite, nan
from statistics import mean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.dist import EDGES, LARGEST, TAIL_TO_COME, WIDEST, Dist

SAMPLES = st.lists(st.integers(1, 5_000), min_size=1, max_size=60)
EXACT = tuple(float(edge) for edge in range(1, 5_001))
DISTS = SAMPLES.map(lambda samples: Dist.of(samples, EXACT))
SHARES = st.floats(0.0, 1.0)


def is_sound(found: Dist) -> None:
    assert found.values and all(value > 0 and isfinite(value) for value in found.values)
    assert list(found.values) == sorted(set(found.values))
    assert all(0 < weight <= 1 + 1e-12 for weight in found.weights)
    assert sum(found.weights) == pytest.approx(1.0)


@given(SAMPLES)
def test_moments_and_quantiles_are_those_of_the_samples(samples: list[int]) -> None:
    found = Dist.of(samples, EXACT)
    is_sound(found)
    assert found.mean == pytest.approx(mean(samples))
    assert found.variance == pytest.approx(pvariance(samples), abs=1e-6)
    ordered = sorted(samples)
    assert found.quantile(1.0) == ordered[-1]
    assert found.quantile(0.0) == ordered[0]
    for value in (ordered[0] - 1, ordered[len(ordered) // 2], ordered[-1] + 1):
        assert found.cdf(value) == pytest.approx(sum(one <= value for one in samples) / len(samples))


@given(SAMPLES)
def test_samples_are_rounded_up_to_edges(samples: list[int]) -> None:
    found = Dist.of(samples)
    is_sound(found)
    assert set(found.values) <= set(EDGES)
    exact = Dist.of(samples, EXACT)
    for sample in samples:
        assert found.cdf(sample) <= exact.cdf(sample) + 1e-12  # larger in every respect
    assert exact.mean <= found.mean <= 1.06 * exact.mean + 1


def test_edges() -> None:
    assert EDGES[0] == 1 and EDGES[-1] >= LARGEST
    assert EDGES[:33] == tuple(map(float, range(1, 34)))
    assert all(b / a <= 1.06 or b - a == 1 for a, b in pairwise(EDGES))
    assert Dist.of([0.25, 2.0**30]).values == (1.0, 2.0**30)


@given(DISTS, SHARES)
def test_a_quantile_is_reached_and_the_value_before_it_is_not_enough(found: Dist, share: float) -> None:
    value = found.quantile(share)
    assert found.cdf(value) >= share - 1e-9
    index = found.values.index(value)
    if index:
        assert found.cdf(found.values[index - 1]) < share + 1e-9


@given(SAMPLES, st.integers(0, 6_000))
def test_conditioning_is_that_of_the_samples(samples: list[int], attained: int) -> None:
    found, longer = Dist.of(samples, EXACT).beyond(attained), [one for one in samples if one > attained]
    is_sound(found)
    if longer:
        assert found.mean == pytest.approx(mean(longer))
        assert found == Dist.of(longer, EXACT) or found.mean == pytest.approx(Dist.of(longer, EXACT).mean)
    else:
        assert found == Dist.at(TAIL_TO_COME * attained)
    left = Dist.of(samples, EXACT).left(attained)
    is_sound(left)
    assert left.mean == pytest.approx(found.mean - attained)


@given(SAMPLES, st.floats(0.0, 0.99))
def test_the_tail_expectation(samples: list[int], share: float) -> None:
    found = Dist.of(samples, EXACT)
    tail = found.cvar(share)
    assert found.mean - 1e-6 <= tail <= found.values[-1] + 1e-6
    assert found.cvar(0.0) == pytest.approx(found.mean)
    assert tail >= found.quantile(share) - 1e-6
    assert found.cvar(min(share + 0.005, 0.995)) >= tail - 1e-6


def test_the_tail_expectation_of_a_known_case() -> None:
    found = Dist((1.0, 2.0, 10.0), (0.5, 0.3, 0.2))
    assert found.cvar(0.8) == pytest.approx(10.0)
    assert found.cvar(0.6) == pytest.approx((0.2 * 2 + 0.2 * 10) / 0.4)


@given(DISTS, DISTS, st.floats(0.01, 0.99))
def test_mixing(one: Dist, other: Dist, share: float) -> None:
    found = Dist.mixed([(share, one), (1 - share, other), (0.0, Dist.at(77_777.0))])
    is_sound(found)
    assert found.mean == pytest.approx(share * one.mean + (1 - share) * other.mean)
    for value in one.values[:5]:
        assert found.cdf(value) == pytest.approx(share * one.cdf(value) + (1 - share) * other.cdf(value))


@given(SAMPLES, st.integers(1, 6_000))
def test_truncation_leaves_an_atom_at_the_cap(samples: list[int], most: int) -> None:
    found = Dist.of(samples, EXACT).truncated(most)
    is_sound(found)
    assert found.values[-1] <= most
    assert found.mean == pytest.approx(mean(min(one, most) for one in samples))


@given(DISTS, DISTS)
def test_sums_have_the_sum_of_the_means(one: Dist, other: Dist) -> None:
    found = one.plus(other)
    is_sound(found)
    together = one.mean + other.mean
    if len(one) * len(other) <= WIDEST:
        assert found.mean == pytest.approx(together)
        assert found.variance == pytest.approx(one.variance + other.variance, abs=1e-6)
    else:
        assert len(found) <= len(EDGES)
        assert together - 1e-6 <= found.mean <= 1.06 * together + 1


@given(DISTS, st.floats(0.001, 1_000.0))
def test_another_unit(found: Dist, factor: float) -> None:
    assert found.times(factor).mean == pytest.approx(factor * found.mean)
    assert found.times(factor).weights == pytest.approx(found.weights)


def test_equal_distributions_are_equal() -> None:
    assert Dist.of([5, 7, 5]) == Dist.of([7, 5, 5]) == Dist((5.0, 7.0), (2.0, 1.0))
    assert Dist.of([5, 7]) != Dist.of([5, 8])
    assert len({Dist.at(3.0), Dist.of([3])}) == 1
    assert repr(Dist.of([5, 7, 5])) == "<Dist of 2: 5: 0.667, 7: 0.333>"


@pytest.mark.parametrize(
    ("values", "weights"),
    [
        ((), ()),
        ((1.0,), ()),
        ((1.0, 2.0), (1.0,)),
        ((0.0,), (1.0,)),
        ((-1.0,), (1.0,)),
        ((2.0, 1.0), (1.0, 1.0)),
        ((1.0, 1.0), (1.0, 1.0)),
        ((1.0, nan, 3.0), (1.0, 1.0, 1.0)),
        ((nan,), (1.0,)),
        ((1.0, inf), (1.0, 1.0)),
        ((1.0,), (0.0,)),
        ((1.0,), (nan,)),
        ((1.0,), (inf,)),
        ((1.0, 2.0), (2.0, -1.0)),
    ],
)
def test_what_is_no_distribution_is_refused(values: tuple[float, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"values|weights"):
        Dist(values, weights)


def test_nothing_seen_is_refused() -> None:
    with pytest.raises(ValueError, match="values"):
        Dist.of([])
    with pytest.raises(ValueError, match="values"):
        Dist.mixed([(0.0, Dist.at(1.0))])
