"""Who holds which KV blocks? Counts and hashes only: what a block contains is the caller's secret.

A block is *held by hash* (shared, counted), *own* (one sequence's, not shareable yet) or free. A free block
may still carry the contents of its last holder: such idle blocks are found again by hash until the room is
needed, least recently freed first, the tail of a sequence before its head.
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
        """Hold found blocks by their hashes once more."""
        held, idle, before = self._held, self._idle, len(self._held)
        for block in blocks:
            if block in held:
                held[block] += 1
            else:
                del idle[block]
                held[block] = 1
        self.free -= len(held) - before

    def reserve(self, count: int) -> None:
        """Take `count` free blocks as own ones; the caller has looked at `free`."""
        self._own += count
        self.free -= count
        if len(self._idle) > self.free:
            self._forget()

    def publish(self, blocks: Sequence[int]) -> None:
        """Turn own blocks, now full, into blocks held by hash; contents that exist already are kept once."""
        held, idle, before = self._held, self._idle, len(self._held)
        for block in blocks:
            if block in held:
                held[block] += 1
            else:
                held[block] = 1
                idle.pop(block, None)
        self._own -= len(blocks)
        self.free += len(blocks) - (len(held) - before)

    def release(self, held: Sequence[int], own: int, full: Sequence[int] = ()) -> None:
        """Let go of blocks held by hash and of `own` ones, of which the first carry the contents `full`."""
        counts, idle, before = self._held, self._idle, len(self._held)
        for block in reversed(full):
            if block not in counts:
                idle[block] = None
                idle.move_to_end(block)
        for block in reversed(held):
            holders = counts[block] - 1
            if holders:
                counts[block] = holders
            else:
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
