"""Server-sent events: bytes in, events out. Every split of the bytes gives the same events."""

import re
from codecs import BOM_UTF8

MAX_EVENT_BYTES = 16 * 2**20
"""A longer event is not an answer of a language model."""

_BLANK_LINE = re.compile(rb"\r\n(?:\r\n|\n|\r)|\n(?:\r\n|\n|\r)|\r(?!\n)(?:\r\n|\n|\r)")


_NAME = re.compile(rb"^event: ?([^\r\n]*)", re.MULTILINE)


class EventTooLong(ValueError):
    """The peer sent more than `MAX_EVENT_BYTES` without ending an event."""


ServerEvent = tuple[bytes, bytes | None]
"""One event: as it is forwarded, which is its lines as they came and an empty one; and its payload.

Comments and keep-alives have no payload, but None.
"""


class Decoder:
    """Cuts a byte stream into events."""

    def __init__(self) -> None:
        self._lead: bytes | None = b""
        self._held = bytearray()
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Take bytes and return the events that they complete.

        Raises:
            EventTooLong: if the event under way exceeds its bound.
        """
        if self._lead is not None:
            chunk = self._begin(chunk)
        if self._after_cr and chunk:  # the empty line before ended in CR, or in CRLF whose LF is here
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if self._held or b"\r" in chunk:
            raws = self._cut(chunk)
        elif chunk.find(b"\n") == len(chunk) - 2 and chunk.startswith(b"data: ") and chunk.endswith(b"\n"):
            return [(chunk, chunk[6:-2])]  # as nearly all servers send them
        else:
            raws = chunk.split(b"\n\n")
            self._held += raws.pop()
        if len(self._held) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [_event(raw) for raw in raws if raw]

    @property
    def idle(self) -> bool:
        """Whether the next byte begins an event."""
        return not self._held and not self._after_cr and self._lead is None

    def _begin(self, chunk: bytes) -> bytes:
        """Return what follows a byte order mark, which may itself come in pieces."""
        lead = (self._lead or b"") + chunk
        if len(lead) < len(BOM_UTF8) and BOM_UTF8.startswith(lead):
            self._lead = lead
            return b""
        self._lead = None
        return lead.removeprefix(BOM_UTF8)

    def _cut(self, chunk: bytes) -> list[bytes]:
        """Cut where lines may end in CR, LF or both; only what is new is searched for an empty line."""
        held, start = self._held, 0
        known = max(0, len(held) - 3)
        held += chunk
        raws: list[bytes] = []
        for found in _BLANK_LINE.finditer(held, known):
            raws.append(bytes(held[start : found.start()]))
            start = found.end()
        self._after_cr = start == len(held) and held.endswith(b"\r")
        del held[:start]
        return raws

    def flush(self) -> list[ServerEvent]:
        """Return what is left when the stream has ended: servers forget the last empty line."""
        rest = bytes(self._held.strip(b"\r\n"))
        self._held.clear()
        return [_event(rest)] if rest else []


def name_of(whole: bytes) -> bytes:
    """Return an event's type, which most streams do without; empty if it has none."""
    found = _NAME.search(whole)
    return found[1] if found is not None else b""


def encode(data: bytes, name: bytes = b"") -> bytes:
    """Return an event with that payload."""
    return (b"event: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def _event(raw: bytes) -> ServerEvent:
    whole = raw + b"\n\n"
    if raw.startswith(b"data: ") and b"\n" not in raw and b"\r" not in raw:
        return whole, raw[6:]
    lines = [line[5:] for line in raw.splitlines() if line.startswith(b"data:")]
    return whole, b"\n".join(line.removeprefix(b" ") for line in lines) if lines else None
