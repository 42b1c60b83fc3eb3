"""Which KV blocks does a sequence hold, and what do they contain?"""

from __future__ import annotations

from agentsched.sim.calls import Sequence
from agentsched.sim.kv import BlockPool
from agentsched.sim.spec import BackendSpec


class Memory:
    """Give sequences their blocks and take them back; without a prefix cache no block has a known content."""

    __slots__ = ("_caching", "_spec", "pool")

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._caching = spec.prefix_cache
        self.pool = BlockPool(spec.kv_blocks)

    def seat(self, row: Sequence) -> bool:
        """Give a sequence the blocks of its prefill, found ones first; return whether there were enough."""
        width, pool = self._spec.block_tokens, self.pool
        known = self._known(row, row.target - 1)  # one token at least is computed
        found, held = pool.find(known)
        blocks = self._spec.blocks(row.target)
        if blocks - held > pool.free:
            return False
        pool.hold(known[:found])
        pool.reserve(blocks - found)
        row.shared = found
        row.computed = found * width
        return True

    def publish(self, row: Sequence, computed: int) -> None:
        """Let others find the blocks that are full once `computed` tokens have their KV."""
        known = self._known(row, computed)
        if len(known) > row.shared:
            self.pool.publish(known, row.shared)
            row.shared = len(known)

    def release(self, row: Sequence, computed: int) -> None:
        """Take back all blocks of a sequence that has KV for `computed` tokens."""
        known = self._known(row, computed)
        blocks = self._spec.blocks(max(computed, row.target))
        self.pool.release(known[: row.shared], blocks - row.shared, known[row.shared :])
        row.shared = 0

    def _known(self, row: Sequence, tokens: int) -> tuple[int, ...]:
        return row.blocks(tokens // self._spec.block_tokens) if self._caching else ()
