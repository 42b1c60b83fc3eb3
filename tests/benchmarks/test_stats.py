"""Intervals and the gap closed."""

from math import nan
from random import Random

import pytest
from benchmarks.policy.report.stats import change, gap_closed, paired


def test_an_interval_is_around_its_value_and_shrinks_with_more_seeds() -> None:
    dice = Random(1)
    few = [dice.gauss(10.0, 1.0) for _ in range(5)]
    many = [dice.gauss(10.0, 1.0) for _ in range(60)]
    narrow, wide = paired(lambda mean: mean, many), paired(lambda mean: mean, few)
    for found, values in ((narrow, many), (wide, few)):
        assert found.value == pytest.approx(sum(values) / len(values))
        assert min(values) <= found.low < found.value < found.high <= max(values)
    assert narrow.high - narrow.low < (wide.high - wide.low) / 2


def test_the_interval_of_a_mean_is_near_that_of_the_normal_distribution() -> None:
    dice = Random(2)
    values = [dice.gauss(0.0, 1.0) for _ in range(100)]
    found = paired(lambda mean: mean, values)
    assert found.high - found.low == pytest.approx(2 * 1.96 / 10, rel=0.2)


def test_what_all_seeds_have_in_common_is_no_noise() -> None:
    baseline = [10.0, 100.0, 40.0, 70.0]
    found = change([0.9 * value for value in baseline], baseline)
    assert (found.low, found.value, found.high) == pytest.approx((-0.1, -0.1, -0.1))
    assert found.excludes(0.0)
    assert not change([11.0, 90.0, 44.0, 63.0], baseline).excludes(0.0)


def test_the_gap_closed() -> None:
    baseline, ceiling = [10.0, 20.0, 30.0], [6.0, 12.0, 18.0]
    half = gap_closed([8.0, 16.0, 24.0], baseline, ceiling)
    assert half is not None
    assert (half.low, half.value, half.high) == pytest.approx((0.5, 0.5, 0.5))
    worse = gap_closed([11.0, 22.0, 33.0], baseline, ceiling)
    assert worse is not None and worse.high < 0
    assert gap_closed(baseline, baseline, [9.9, 19.8, 29.7]) is None
    assert gap_closed(baseline, [nan] * 3, ceiling) is None


def test_more_in_time_closes_a_gap_too() -> None:
    found = gap_closed([0.9, 0.9], [0.8, 0.8], [1.0, 1.0])
    assert found is not None and found.value == pytest.approx(0.5)


def test_intervals_are_the_same_each_time() -> None:
    values = [1.0, 5.0, 2.0, 8.0]
    assert paired(lambda mean: mean, values) == paired(lambda mean: mean, values)
