"""What the past says: lengths and speeds, learned from made-up pasts whose truth is known."""

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.predict import MeanLengths, Speed
from agentsched.predict.lengths import MEMORY, PRIOR_TOKENS
from agentsched.predict.speed import BATCH_SLOPE, LEAST_PROMPT, batch_factor

KEY = ("m", "w", "s")

written = st.lists(st.integers(1, 100_000), min_size=1, max_size=MEMORY)


# -- lengths -----------------------------------------------------------------------------------------------


def test_what_was_never_seen_is_expected_to_be_usual() -> None:
    lengths = MeanLengths()
    assert lengths.expected(KEY, None) == PRIOR_TOKENS
    assert len(lengths) == 0


@given(written)
def test_a_short_past_is_averaged(written: list[int]) -> None:
    lengths = MeanLengths()
    for tokens in written:
        lengths.observe(KEY, tokens)
    assert lengths.expected(KEY, None) == pytest.approx(fmean(written))


@given(st.lists(st.integers(0, 100_000), max_size=20), st.none() | st.integers(0, 100_000))
def test_the_cap_holds_and_one_token_is_the_least(written: list[int], cap: int | None) -> None:
    lengths = MeanLengths()
    for tokens in written:
        lengths.observe(KEY, tokens)
    expected = lengths.expected(KEY, cap)
    assert expected >= 1
    assert cap is None or expected <= max(1, cap)
    mean = fmean(written) if written else PRIOR_TOKENS
    assert expected == pytest.approx(max(1, mean if cap is None else min(mean, cap)))


def test_each_model_workflow_and_step_has_its_own_past() -> None:
    lengths = MeanLengths()
    keys = [("m", "w", "s"), ("n", "w", "s"), ("m", "v", "s"), ("m", "w", "t"), (None, None, None)]
    for number, key in enumerate(keys, start=1):
        lengths.observe(key, 100 * number)
    assert [lengths.expected(key, None) for key in keys] == [100, 200, 300, 400, 500]


def test_a_drift_is_followed() -> None:
    lengths = MeanLengths()
    for _ in range(1_000):
        lengths.observe(KEY, 100)
    for _ in range(MEMORY):
        lengths.observe(KEY, 1_000)
    assert lengths.expected(KEY, None) == pytest.approx(1_000 - 900 / 2.718, rel=0.02)
    for _ in range(4 * MEMORY):
        lengths.observe(KEY, 1_000)
    assert lengths.expected(KEY, None) == pytest.approx(1_000, rel=0.01)


def test_keys_are_bounded_and_the_longest_unused_go_first() -> None:
    lengths = MeanLengths(max_keys=3)
    for name in "abc":
        lengths.observe((name, None, None), 10)
    lengths.observe(("a", None, None), 10)
    lengths.observe(("d", None, None), 10)
    assert len(lengths) == 3
    known = [name for name in "abcd" if lengths.expected((name, None, None), None) == 10]
    assert known == ["a", "c", "d"]


def test_the_bound_holds_with_many_keys() -> None:
    lengths = MeanLengths()
    for number in range(10_050):
        lengths.observe((None, None, f"s{number}"), 10)
    assert len(lengths) == 10_000


# -- speeds ------------------------------------------------------------------------------------------------


def test_a_speed_is_unknown_until_measured() -> None:
    assert (Speed().prefill_s, Speed().decode_s) == (None, None)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("prefill_s", "decode_s"), [(1e-4, 0.01), (5e-4, 0.03), (2e-3, 0.2)])
def test_a_known_speed_is_recovered(seed: int, prefill_s: float, decode_s: float) -> None:
    """Any mixture of sizes and loads, times that scatter by 10 %: within 3 % of the truth."""
    rng, speed = Random(seed), Speed()
    for _ in range(300):
        read, wrote, batch = rng.randint(10, 8_000), rng.randint(1, 900), rng.uniform(1, 24)
        speed.observe_prefill(read, read * prefill_s * rng.gauss(1, 0.1))
        step_s = decode_s * (1 + BATCH_SLOPE * (batch - 1))
        speed.observe_decode(wrote, wrote * step_s * rng.gauss(1, 0.1), batch)
    assert speed.prefill_s == pytest.approx(prefill_s, rel=0.05)
    assert speed.decode_s == pytest.approx(decode_s, rel=0.05)


def test_a_short_prompt_says_nothing_about_reading() -> None:
    speed = Speed()
    speed.observe_prefill(LEAST_PROMPT - 1, 1.0)
    assert speed.prefill_s is None
    speed.observe_prefill(LEAST_PROMPT, 1.0)
    assert speed.prefill_s == 1.0 / LEAST_PROMPT


def test_one_measurement_is_enough_to_start_with() -> None:
    speed = Speed()
    speed.observe_prefill(1_000, 0.5)
    speed.observe_decode(100, 3.0, 1.0)
    assert (speed.prefill_s, speed.decode_s) == (0.0005, 0.03)


def test_a_change_of_speed_is_followed() -> None:
    speed = Speed()
    for seconds in [1.0] * 500 + [2.0] * 120:
        speed.observe_prefill(1_000, seconds)
        speed.observe_decode(1_000, seconds, 1.0)
    assert speed.prefill_s == pytest.approx(0.002, rel=0.02)
    assert speed.decode_s == pytest.approx(0.002, rel=0.02)


observations = st.lists(
    st.tuples(
        st.integers(-5, 2 * LEAST_PROMPT) | st.integers(1, 10**6),
        st.floats(1e-6, 1e6) | st.sampled_from([0.0, -1.0]),
        st.floats(-1, 1e4),
    ),
    max_size=80,
)


@given(observations)
def test_speeds_stay_between_what_was_measured_and_above_zero(
    observations: list[tuple[int, float, float]],
) -> None:
    speed = Speed()
    prefills: list[float] = []
    decodes: list[float] = []
    for tokens, seconds, batch in observations:
        speed.observe_prefill(tokens, seconds)
        speed.observe_decode(tokens, seconds, batch)
        if tokens >= LEAST_PROMPT and seconds > 0:
            prefills.append(seconds / tokens)
        if tokens > 0 and seconds > 0:
            decodes.append(seconds / tokens / batch_factor(batch))
    for learned, measured in ((speed.prefill_s, prefills), (speed.decode_s, decodes)):
        if learned is None:
            assert not measured
        else:
            assert learned > 0
            assert min(measured) * (1 - 1e-9) <= learned <= max(measured) * (1 + 1e-9)


@given(st.floats(-10, 1e4), st.floats(0, 100))
def test_a_larger_batch_is_never_quicker(batch: float, more: float) -> None:
    assert 1.0 <= batch_factor(batch) <= batch_factor(batch + more)


def test_alone_is_a_batch_of_one() -> None:
    assert batch_factor(1.0) == batch_factor(0.0) == 1.0
    assert batch_factor(2.0) == 1.0 + BATCH_SLOPE
