"""What a streamed response says: the events of `/responses`, whose last one holds the whole."""

from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.pieces import MAX_BYTES, AnswerTooLong
from agentsched.transport.usage import counted, written

ENDS = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
"""Types of the last event."""


class ResponseGist:
    """The events of one streamed response. See `Gist`."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._bytes = 0
        self._response: dict[str, Any] | None = None
        self.said = 0
        self.pieces = 0
        self.chars = 0
        self.usage: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self._response is not None

    done = settled = finished

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def tokens(self) -> int:
        return written(self.usage, self.pieces, self.chars)

    def take(self, event: dict[str, Any], size: int) -> bool:
        self._bytes += size
        if self._bytes > MAX_BYTES:
            raise AnswerTooLong(f"an answer of more than {MAX_BYTES} bytes")
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
            self._response = cast("dict[str, Any]", response) if isinstance(response, dict) else {}
            usage: Any = self._response.get("usage")
            self.usage = cast("dict[str, Any]", usage) if isinstance(usage, dict) else None
            return True
        return False

    def counted(self) -> Usage:
        return counted(self.usage, self.tokens)

    def whole(self) -> dict[str, Any]:
        return self._response or {}
