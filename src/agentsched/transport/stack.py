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


def stack_of(transport: object) -> Stack:
    """Return the stack whose async transport this is.

    Raises:
        UsageError: if it is neither's.
    """
    for name in NAMES:
        stack = sys.modules.get(name)
        if stack is not None and isinstance(transport, stack.AsyncBaseTransport):
            return stack
    kind = type(transport).__name__
    raise UsageError(f"upstream must be an async transport of httpx or httpx2, not {kind}")
