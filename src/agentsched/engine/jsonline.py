"""One line of JSON that somebody may have written by hand: what is wrong with it is said in words."""

import json
from collections.abc import Sequence
from typing import Any


class _Twice(ValueError):
    """A name stands twice in an object."""


def read_line(line: str) -> Any:
    """Return what the line holds.

    Raises:
        ValueError: if it is not JSON, or if an object in it says the same name twice.
    """
    try:
        return _decode(line)
    except json.JSONDecodeError as error:  # its place counts from the start of the line
        raise ValueError(error.msg) from None
    except _Twice:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("a number in it has too many digits") from None


def is_cut_off(line: str) -> bool:
    """Return whether this is the beginning of a line that was to hold an object, and was not written to its end."""
    if line.endswith("\n") or not line.startswith("{"):
        return False
    try:
        _decode(line)
    except json.JSONDecodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: dict[str, None] = {}
        for name, _ in pairs:
            if name in seen:
                raise _Twice(f"{name!r:.80} is there twice")
            seen[name] = None
    return found


_decode = json.JSONDecoder(object_pairs_hook=_once).decode
