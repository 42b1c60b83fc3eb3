"""The fake tokenizer: a token is four bytes of UTF-8, so four characters of plain English.

A token's id is its bytes as a number, which makes ids reversible without a vocabulary. Prompts are kept as
*cells*: one byte string with exactly four bytes a token, the last token of each piece of text padded with
zeros. Text that is tokenised again, as the continuation of a partial answer is, thus gives the same tokens
if it was cut between two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from agentsched.testing.wire import as_list, as_object

CELL = 4
END = b"</>\0"
MARKS = {"system": b"<s>\0", "developer": b"<s>\0", "user": b"<u>\0", "assistant": b"<a>\0", "tool": b"<t>\0"}
"""The tokens that a message of each role begins with; `END` ends it."""


def to_cells(text: str) -> bytes:
    """Tokenise text."""
    data = text.encode("utf-8", "replace")
    return data + b"\0" * (-len(data) % CELL)


def count(cells: bytes) -> int:
    """Return how many tokens there are."""
    return len(cells) // CELL


def to_ids(cells: bytes) -> list[int]:
    """Return the tokens' ids."""
    return [int.from_bytes(cells[i : i + CELL], "big") for i in range(0, len(cells), CELL)]


def from_ids(ids: Iterable[int]) -> bytes:
    """Return the tokens with these ids; only the lower 32 bits of an id count."""
    return b"".join((token & 0xFFFFFFFF).to_bytes(CELL, "big") for token in ids)


def to_text(cells: bytes) -> str:
    """Return the text of tokens, padding left out."""
    return cells.replace(b"\0", b"").decode("utf-8", "replace")


def render_chat(
    messages: Sequence[Mapping[str, Any]], *, generate: bool = True, unfinished: bool = False
) -> bytes:
    """Apply the fake chat template; with `unfinished` the last message is left open to be continued."""
    parts: list[bytes] = []
    for message in messages:
        parts += [MARKS.get(str(message.get("role")), MARKS["user"]), to_cells(message_text(message)), END]
    if unfinished and parts:
        parts.pop()
    elif generate:
        parts.append(MARKS["assistant"])
    return b"".join(parts)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message, a string or parts; tool calls belong to it."""
    content: object = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(as_object(part).get("text", "")) for part in as_list(content))
    calls = message.get("tool_calls")
    return f"{content}{calls}" if calls else content


def split_answer(cells: bytes) -> tuple[bytes, bytes]:
    """Split a prompt into what was asked and what is answered so far, behind an open assistant mark."""
    mark = MARKS["assistant"]
    at = cells.rfind(mark)
    while at > 0 and at % CELL:
        at = cells.rfind(mark, 0, at)
    if at < 0 or END in cells[at:]:
        return cells, b""
    return cells[: at + CELL], cells[at + CELL :]


class Spelling:
    """Cut a text into tokens: every four bytes, or into as many equal pieces as asked for."""

    __slots__ = ("_data", "tokens")

    def __init__(self, text: str, tokens: int | None = None) -> None:
        self._data = text.encode("utf-8", "replace")
        self.tokens = max(-(-len(self._data) // CELL), 1) if tokens is None else tokens

    def piece(self, start: int, stop: int) -> bytes:
        """Return the bytes of the tokens from `start` up to, not including, `stop`."""
        data, tokens = self._data, self.tokens
        if tokens == -(-len(data) // CELL):
            return data[start * CELL : stop * CELL]
        return data[len(data) * start // tokens : len(data) * stop // tokens]

    def cells(self) -> bytes:
        """Return the tokens as cells; pieces of another length than four bytes are represented by a hash."""
        data = self._data
        if self.tokens == -(-len(data) // CELL):
            return data + b"\0" * (-len(data) % CELL)
        pieces = [self.piece(i, i + 1) for i in range(self.tokens)]
        return b"".join(blake2b(piece, digest_size=CELL).digest() for piece in pieces)
