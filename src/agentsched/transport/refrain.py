"""Events that differ from the one before in a piece of text alone, as nearly all of a stream do.

They need no parsing: with the bytes before and after the piece the same, and a piece that is written as it
reads, such an event means what the first of its kind meant. This halves the cost of an event.
"""

from typing import Any

from agentsched.transport.jsontext import loads


class Refrain:
    """What repeats in one stream."""

    def __init__(self) -> None:
        self._before: bytes | None = None
        self._after = b""

    def piece(self, chunk: bytes) -> str | None:
        """Return the piece of text if the chunk is one event that repeats all else; None if it may not be."""
        before, after = self._before, self._after
        if before is None or not (chunk.startswith(before) and chunk.endswith(after)):
            return None
        try:
            piece = chunk[len(before) : -len(after)].decode()
        except UnicodeDecodeError:
            return None
        if not piece.isprintable() or '"' in piece or "\\" in piece or len(chunk) < len(before) + len(after):
            return None  # it is not written as it reads, or none
        return piece

    def learn(self, chunk: bytes, piece: str) -> None:
        """Take an event, alone in its chunk, that brought a piece of text and nothing else."""
        if self._before is not None:
            return
        text = piece.encode("utf-8", "replace")
        before, found, after = chunk.partition(b'"%b"' % text)
        if found and _piece_of(b'%b"%b?"%b' % (before, text, after)) == piece + "?":  # it was that text
            self._before, self._after = before + b'"', b'"' + after

    def forget(self) -> None:
        """Know nothing again: something else came."""
        self._before = None


def _piece_of(chunk: bytes) -> Any:
    try:
        return loads(chunk.removeprefix(b"data: "))["choices"][0]["delta"]["content"]
    except (ValueError, LookupError, TypeError):
        return None  # what changed was a name
