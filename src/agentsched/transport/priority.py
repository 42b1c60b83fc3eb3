"""What an engine with a queue of its own is told of how urgent a call is: a field of the body, where it takes it."""

from agentsched.model import Backend
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming

FIELD = "priority"

_REFUSALS = (400, 422)
"""Statuses by which servers refuse a field: vLLM and OpenAI the first one, servers that validate strictly the other."""


class Priorities:
    """Which backends are told the priorities of calls.

    Attributes:
        refusing: names of those that were to be told, and refused it.
    """

    def __init__(self) -> None:
        self.refusing: set[str] = set()

    def field(self, incoming: Incoming, backend: Backend, priority: int) -> bytes | None:
        """Return what the body says of a call's priority, as vLLM reads it: the lower, the earlier.

        None where nothing is to be added: for ordinary calls, where the app said something itself, and to backends
        that do not take it.

        Args:
            priority: the higher, the more urgent; 0 for ordinary calls.
        """
        if not priority or not backend.priority or backend.name in self.refusing:
            return None
        if FIELD in incoming.body or not incoming.body or not incoming.kind.understood:
            return None
        return b"%d" % -priority

    def refuse(self, backend: str) -> bool:
        """Note that a backend refused it; return whether that is news."""
        news = backend not in self.refusing
        self.refusing.add(backend)
        return news

    def forget(self, backend: str) -> None:
        """Remember nothing of one that is gone."""
        self.refusing.discard(backend)


def may_refuse_priority(refusal: tuple[Head, bytes] | None) -> bool:
    """Whether an error answer may be due to a priority.

    Not for sure: some servers quote the body that they find fault with, and it has that word in it.
    """
    return refusal is not None and refusal[0].status in _REFUSALS and b"priorit" in refusal[1].lower()
