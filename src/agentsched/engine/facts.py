"""What a JSON object says, piece by piece; each of these raises a ValueError in words if it is something else."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, cast

Object = dict[str, Any]

LARGEST = 1e30
MOST = 2**53


def facts_of(found: object, what: str, names: Sequence[str]) -> Object:
    """Return an object that says each of these and nothing else."""
    if not isinstance(found, dict):
        raise ValueError(f"{what} is {found!r:.40}; it must be an object")
    facts = cast("Object", found)
    for name in facts:
        if name not in names:
            raise ValueError(f"{what} has no {name!r:.80}")
    for name in names:
        if name not in facts:
            raise ValueError(f"{what} does not say {name!r}")
    return facts


def list_of(found: object, what: str, most: int) -> list[object]:
    """Return a list of at most so many entries."""
    if not isinstance(found, list):
        raise ValueError(f"{what} is {found!r:.40}; it must be a list")
    if len(cast("list[object]", found)) > most:
        raise ValueError(f"{what} has more than {most} entries")
    return cast("list[object]", found)


def numbers_of(found: object, what: str, width: int) -> tuple[float, ...]:
    """Return exactly so many numbers."""
    numbers = tuple(number_of(one, what) for one in list_of(found, what, width))
    if len(numbers) != width:
        raise ValueError(f"{what} has {len(numbers)} numbers; it must have {width}")
    return numbers


def number_of(found: object, what: str) -> float:
    """Return a number that is not negative."""
    number = found if isinstance(found, (int, float)) and not isinstance(found, bool) else -1
    if not (0 <= number <= LARGEST and isfinite(number)):
        raise ValueError(f"{what} is {found!r:.40}; it must be a number from 0 to {LARGEST:g}")
    return float(number)


def whole_of(facts: Mapping[str, object], name: str, *, least: int = 0) -> int:
    """Return the whole number that an object says by that name."""
    number = facts[name]
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MOST:
        raise ValueError(f"{name} is {number!r:.40}; it must be a whole number from {least} to {MOST}")
    return number


def label_of(facts: Mapping[str, object], name: str) -> str | None:
    """Return the text that an object says by that name, or None."""
    label = facts[name]
    if label is not None and not isinstance(label, str):
        raise ValueError(f"{name} is {label!r:.40}; it must be text or null")
    return label
