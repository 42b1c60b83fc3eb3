"""Server-sent events: bytes in, events out. Every split of the bytes gives the same events."""

import re
from typing import NamedTuple

MAX_EVENT_BYTES = 16 * 2**20
"""A longer event is not an answer of a language model."""

_BLANK_LINE = re.compile(rb"\r\n(?:\r\n|\n|\r)|\n(?:\r\n|\n|\r)|\r(?!\n)(?:\r\n|\n|\r)")

_PLAIN_EVENT = re.compile(rb"data: ([^\r\n]*)\n\n")
"""A chunk as nearly all servers send them: one event, one line."""


class EventTooLong(ValueError):
    """The peer sent more than `MAX_EVENT_BYTES` without ending an event."""


class ServerEvent(NamedTuple):
    """One event.

    Attributes:
        lines: its lines as they came, without the empty one that ends it.
        data: its payload; None for comments and keep-alives.
    """

    lines: bytes
    data: bytes | None

    @property
    def whole(self) -> bytes:
        """The event as it is forwarded."""
        return self.lines + b"\n\n"


class Decoder:
    """Cuts a byte stream into events."""

    def __init__(self) -> None:
        self._buffer = b""
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Take bytes and return the events that they complete.

        Raises:
            EventTooLong: if the event under way exceeds its bound.
        """
        if not self._buffer and not self._after_cr and (plain := _PLAIN_EVENT.fullmatch(chunk)):
            return [ServerEvent(chunk[:-2], plain[1])]
        if self._after_cr and chunk:  # the empty line before ended in CR, or in CRLF whose LF is here
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        buffer = self._buffer + chunk if self._buffer else chunk
        if b"\r" in buffer:
            raws, self._buffer = _cut(buffer, max(0, len(self._buffer) - 3))
            self._after_cr = not self._buffer and buffer.endswith(b"\r")
        else:
            raws = buffer.split(b"\n\n")
            self._buffer = raws.pop()
        events = [ServerEvent(raw, _data(raw)) for raw in raws if raw]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def flush(self) -> list[ServerEvent]:
        """Return what is left when the stream has ended: servers forget the last empty line."""
        rest, self._buffer = self._buffer.strip(b"\r\n"), b""
        return [ServerEvent(rest, _data(rest))] if rest else []


def encode(data: bytes) -> bytes:
    """Return an event with that payload."""
    return b"data: " + data + b"\n\n"


def _cut(buffer: bytes, known: int) -> tuple[list[bytes], bytes]:
    """Cut where lines may end in CR, LF or both; the first `known` bytes hold no empty line."""
    raws: list[bytes] = []
    start = 0
    for found in _BLANK_LINE.finditer(buffer, known):
        raws.append(buffer[start : found.start()])
        start = found.end()
    return raws, buffer[start:]


def _data(raw: bytes) -> bytes | None:
    if raw.startswith(b"data: ") and b"\n" not in raw and b"\r" not in raw:
        return raw[6:]
    lines = [line[5:] for line in raw.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line.removeprefix(b" ") for line in lines) if lines else None
