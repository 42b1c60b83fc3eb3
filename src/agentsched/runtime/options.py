"""Checks of what users pass: one clear error at the earliest point, naming what would be right."""

from datetime import UTC, datetime

from agentsched.errors import UsageError


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


def whole(value: object, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number."""
    low = isinstance(value, int) and least is not None and value < least
    high = isinstance(value, int) and most is not None and value > most
    if isinstance(value, bool) or not isinstance(value, int) or low or high:
        bound = (f" of at least {least}" if least is not None else "") + (
            f" and at most {most}" if most else ""
        )
        raise UsageError(f"{name} must be a whole number{bound}; got {value!r}")
    return value


def label(value: object, name: str) -> str:
    """Return a non-empty printable name."""
    if not isinstance(value, str) or not value or not value.isprintable():
        raise UsageError(f"{name} must be a non-empty printable string; got {value!r}")
    return value
