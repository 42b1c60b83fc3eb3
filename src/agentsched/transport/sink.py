"""Where an attempt puts what it receives."""

from collections.abc import Mapping
from typing import Any, Protocol

from agentsched.model import Signals, Usage
from agentsched.transport.head import Head


class Sink(Protocol):
    """Takes an answer for a caller. All calls come from the attempt's own task."""

    @property
    def delivered(self) -> bool:
        """Whether the caller may have seen a part of the answer."""
        ...

    def begin(self, head: Head, answer: Mapping[str, Any] | None = None) -> None:
        """The answer begins: what follows is for the caller.

        Args:
            answer: the whole of it, parsed, if it is there.
        """
        ...

    def tells(self, event: Mapping[str, Any]) -> None:
        """An event of a stream may tell what its server is."""
        ...

    def put(self, chunk: bytes) -> None:
        """Take bytes for the caller."""
        ...

    @property
    def full(self) -> bool:
        """Whether the reader is too far behind."""
        ...

    async def room(self) -> None:
        """Wait while it is full."""
        ...

    def ending(self) -> None:
        """The answer has its finish reason; `Exchange.stop` if the rest does not come soon."""
        ...

    def progressed(self, tokens: int, connect_s: float) -> None:
        """Output tokens so far; 0 where the backend has answered over a connection opened for it."""
        ...

    def signalled(self, signals: Signals) -> None:
        """The head of the answer told of the backend's load: it comes at the end of answers that come whole."""
        ...

    def priority_refused(self, why: str) -> None:
        """The backend takes no priorities: it refused the call with one, and takes it without.

        Args:
            why: its own words.
        """
        ...

    def finished(self, usage: Usage, *, kept_tokens: int = 0) -> None:
        """The backend is done. Bytes put before are the whole answer.

        Args:
            usage: this backend's.
            kept_tokens: of the answer, that others had written.
        """
        ...
