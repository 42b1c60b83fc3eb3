"""Who holds which KV blocks? Counts and hashes only: what a block contains is the caller's secret.

A block is *held by hash* (shared, counted), *own* (one sequence's, not shareable yet) or free. A free block
may still carry the contents of its last holder: such idle blocks are found again by hash until the room is
needed, least recently freed first, the tail of a sequence before its head.

Hashes are chained, so the contents of a block say what all blocks before it are: held blocks form trees, and whoever
holds a block holds all before it. Each counts only who ends there and how many held ones follow it, so that a
sequence that joins or leaves touches what it shares with no other, and one block more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b


def chain_blocks(tokens: bytes, *, width: int, seed: int = 0) -> tuple[int, ...]:
    """Hash every full block of `width` bytes of `tokens` together with all before it, `seed` included."""
    blocks: list[int] = []
    previous = seed
    for start in range(0, len(tokens) - width + 1, width):
        digest = blake2b(tokens[start : start + width], digest_size=8, key=previous.to_bytes(8, "big"))
        previous = int.from_bytes(digest.digest(), "big")
        blocks.append(previous)
    return tuple(blocks)


class BlockPool:
    """Count the blocks of one engine; `0 <= used <= capacity` always."""

    __slots__ = ("_held", "_idle", "_own", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("an engine needs at least one KV block")
        self.capacity = capacity
        self.free = capacity
        """The blocks that may be reserved, those with idle contents included."""
        self._held: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._own = 0

    @property
    def used(self) -> int:
        """Return the blocks that some sequence holds."""
        return len(self._held) + self._own

    @property
    def idle(self) -> int:
        """Return the free blocks whose contents can still be found."""
        return len(self._idle)

    def find(self, blocks: Sequence[int]) -> tuple[int, int]:
        """Return how many leading blocks have known contents, and how many of these are held by someone.

        Whoever holds a block holds all before it, and of idle ones those before it are forgotten later: what is
        known, and what is held, ends somewhere, and the end can be found by bisection.
        """
        held, idle = self._held, self._idle
        shared = bisect_left(blocks, True, key=lambda block: block not in held)
        found = bisect_left(blocks, True, shared, key=lambda block: block not in idle and block not in held)
        return found, shared

    def hold(self, blocks: Sequence[int]) -> None:
        """Hold a chain of found blocks by their hashes once more."""
        held, idle, shared = self._held, self._idle, len(blocks)
        while shared and blocks[shared - 1] not in held:
            shared -= 1
            block = blocks[shared]
            del idle[block]
            held[block] = 1
        if shared:
            held[blocks[shared - 1]] += 1
        self.free -= len(blocks) - shared

    def reserve(self, count: int) -> None:
        """Take `count` free blocks as own ones; the caller has looked at `free`."""
        self._own += count
        self.free -= count
        if len(self._idle) > self.free:
            self._forget()

    def publish(self, blocks: Sequence[int], held: int) -> None:
        """Turn own blocks, now full, into blocks held by hash; contents that exist already are kept once.

        Args:
            blocks: the chain, with what the sequence holds by hash already: its first `held` blocks.
        """
        counts, idle, shared = self._held, self._idle, held
        while shared < len(blocks) and blocks[shared] in counts:
            shared += 1
        for block in blocks[shared:]:
            counts[block] = 1
            idle.pop(block, None)
        if shared > held:  # its end moves along what others hold
            counts[blocks[shared - 1]] += 1
            if held:
                counts[blocks[held - 1]] -= 1
        self._own -= len(blocks) - held
        self.free += shared - held

    def release(self, held: Sequence[int], own: int, full: Sequence[int] = ()) -> None:
        """Let go of a chain held by hash and of `own` blocks, of which the first carry the contents `full`."""
        counts, idle, before = self._held, self._idle, len(self._held)
        for block in reversed(full):
            if block not in counts:
                idle[block] = None
                idle.move_to_end(block)
        for block in reversed(held):
            left = counts[block] - 1
            if left:
                counts[block] = left
                break
            del counts[block]
            idle[block] = None
        self._own -= own
        self.free += own + before - len(counts)
        if len(idle) > self.free:
            self._forget()

    def _forget(self) -> None:
        idle, free = self._idle, self.free
        while idle and len(idle) > free:
            idle.popitem(last=False)
