"""Options that do not exist: one error that names those that do."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from agentsched.errors import UnknownOption


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
