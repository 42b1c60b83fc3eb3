"""What a streamed response says: the events of `/responses`, whose last one holds the whole."""

from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.usage import counted, estimated, written

ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
"""Types of the last event."""


class ResponseGist:
    """The events of one streamed response. See `Gist`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._response: dict[str, Any] | None = None
        self.finished = self.done = self.settled = False
        self.said = 0
        self.pieces = 0
        self.chars = 0
        self.piece: str | None = None
        self.usage: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return self.finished

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def tokens(self) -> int:
        return written(self.usage, self.pieces, self.chars)

    def take(self, event: dict[str, Any]) -> bool:
        kind: Any = event.get("type")
        delta: Any = event.get("delta")
        if isinstance(delta, str):
            self.said += 1
            self.pieces += bool(delta)
            self.chars += len(delta)
            if kind == "response.output_text.delta":
                self._text.append(delta)
        elif isinstance(kind, str) and kind in ENDS:
            response: Any = event.get("response")
            self.finished = self.done = self.settled = True
            self._response = cast("dict[str, Any]", response) if isinstance(response, dict) else {}
            usage: Any = self._response.get("usage")
            self.usage = cast("dict[str, Any]", usage) if isinstance(usage, dict) else None
            return True
        return False

    def add(self, piece: str) -> None:
        raise AssertionError("its events are numbered: none is like another")

    def counted(self) -> Usage:
        return counted(self.usage, estimated(self.pieces, self.chars))

    def whole(self) -> dict[str, Any]:
        return self._response or {}
