"""Profiles as JSON: written with every digit, and read with a word on whatever is wrong."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TypeVar, cast, get_args

from agentsched.dist import Dist
from agentsched.engine.facts import Object, facts_of, label_of, list_of, number_of, numbers_of, whole_of
from agentsched.engine.jsonline import read_line
from agentsched.errors import UsageError
from agentsched.predict import Learned, Measured, Profile
from agentsched.predict.fit import TINY, Fitted, is_of_squares
from agentsched.predict.profile import Source
from agentsched.predict.prompts import LEAST, MOST, PromptRatio
from agentsched.predict.steps import MOST_STEPS, StepRow

VERSION = 1
KIND = "agentsched profile"

MOST_BACKENDS = 1_000
MOST_RUNGS = 1_000
MOST_BUCKETS = 1_000
MOST_CHARACTERS = 64 * 2**20
SLOWEST = 1e6
"""Seconds per token, or whatever a coefficient is of."""

DISTRIBUTIONS = ("input_tokens", "output_tokens", "service_s")
"""Of a step."""

WIDTHS: Mapping[str, int] = MappingProxyType({"prefill": 2, "decode": 4})
"""How many coefficients each fit has."""

T = TypeVar("T")


# -- writing -----------------------------------------------------------------------------------------------


def written(profile: Profile) -> str:
    """Return the text of a profile's file."""
    parts = {
        "backends": [_measured_json(one) for one in profile.backends],
        "prompts": [_prompt_json(one) for one in profile.prompts],
        "steps": [step_json(one) for one in profile.steps],
    }
    lines = [f'"{KIND}": {VERSION}']
    for name, rows in parts.items():
        listed = ",\n".join(json.dumps(row) for row in rows)
        lines.append(f'"{name}": [\n{listed}\n]' if rows else f'"{name}": []')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def learned_json(learned: Learned) -> Object:
    """Return what was learned of a backend, as it is written."""
    return {
        "prefill": _fitted_json(learned.prefill),
        "decode": _fitted_json(learned.decode),
        "kv_tokens": learned.kv_tokens,
    }


def step_json(row: StepRow) -> Object:
    """Return a step, as it is written: how often each bucket was met."""
    return {
        "model": row.model,
        "workflow": row.workflow,
        "step": row.step,
        "calls": row.calls,
        **{
            name: [[value, round(weight * row.calls)] for value, weight in getattr(row, name).pairs()]
            for name in DISTRIBUTIONS
        },
    }


def prompts_json(prompts: Sequence[PromptRatio]) -> list[Object]:
    """Return what was learned of prompts, as it is written."""
    return [_prompt_json(one) for one in prompts]


def _measured_json(one: Measured) -> Object:
    return {
        "base_url": one.base_url,
        "name": one.name,
        "source": one.source,
        "at": one.at,
        "calls": one.calls,
        "seconds": one.seconds,
        "ladder": one.ladder,
        **learned_json(one.learned),
    }


def _fitted_json(fitted: Fitted | None) -> Object | None:
    if fitted is None:
        return None
    return {"coefficients": fitted.coefficients, "gram": fitted.gram, "count": fitted.count}


def _prompt_json(one: PromptRatio) -> Object:
    return {"model": one.model, "counted": one.counted, "estimated": one.estimated}


# -- reading -----------------------------------------------------------------------------------------------


def read_profile(text: str, name: str) -> Profile:
    """Return the profile that a file holds.

    Args:
        name: of the file, for the message.

    Raises:
        UsageError: if it is none, or one of another version; the message says what is wrong with it.
    """
    try:
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
        return _profile(read_line(text))
    except ValueError as error:
        raise UsageError(f"{name} is not a profile that can be used: {error!s:.300}") from None


def learned_of(found: object) -> Learned:
    """Return what was learned of a backend, as it was written.

    Raises:
        ValueError: if it is something else.
    """
    facts = facts_of(found, "what was learned", ("prefill", "decode", "kv_tokens"))
    return _learned(facts)


def step_of(found: object) -> StepRow:
    """Return a step, as it was written.

    Raises:
        ValueError: if it is something else.
    """
    facts = facts_of(found, "a step", ("model", "workflow", "step", "calls", *DISTRIBUTIONS))
    calls = whole_of(facts, "calls", least=1)
    read, written, service_s = (_dist(facts[name], name, calls) for name in DISTRIBUTIONS)
    return StepRow(
        model=label_of(facts, "model"),
        workflow=label_of(facts, "workflow"),
        step=label_of(facts, "step"),
        calls=calls,
        input_tokens=read,
        output_tokens=written,
        service_s=service_s,
    )


def prompts_of(found: object) -> tuple[PromptRatio, ...]:
    """Return what was learned of prompts, as it was written.

    Raises:
        ValueError: if it is something else.
    """
    return _rows(found, "prompts", _prompt, MOST_STEPS, key=lambda one: one.model)


