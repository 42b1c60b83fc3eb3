"""What prompts are made of, as far as prefix caches and predictors see it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

MASK = (1 << 61) - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text that prompts may have in common: a template, a schema, a question, an answer.

    Attributes:
        text: the text, or what tells it from others.
        tokens: how many tokens it counts as, at least 1, whatever the length of `text`.
    """

    text: str
    tokens: int
    key: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a piece without tokens."""
        if self.tokens < 1:
            raise ValueError(f"a piece has at least 1 token, not {self.tokens}")
        digest = blake2b(f"{self.tokens} {self.text}".encode("utf-8", "replace"), digest_size=8).digest()
        object.__setattr__(self, "key", int.from_bytes(digest, "big") & MASK)


def tokens_of(pieces: Iterable[Piece]) -> int:
    """Return how many tokens the pieces have together."""
    return sum(piece.tokens for piece in pieces)


def blocks_of(pieces: Iterable[Piece], width: int) -> tuple[int, ...]:
    """Hash every full block of `width` tokens together with all before it.

    Prompts that begin with the same pieces have the same leading blocks.
    """
    blocks: list[int] = []
    chain, filled = 0, 0
    for piece in pieces:
        key, tokens = piece.key, piece.tokens
        offset = width - filled
        while offset <= tokens:
            chain = (chain * 0x5851F42D4C957F2D + key + offset) & MASK
            blocks.append(chain)
            offset += width
        filled = tokens - (offset - width)
        if filled:
            chain = (chain * 0x5851F42D4C957F2D + key - filled) & MASK
    return tuple(blocks)
