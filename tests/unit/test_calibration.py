"""Quantiles that mean what they say, whatever the errors look like."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.predict.calibration import FEWEST, RECENT, Calibration

ERRORS: dict[str, Callable[[Random], float]] = {
    "even": lambda rng: rng.uniform(0.5, 2.0),
    "long-tailed": lambda rng: rng.lognormvariate(0.0, 1.0),
    "always half": lambda rng: rng.uniform(0.49, 0.51),
}


@pytest.mark.parametrize("share", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("error", ERRORS)
def test_as_many_answers_keep_within_a_quantile_as_it_says(error: str, share: float) -> None:
    rng, calibration, kept = Random(7), Calibration(), 0
    for _ in range(FEWEST):
        calibration.observe(3.0, 3.0 * ERRORS[error](rng))
    for _ in range(4_000):
        took = 3.0 * ERRORS[error](rng)
        factor = calibration.factor(share)
        assert factor is not None
        kept += took <= 3.0 * factor
        calibration.observe(3.0, took)
    assert kept / 4_000 == pytest.approx(share, abs=0.015)


def test_a_few_answers_are_no_guide() -> None:
    calibration = Calibration()
    for _ in range(FEWEST - 1):
        calibration.observe(1.0, 1.0)
        assert calibration.factor(0.9) is None
    calibration.observe(1.0, 1.0)
    assert calibration.factor(0.9) == 1.0


@given(st.lists(st.floats(1e-6, 1e6), min_size=FEWEST, max_size=2 * RECENT))
def test_it_is_the_order_statistic_of_the_recent_ratios(ratios: list[float]) -> None:
    calibration = Calibration()
    for ratio in ratios:
        calibration.observe(2.0, 2.0 * ratio)
    recent = sorted(ratios[-RECENT:])
    found = calibration.factor(0.9)
    assert found is not None
    assert sum(ratio <= found for ratio in recent) >= min(0.9 * (len(recent) + 1), len(recent))
    assert sum(ratio < found for ratio in recent) <= 0.9 * (len(recent) + 1)
