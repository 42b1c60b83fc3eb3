"""Profiles: what is written is read, what is broken is said in words, what was learned is a beginning and no more."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf, isfinite
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import Backend, UsageError
from agentsched.dist import Dist
from agentsched.engine.profilejson import read_profile, written
from agentsched.predict import Learned, Measured, Past, Profile, Speed, Steps
from agentsched.predict.fit import WEIGHT, Fit, is_of_squares
from agentsched.predict.prompts import PromptRatio
from agentsched.predict.steps import MOST_STEPS, SECONDS
from tests.strategies import learned, profiles, taught

Path = tuple[Any, ...]
"""Where in a JSON value."""


# -- on paper ----------------------------------------------------------------------------------------------


@given(profiles)
def test_a_profile_is_read_as_it_was_written(profile: Profile) -> None:
    text = written(profile)
    assert read_profile(text, "f") == profile
    assert written(read_profile(text, "f")) == text


FULL = Profile(
    backends=(
        Measured(
            base_url="http://a/v1",
            name="a",
            learned=taught([(100, 20, 1.0, 0, 1.0), (900, 50, 4.0, 300, 1.2)], 5_000),
            source="calibration",
            at="2026-01-01T00:00:00+00:00",
            calls=2,
            seconds=1.5,
            ladder=((64, 1), (128, 4)),
        ),
    ),
    prompts=(PromptRatio("m", 900.0, 1_000.0),),
    steps=Steps().rows(),
)


def full() -> Any:
    steps = Steps()
    for number in range(5):
        steps.observe(("m", "w", "s"), read=number, written=10 * number, service_s=0.1 * number)
    return json.loads(written(replace(FULL, steps=steps.rows())))


def places(found: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    inside = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, item in inside:
        yield from places(item, (*path, key))


PLACES = list(places(full()))


def changed(path: Path, item: Any, *, drop: bool = False) -> Any:
    found = copy.deepcopy(full())
    if not path:
        return item
    at = found
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = item
    return found


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([0, -1, 1e-300, 1e300, 1, "", "journal"])
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(PLACES), anything, st.booleans())
@settings(max_examples=500)
def test_whatever_a_file_holds_it_is_a_profile_or_one_clear_line(path: Path, item: Any, drop: bool) -> None:
    text = json.dumps(changed(path, item, drop=drop and bool(path)))
    try:
        profile = read_profile(text, "p.json")
    except UsageError as error:
        assert str(error).startswith("p.json is not a profile that can be used: ")
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    Past(profile)
    for one in profile.backends:
        speed = Speed(one.learned)
        for number in range(3):
            speed.observe_prefill(1_000, 0.3)
            speed.observe_decode(100, 2.0, 3.0, read=number * 500, held=1e6)
        assert speed.pace is not None
        assert all(
            0 <= part < inf for part in (speed.pace.entry_s, speed.pace.prefill_s, speed.pace.decode_s)
        )


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_what_is_no_profile_at_all_is_said_so(text: str) -> None:
    with pytest.raises(UsageError, match=r"^p\.json is not a profile that can be used: "):
        read_profile(text, "p.json")


@pytest.mark.parametrize(
    ("path", "item", "why"),
    [
        (("agentsched profile",), 2, "it is of version 2; this reads 1: make it again"),
        (("agentsched profile",), True, "it is of version True; this reads 1: make it again"),
        (("more",), 1, "the profile has no 'more'"),
        (("backends", 0, "name"), None, "a backend's name is null; it must be text"),
        (("backends", 0, "source"), "x", "source is 'x'; it must be 'calibration' or 'journal' or 'run'"),
        (("backends", 0, "seconds"), -1, "seconds is -1; it must be a number from 0 to 1e+30"),
        (("backends", 0, "calls"), 1.5, "calls is 1.5; it must be a whole number from 0 to 9007199254740992"),
        (
            ("backends", 0, "prefill", "coefficients"),
            [0, 0],
            "prefill: coefficients must be 0 or from 1e-15 to 1e+06, and one above 0",
        ),
        (
            ("backends", 0, "prefill", "coefficients"),
            [1],
            "prefill: coefficients has 1 numbers; it must have 2",
        ),
        (
            ("backends", 0, "prefill", "gram"),
            [1, 5, 1],
            "prefill: gram is not the triangle of a sum of squares",
        ),
        (("backends",), [full()["backends"][0]] * 2, "two of the backends are the same"),
        (("prompts", 0, "counted"), 9e9, "9000000000.0 tokens where 1000.0 were estimated cannot be"),
        (("steps", 0, "calls"), 4, "input_tokens is of 5 calls, not of 4"),
        (
            ("steps", 0, "service_s"),
            [[2, 4], [1, 1]],
            "the values of service_s must be above 0 and ascending, at least one",
        ),
    ],
)
def test_what_is_wrong_is_named(path: Path, item: Any, why: str) -> None:
    found = full()
    if path[0] == "more":
        found["more"] = item
    else:
        found = changed(path, item)
    with pytest.raises(UsageError) as error:
        read_profile(json.dumps(found), "p.json")
    assert str(error.value) == f"p.json is not a profile that can be used: {why}"


# -- whose it is -------------------------------------------------------------------------------------------


def row(base_url: str | None, name: str, kv: int) -> Measured:
    return Measured(base_url=base_url, name=name, learned=Learned(kv_tokens=kv), source="run")


def test_a_backend_is_known_by_its_address_else_by_its_name() -> None:
    profile = Profile(
        backends=(row(None, "b", 1), row("http://b/v1", "other", 2), row("http://c/v1", "b", 3))
    )
    assert profile.of(Backend("http://b/v1", name="b")) == Learned(kv_tokens=2)
    assert profile.of(Backend("http://x/v1", name="b")) == Learned(kv_tokens=1)
    assert profile.of(Backend("http://x/v1", name="other")) is None
    assert profile.of(Backend("http://x/v1")) is None


def test_what_is_newer_takes_the_place_of_what_it_is_about() -> None:
    old = Profile(
        backends=(row("http://a/v1", "a", 1), row(None, "b", 2), row("http://c/v1", "c", 3)),
        prompts=(PromptRatio("m", 1.0, 1.0), PromptRatio("n", 1.0, 1.0)),
    )
    new = Profile(
        backends=(row("http://a/v1", "x", 4), row("http://b/v1", "b", 5)),
        prompts=(PromptRatio("m", 2.0, 1.0),),
    )
    both = old.updated(new)
    assert [one.learned.kv_tokens for one in both.backends] == [3, 4, 5]
    assert both.prompts == (PromptRatio("m", 2.0, 1.0), PromptRatio("n", 1.0, 1.0))
    assert both.updated(Profile()) == both


# -- a beginning -------------------------------------------------------------------------------------------


def read_in(fit: Fit, cases: int, seed: int, factor: float = 1.0, noise: float = 0.0) -> None:
    rng = Random(seed)
    for _ in range(cases):
        tokens, others = rng.randint(50, 900), rng.uniform(0, 8)
        value = factor * (0.03 * tokens + 0.002 * tokens * others) * rng.gauss(1.0, noise)
        fit.observe(value, tokens, tokens * others)


def resumed(seed: int = 1) -> Fit:
    before, fit = Fit(1.0, 0.06), Fit(1.0, 0.06)
    read_in(before, 200, seed)
    fitted = before.learned()
    assert fitted is not None
    fit.resume(fitted)
    assert fit.coefficients == before.coefficients
    return fit


def test_what_goes_on_as_it_was_stays_as_it_was() -> None:
    fit = resumed()
    read_in(fit, 30, seed=2, noise=0.05)
    assert fit.expected(100, 500) == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_speed_that_is_far_off_is_found_out_by_the_first_calls(factor: float) -> None:
    fit = resumed()
    read_in(fit, 3, seed=2, factor=factor)
    assert fit.expected(100, 500) == pytest.approx(4.0 * factor, rel=0.1)


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_a_speed_that_is_somewhat_off_is_outweighed_within_some_dozens(factor: float) -> None:
    """Half of the way is gone after ten calls, all but a twentieth after sixty."""
    fit = resumed()
    read_in(fit, 10, seed=2, factor=factor)
    wrong = abs(fit.expected(100, 500) / 4.0 / factor - 1.0)
    assert wrong < 0.6 * abs(1.0 / factor - 1.0)
    read_in(fit, 50, seed=3, factor=factor)
    assert fit.expected(100, 500) == pytest.approx(4.0 * factor, rel=0.05)


@given(learned)
def test_no_past_counts_for_more_than_some_observations(one: Learned) -> None:
    for fitted, fit in ((one.prefill, Fit(0.0, 1.0)), (one.decode, Fit(1.0, 0.06, 0.007, 0.0))):
        if fitted is not None:
            assert is_of_squares(fitted.gram, len(fitted.coefficients))
            fit.resume(fitted)
            again = fit.learned()
            assert again is not None
            assert again.coefficients == fitted.coefficients
            weight = sum(
                a * b * entry
                for a, line in zip(fit.coefficients, fit._gram, strict=True)
                for b, entry in zip(fit.coefficients, line, strict=True)
            )
            assert weight <= WEIGHT * 1.001


@given(st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_sum_of_squares_is_seen_to_be_one_and_a_turned_one_is_not(rows: list[list[float]]) -> None:
    gram = [[sum(line[i] * line[j] for line in rows) for j in range(3)] for i in range(3)]
    assert is_of_squares([gram[i][j] for i in range(3) for j in range(i, 3)], 3)
    gram[0][1] = gram[0][0] + gram[1][1] + 1.0
    assert not is_of_squares([gram[i][j] for i in range(3) for j in range(i, 3)], 3)


def test_lengths_and_prompts_begin_as_they_were_and_are_outweighed() -> None:
    steps = Steps()
    for _ in range(500):
        steps.observe(("m", "w", "s"), read=10, written=100, service_s=1.0)
    past = Past(Profile(steps=steps.rows(), prompts=(PromptRatio("m", 2_000.0, 1_000.0),)))
    expected = past.lengths.expected(("m", "w", "s"), None)
    assert 100 <= expected <= 106, "rounded up to a bucket"
    assert past.prompts.expected("m", 500) == 1_000
    for _ in range(60):
        past.lengths.observe(("m", "w", "s"), 400)
        past.prompts.observe("m", 500, 500)
    assert past.lengths.expected(("m", "w", "s"), None) == pytest.approx(400, rel=0.15)
    assert past.prompts.expected("m", 500) == pytest.approx(500, rel=0.1)


# -- steps -------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e9)), min_size=1))
def test_a_step_says_how_its_calls_were_distributed(calls: list[tuple[int, int, float]]) -> None:
    steps = Steps()
    for read, wrote, seconds in calls:
        steps.observe(("m", None, "s"), read=read, written=wrote, service_s=seconds)
    (row,) = steps.rows()
    assert (row.key, row.calls) == (("m", None, "s"), len(calls))
    assert row.input_tokens == Dist.of(min(read, 2**17) for read, _, _ in calls)
    assert row.output_tokens == Dist.of(min(wrote, 2**17) for _, wrote, _ in calls)
    assert row.service_s == Dist.of((min(seconds, SECONDS[-1]) for _, _, seconds in calls), SECONDS)


def test_steps_are_bounded_and_the_longest_unmet_go_first() -> None:
    steps = Steps()
    for number in range(MOST_STEPS):
        steps.observe((None, None, str(number)), read=1, written=1, service_s=1.0)
    steps.observe((None, None, "0"), read=1, written=1, service_s=1.0)
    steps.observe((None, None, "new"), read=1, written=1, service_s=1.0)
    names = [row.step for row in steps.rows()]
    assert len(names) == MOST_STEPS
    assert "1" not in names
    assert names[-2:] == ["0", "new"]


def test_times_have_buckets_of_six_percent() -> None:
    assert SECONDS[0] == 0.001
    assert SECONDS[-1] > 86_400
    assert all(1.04 < b / a < 1.08 and isfinite(b) for a, b in pairwise(SECONDS))
