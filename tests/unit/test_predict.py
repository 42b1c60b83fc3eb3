"""What the past says: lengths and speeds, learned from made-up pasts whose truth is known."""

from math import inf
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.predict import MeanLengths, Prefixes, PromptLengths, Speed
from agentsched.predict.fit import Fit
from agentsched.predict.lengths import MEMORY, PRIOR_TOKENS
from agentsched.predict.prefixes import MARK_TOKENS, MOST_MARKS
from agentsched.predict.speed import (
    LEAST_PROMPT,
    PRIOR_DECODE_S,
    PRIOR_PREFILL_S,
    READ_SHARE,
    Pace,
    usual_pace,
)

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


# -- prompts -----------------------------------------------------------------------------------------------


def test_a_prompt_is_what_it_was_estimated_until_somebody_counts() -> None:
    assert PromptLengths().expected("m", 1_000) == 1_000


@given(st.floats(0.3, 4.0), st.lists(st.integers(400, 20_000), min_size=1, max_size=100))
def test_what_backends_count_corrects_the_estimates(true: float, estimates: list[int]) -> None:
    lengths = PromptLengths()
    for estimated in estimates:
        lengths.observe("m", estimated, round(true * estimated))
    assert lengths.expected("m", 10_000) == pytest.approx(true * 10_000, rel=0.02)
    assert lengths.expected("n", 10_000) == 10_000, "another model has another tokeniser"


def test_counts_that_cannot_be_are_bounded_and_short_prompts_say_nothing() -> None:
    lengths = PromptLengths()
    lengths.observe("m", 10, 500)
    assert len(lengths) == 0
    lengths.observe("m", 1_000, 10**7)
    assert lengths.expected("m", 1_000) == 5_000
    lengths.observe("n", 1_000, 0)
    assert lengths.expected("n", 1_000) == 200


def test_another_tokeniser_is_followed_and_models_are_bounded() -> None:
    lengths = PromptLengths(max_models=2)
    for counted in [1_000] * 300 + [2_000] * 300:
        lengths.observe("m", 1_000, counted)
    assert lengths.expected("m", 1_000) == pytest.approx(2_000, rel=0.01)
    for name in "abc":
        lengths.observe(name, 1_000, 2_000)
    assert len(lengths) == 2


# -- fits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("true", [(0.03, 0.0, 0.0), (0.03, 0.002, 3e-4), (0.002, 0.002, 0.0)])
def test_a_line_is_found_whatever_its_shape(seed: int, true: tuple[float, ...]) -> None:
    rng, fit = Random(seed), Fit(1.0, 0.06, 0.007)
    for _ in range(300):
        features = (rng.randint(1, 900), rng.uniform(0, 900 * 16), rng.choice([0, rng.uniform(0, 8_000)]))
        value = sum(c * f for c, f in zip(true, features, strict=True)) * max(0.3, rng.gauss(1, 0.1))
        fit.observe(value, *features)
    for features in ((100, 0, 0), (100, 1_500, 0), (300, 300, 5_000)):
        value = sum(c * f for c, f in zip(true, features, strict=True))
        assert fit.expected(*features) == pytest.approx(value, rel=0.1)


def test_the_first_observation_is_met_and_shared_out_by_the_shape() -> None:
    fit = Fit(1.0, 0.5)
    fit.observe(4.0, 2.0, 4.0)
    assert fit.coefficients == [1.0, 0.5]


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e7), st.floats(1.0, 1e7), st.floats(0.0, 1e7), st.floats(0.0, 1e9)),
        max_size=100,
    )
)
def test_no_coefficient_is_ever_negative_or_no_number(rows: list[tuple[float, ...]]) -> None:
    fit = Fit(1.0, 0.06, 0.0)
    for value, *features in rows:
        fit.observe(value, *features)
        assert all(0.0 <= coefficient < inf for coefficient in fit.coefficients)


@pytest.mark.parametrize("factor", [0.3, 0.5, 2.0, 3.0])
def test_a_change_of_all_speeds_is_followed_within_twenty_observations(factor: float) -> None:
    rng, fit = Random(3), Fit(1.0, 0.06)
    for number in range(220):
        features = (rng.randint(50, 900), rng.uniform(0, 5_000))
        value = (0.03 * features[0] + 0.002 * features[1]) * (factor if number >= 200 else 1.0)
        fit.observe(value, *features)
    assert fit.expected(100, 500) == pytest.approx(factor * 4.0, rel=0.15)


