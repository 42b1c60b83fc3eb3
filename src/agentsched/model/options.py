"""Checks of options: one clear error that names what would be right."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import inf, isfinite
from typing import Any

from agentsched.errors import UnknownOption, UsageError


def refuse(unknown: Mapping[str, object], taker: Callable[..., Any], name: str) -> None:
    """Raise for options that `taker` does not have.

    Raises:
        UnknownOption: if there are any.
    """
    if unknown:
        known = [p.name for p in inspect.signature(taker).parameters.values() if p.kind is p.KEYWORD_ONLY]
        wrong = sorted(unknown)
        near = get_close_matches(wrong[0], known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        listed = ", ".join(known) or "none"
        raise UnknownOption(f"{name}: unknown option {', '.join(wrong)}{hint}; the options are {listed}")


def seconds(value: object, name: str) -> float | None:
    """Return a duration that is positive and finite, or None."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
    except OverflowError:
        number = inf
    if not isfinite(number) or number <= 0:
        raise UsageError(f"{name} must be a positive finite number of seconds, or None; got {value!r}")
    return number
