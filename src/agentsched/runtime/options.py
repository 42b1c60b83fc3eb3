"""Checks of what users pass: one clear error at the earliest point, naming what would be right."""

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from agentsched.errors import UsageError


class UnknownOption(UsageError, TypeError):
    """An option that does not exist here."""


def refuse(unknown: Mapping[str, object], taker: Callable[..., Any], name: str) -> None:
    """Raise for options that `taker` does not have."""
    if unknown:
        known = [p.name for p in inspect.signature(taker).parameters.values() if p.kind is p.KEYWORD_ONLY]
        wrong = ", ".join(sorted(unknown))
        raise UnknownOption(f"{name}: unknown option {wrong}; the options are {', '.join(known) or 'none'}")


def seconds(value: object, name: str) -> float | None:
    """Return a duration that is positive and finite, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value <= 0:
        raise UsageError(f"{name} must be a positive finite number of seconds, or None; got {value!r}")
    return float(value)


def seconds_until(deadline: object) -> float | None:
    """Return the seconds left until an aware datetime in the future; None for None."""
    if deadline is None:
        return None
    if not isinstance(deadline, datetime):
        raise UsageError(f"deadline must be an aware datetime, or None; got {deadline!r}")
    if deadline.utcoffset() is None:
        raise UsageError(
            "deadline must be an aware datetime; this one has no time zone (tzinfo=UTC, for example)"
        )
    left = (deadline - datetime.now(UTC)).total_seconds()
    if left <= 0:
        raise UsageError(f"the deadline {deadline.isoformat()} has passed {-left:.3f} s ago")
    return left


def whole(value: object, name: str, *, least: int | None = None) -> int:
    """Return a whole number."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = f" of at least {least}" if least is not None else ""
        raise UsageError(f"{name} must be a whole number{bound}; got {value!r}")
    return value


def label(value: object, name: str) -> str:
    """Return a non-empty printable name."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise UsageError(f"{name} must be a non-empty printable string; got {value!r}")
    return value