def test_one_that_waited_for_something_else_changes_little() -> None:
    fit = Fit(1.0)
    for _ in range(100):
        fit.observe(1.0, 100.0)
    fit.observe(1_000.0, 100.0)
    assert fit.expected(100.0) < 1.15


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_now_and_then_is_not_taken_for_slower(seed: int) -> None:
    """A third of the values has something added; the fit that keeps to the low side stays near the others."""
    rng, low = Random(seed), Fit(0.0, 1.0, above=0.2)
    for _ in range(400):
        tokens = rng.randint(100, 8_000)
        waited_s = rng.choice([0.0, 0.0, rng.uniform(0.0, 2.0)])
        low.observe((0.05 + tokens * 2e-4) * rng.gauss(1, 0.05) + waited_s, 1.0, tokens)
    assert low.expected(1.0, 4_000) == pytest.approx(0.85, rel=0.2)


def test_a_slower_engine_reads_slower_too() -> None:
    """First tokens cannot tell a slower engine from a longer queue, so its steps have to."""
    speed = Speed()
    for factor in [1.0] * 50 + [2.0] * 30:
        speed.observe_prefill(1_000, 0.2 * factor)
        speed.observe_decode(100, 3.0 * factor, 1.0)
    assert speed.pace is not None
    assert speed.pace.decode_s == pytest.approx(0.06, rel=0.05)
    assert speed.expected_first_s(1_000) == pytest.approx(0.4, rel=0.1)


# -- speeds ------------------------------------------------------------------------------------------------


def test_a_speed_is_unknown_until_measured() -> None:
    speed = Speed()
    assert (speed.prefill_s, speed.decode_s, speed.pace, speed.expected_first_s(100)) == (
        None,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("entry_s", "prefill_s", "decode_s", "slope"),
    [(0.02, 1e-4, 0.01, 0.06), (0.1, 5e-4, 0.03, 0.0), (0.005, 2e-3, 0.002, 1.0)],
)
def test_a_known_speed_is_recovered(
    seed: int, entry_s: float, prefill_s: float, decode_s: float, slope: float
) -> None:
    """Any mixture of sizes and loads, flat in the batch or proportional to it, times that scatter by 10 %."""
    rng, speed = Random(seed), Speed()
    for _ in range(300):
        read, wrote, batch = rng.randint(10, 8_000), rng.randint(1, 900), rng.uniform(1, 24)
        speed.observe_prefill(read, (entry_s + read * prefill_s) * rng.gauss(1, 0.1))
        step_s = decode_s * (1 + slope * (batch - 1))
        speed.observe_decode(wrote, wrote * step_s * rng.gauss(1, 0.1), batch)
    first_s = speed.expected_first_s(4_000)
    assert first_s == pytest.approx(0.95 * (entry_s + 4_000 * prefill_s), rel=0.06), (
        "on the low side of what is seen"
    )
    assert speed.pace is not None
    for batch in (1, 8, 24):
        learned = speed.pace.decode_s + speed.pace.batch_s * (batch - 1)
        assert learned == pytest.approx(decode_s * (1 + slope * (batch - 1)), rel=0.15)


def test_what_others_read_meanwhile_is_told_from_the_own_pace() -> None:
    rng, speed = Random(1), Speed()
    speed.observe_prefill(1_000, 0.5)
    for _ in range(300):
        wrote, read = rng.randint(50, 500), rng.choice([0, rng.randint(500, 20_000)])
        speed.observe_decode(wrote, wrote * 0.02 + read * 5e-4, 4.0, read=read)
    assert speed.pace is not None
    assert speed.pace.read_s == pytest.approx(5e-4, rel=0.1)


def test_a_short_prompt_says_nothing_about_reading() -> None:
    speed = Speed()
    speed.observe_prefill(LEAST_PROMPT - 1, 1.0)
    assert speed.prefill_s is None
    speed.observe_prefill(LEAST_PROMPT, 1.0)
    assert speed.prefill_s == 1.0 / LEAST_PROMPT