def _profile(found: object) -> Profile:
    if not isinstance(found, dict) or KIND not in found:
        raise ValueError(f"it does not say {KIND!r}")
    version = cast("Object", found)[KIND]
    if type(version) is not int or version != VERSION:
        raise ValueError(f"it is of version {version!r:.40}; this reads {VERSION}: make it again")
    facts = facts_of(cast("Object", found), "the profile", (KIND, "backends", "prompts", "steps"))
    return Profile(
        backends=_rows(
            facts["backends"],
            "backends",
            _measured,
            MOST_BACKENDS,
            key=lambda one: one.base_url or (one.name,),
        ),
        prompts=prompts_of(facts["prompts"]),
        steps=_rows(facts["steps"], "steps", step_of, MOST_STEPS, key=lambda one: one.key),
    )


def _measured(found: object) -> Measured:
    own = ("base_url", "name", "source", "at", "calls", "seconds", "ladder")
    facts = facts_of(found, "a backend", (*own, "prefill", "decode", "kv_tokens"))
    name = label_of(facts, "name")
    if name is None:
        raise ValueError("a backend's name is null; it must be text")
    ladder = list_of(facts["ladder"], "ladder", MOST_RUNGS)
    return Measured(
        base_url=label_of(facts, "base_url"),
        name=name,
        learned=_learned(facts),
        source=_source(facts["source"]),
        at=label_of(facts, "at"),
        calls=whole_of(facts, "calls"),
        seconds=number_of(facts["seconds"], "seconds"),
        ladder=tuple(_rung(rung) for rung in ladder),
    )


def _source(found: object) -> Source:
    if found not in get_args(Source):
        raise ValueError(f"source is {found!r:.40}; it must be {' or '.join(map(repr, get_args(Source)))}")
    return cast("Source", found)


def _rung(found: object) -> tuple[int, int]:
    rung = list_of(found, "a rung of the ladder", 2)
    if len(rung) != 2:
        raise ValueError(f"a rung of the ladder is {found!r:.40}; it must be tokens and calls")
    tokens, calls = (whole_of({"it": one}, "it", least=1) for one in rung)
    return tokens, calls


def _prompt(found: object) -> PromptRatio:
    facts = facts_of(found, "a model's prompts", ("model", "counted", "estimated"))
    counted, estimated = (number_of(facts[name], name) for name in ("counted", "estimated"))
    if not (estimated > 0 and LEAST * 0.99 * estimated <= counted <= MOST * 1.01 * estimated):
        raise ValueError(f"{counted!r} tokens where {estimated!r} were estimated cannot be")
    return PromptRatio(label_of(facts, "model"), counted, estimated)


def _learned(facts: Object) -> Learned:
    return Learned(
        prefill=_fitted(facts["prefill"], "prefill"),
        decode=_fitted(facts["decode"], "decode"),
        kv_tokens=None if facts["kv_tokens"] is None else whole_of(facts, "kv_tokens", least=1),
    )


def _fitted(found: object, name: str) -> Fitted | None:
    if found is None:
        return None
    width = WIDTHS[name]
    facts = facts_of(found, name, ("coefficients", "gram", "count"))
    coefficients = numbers_of(facts["coefficients"], f"{name}: coefficients", width)
    if max(coefficients) <= 0 or any(0 < one < TINY or one > SLOWEST for one in coefficients):
        raise ValueError(f"{name}: coefficients must be 0 or from {TINY:g} to {SLOWEST:g}, and one above 0")
    entries = numbers_of(facts["gram"], f"{name}: gram", width * (width + 1) // 2)
    if not is_of_squares(entries, width):
        raise ValueError(f"{name}: gram is not the triangle of a sum of squares")
    return Fitted(coefficients, entries, whole_of(facts, "count", least=1))


def _dist(found: object, name: str, calls: int) -> Dist:
    values: list[float] = []
    counts: list[int] = []
    for bucket in list_of(found, name, MOST_BUCKETS):
        pair = list_of(bucket, f"a bucket of {name}", 2)
        if len(pair) != 2:
            raise ValueError(f"a bucket of {name} is {bucket!r:.40}; it must be a value and a count")
        values.append(number_of(pair[0], f"a value of {name}"))
        counts.append(whole_of({"a count": pair[1]}, "a count", least=1))
    if not values or values[0] <= 0 or any(a >= b for a, b in pairwise(values)):
        raise ValueError(f"the values of {name} must be above 0 and ascending, at least one")
    if sum(counts) != calls:
        raise ValueError(f"{name} is of {sum(counts)} calls, not of {calls}")
    return Dist(values, counts)


def _rows(
    found: object, what: str, read: Callable[[object], T], most: int, *, key: Callable[[T], object]
) -> tuple[T, ...]:
    rows = tuple(read(one) for one in list_of(found, what, most))
    if len({key(row) for row in rows}) < len(rows):
        raise ValueError(f"two of the {what} are the same")
    return rows
