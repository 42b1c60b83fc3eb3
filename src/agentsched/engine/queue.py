"""The waiting calls: lanes of calls that may go to the same backends, each ordered by rank.

A call goes to any backend that serves its model and has not failed it yet. Calls with the same choice form a
lane, so that a full backend costs one look per lane and not one per call. Entries leave lazily.
"""

import heapq
from collections.abc import Iterator

Choice = tuple[str, ...]
"""Names of the backends a call may go to, in the order of configuration."""

Key = tuple[int, float, int]
"""(-priority, rank, arrival number): unique, lowest first."""


class Lane:
    """Calls with one choice of backends."""

    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, str]] = []
        self._dead: set[Key] = set()

    def __len__(self) -> int:
        return len(self._heap) - len(self._dead)

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        return (entry for entry in self._heap if entry[0] not in self._dead)

    def push(self, key: Key, request_id: str) -> None:
        if key in self._dead:  # it comes back before its entry has left
            self._dead.remove(key)
        else:
            heapq.heappush(self._heap, (key, request_id))

    def remove(self, key: Key) -> bool:
        """Take an entry out; return whether others are left."""
        if self._heap[0][0] == key:
            heapq.heappop(self._heap)
        else:
            self._dead.add(key)
        if len(self._dead) * 2 > len(self._heap):
            self._heap = list(self)
            self._dead.clear()
            heapq.heapify(self._heap)
        return len(self._heap) > len(self._dead)

    def head(self) -> tuple[Key, str]:
        """Return the best-ranked entry. The lane must not be empty."""
        while self._heap[0][0] in self._dead:
            self._dead.remove(heapq.heappop(self._heap)[0])
        return self._heap[0]


class Queue:
    """All lanes. Empty lanes do not exist."""

    def __init__(self) -> None:
        self.lanes: dict[Choice, Lane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        """Yield all entries, lane by lane, in no particular order."""
        for lane in self.lanes.values():
            yield from lane

    def push(self, choice: Choice, key: Key, request_id: str) -> None:
        lane = self.lanes.get(choice)
        if lane is None:
            lane = self.lanes[choice] = Lane()
        lane.push(key, request_id)
        self._size += 1

    def remove(self, choice: Choice, key: Key) -> None:
        if not self.lanes[choice].remove(key):
            del self.lanes[choice]
        self._size -= 1
