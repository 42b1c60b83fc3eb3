"""Intervals and the gap closed."""

from math import inf, isnan
from random import Random

import pytest
from benchmarks.policy.report.stats import NO_GAP, UNCERTAIN, Interval, change, gap_closed, paired


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
    half = gap_closed([8.0, 16.0, 24.0], baseline, ceiling, sign=1)
    assert isinstance(half, Interval)
    assert (half.low, half.value, half.high) == pytest.approx((0.5, 0.5, 0.5))
    worse = gap_closed([11.0, 22.0, 33.0], baseline, ceiling, sign=1)
    assert isinstance(worse, Interval) and worse.high < 0


def test_more_in_time_closes_a_gap_too() -> None:
    found = gap_closed([0.9, 0.9], [0.8, 0.8], [1.0, 1.0], sign=-1)
    assert isinstance(found, Interval) and found.value == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("ceiling", "said"),
    [
        ([9.9, 19.8, 29.7], NO_GAP),
        ([11.0, 22.0, 33.0], NO_GAP),  # a ceiling below the baseline: being worse closes nothing
        ([inf, 1.0, 1.0], NO_GAP),
        ([12.0, 18.0, 24.0], UNCERTAIN),  # worse for one seed
    ],
)
def test_where_there_is_no_gap_none_is_closed(ceiling: list[float], said: str) -> None:
    assert gap_closed([8.0, 16.0, 24.0], [10.0, 20.0, 30.0], ceiling, sign=1) == said


def test_what_is_not_finite_has_no_interval() -> None:
    found = change([1.0, inf, 1.0], [2.0, 2.0, 2.0])
    assert found.value == inf and isnan(found.low) and isnan(found.high)


def test_intervals_are_the_same_each_time() -> None:
    values = [1.0, 5.0, 2.0, 8.0]
    assert paired(lambda mean: mean, values) == paired(lambda mean: mean, values)
