"""Which HTTP stack to speak: httpx (openai 2.x) or httpx2 (openai 3.x). Twins that share no types."""

import importlib
import sys
from functools import cache
from types import ModuleType

from agentsched.errors import UsageError

Stack = ModuleType
"""The module `httpx` or `httpx2`."""

NAMES = ("httpx2", "httpx")


@cache
def default_stack() -> Stack:
    """Return the stack that the installed openai package uses."""
    from importlib.metadata import version  # a fifth of the time that importing all of us takes

    major = int(version("openai").split(".", 1)[0])
    return importlib.import_module("httpx2" if major >= 3 else "httpx")


def checked_stack(stack: object) -> Stack:
    """Return the stack that was chosen; the default one for None.

    Raises:
        UsageError: if it is neither `httpx` nor `httpx2`.
    """
    if stack is None:
        return default_stack()
    if isinstance(stack, Stack) and stack.__name__ in NAMES:
        return stack
    raise UsageError(f"stack must be the module httpx or httpx2, not {stack!r}")


def stack_of(upstream: object) -> Stack:
    """Return the stack whose async transport or client this is.

    Raises:
        UsageError: if it is neither's.
    """
    for name in NAMES:
        stack = sys.modules.get(name)
        if stack is not None and isinstance(upstream, (stack.AsyncBaseTransport, stack.AsyncClient)):
            return stack
    kind = type(upstream).__name__
    raise UsageError(
        f"upstream must be an async transport or client of httpx or httpx2, or a function that makes one, not {kind}"
    )