def test_one_measurement_is_enough_to_start_with() -> None:
    speed = Speed()
    speed.observe_prefill(1_000, 0.5)
    assert speed.pace is None
    speed.observe_decode(100, 3.0, 1.0)
    assert speed.pace == Pace(0.0, 0.0005, 0.03, 0.06 * 0.03, READ_SHARE * 0.03, 0.0)


def test_what_was_measured_in_part_is_filled_with_what_is_usual() -> None:
    speed, other = Speed(), Speed()
    other.observe_prefill(1_000, 0.1)
    other.observe_decode(100, 1.0, 1.0)
    speed.observe_prefill(1_000, 0.5)
    usual = usual_pace([speed, other])
    assert usual.prefill_s == pytest.approx(3e-4)
    assert usual.decode_s == pytest.approx(0.01)
    assert speed.filled(usual) == Pace(
        0.0, 0.0005, usual.decode_s, usual.batch_s, usual.read_s, usual.context_s
    )


def test_where_nothing_was_measured_a_mid_size_card_is_usual() -> None:
    assert usual_pace([Speed()]).decode_s == PRIOR_DECODE_S
    assert usual_pace([]).prefill_s == PRIOR_PREFILL_S


observations = st.lists(
    st.tuples(
        st.integers(-5, 2 * LEAST_PROMPT) | st.integers(1, 10**6),
        st.floats(1e-6, 1e6) | st.sampled_from([0.0, -1.0]),
        st.floats(-1, 1e4),
    ),
    max_size=80,
)


@given(observations)
def test_whatever_is_measured_a_speed_is_a_speed(observations: list[tuple[int, float, float]]) -> None:
    speed = Speed()
    for tokens, seconds, batch in observations:
        speed.observe_prefill(tokens, seconds)
        speed.observe_decode(tokens, seconds, batch)
    assert (speed.pace is None) == (speed.prefill_s is None or speed.decode_s is None)
    if speed.pace is not None:
        pace = speed.pace
        assert all(0.0 <= part < inf for part in (pace.entry_s, pace.prefill_s, pace.decode_s, pace.batch_s))
        assert pace.entry_s + pace.prefill_s > 0
        assert pace.decode_s + pace.batch_s + pace.read_s + pace.context_s > 0


# -- prefixes ----------------------------------------------------------------------------------------------

prompts = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=20)


def marks_of(text: list[int]) -> tuple[int, ...]:
    """Return a number for each beginning of a text."""
    return tuple(hash(tuple(text[: length + 1])) for length in range(len(text)))


@given(prompts, st.lists(st.integers(0, 3), max_size=12))
def test_a_prompt_is_spared_its_longest_common_beginning_with_one_that_was_read(
    read: list[list[int]], asked: list[int]
) -> None:
    prefixes = Prefixes()
    for text in read:
        prefixes.read(marks_of(text))
    common = max(
        (sum(a == b for a, b in zip(marks_of(text), marks_of(asked), strict=False)) for text in read),
        default=0,
    )
    assert prefixes.hit(marks_of(asked)) == common * MARK_TOKENS


def test_what_was_not_used_for_long_is_forgotten_from_its_end() -> None:
    prefixes = Prefixes()
    first = marks_of([1] * 100)
    prefixes.read(first)
    for number in range(2, 2 + MOST_MARKS // 100):
        prefixes.read(marks_of([number] * 100))
    assert len(prefixes) == MOST_MARKS
    assert prefixes.hit(first) == 0
    assert prefixes.hit(marks_of([2] * 100)) == 100 * MARK_TOKENS


def test_a_cache_that_turns_out_smaller_is_believed_to_be_smaller_and_may_grow_again() -> None:
    prefixes = Prefixes()
    for number in range(40):
        prefixes.read(marks_of([number] * 50))
    prefixes.told(50 * MARK_TOKENS, 0)
    assert len(prefixes) == 2_000, (
        "a backend that never said that anything was cached says nothing by silence"
    )
    prefixes.told(50 * MARK_TOKENS, 50 * MARK_TOKENS)
    prefixes.told(50 * MARK_TOKENS, 0)
    prefixes.read(marks_of([99] * 50))
    assert len(prefixes) == 1_600
    for _ in range(20):
        prefixes.read(marks_of([99] * 50))
        prefixes.told(50 * MARK_TOKENS, 50 * MARK_TOKENS)
    for number in range(40, 60):
        prefixes.read(marks_of([number] * 50))
    assert len(prefixes) > 1_600
