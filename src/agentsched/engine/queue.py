"""The waiting calls: lanes of calls that may go to the same backends, each ordered by rank.

A call goes to any backend that serves its model and has not failed it yet. Calls with the same choice form a
lane, so that a full backend costs one look per lane and not one per call. Entries leave lazily.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

Choice = tuple[str, ...]
"""Names of the backends a call may go to, in the order of configuration."""

Key = tuple[int, float, int]
"""(-priority, rank, arrival number): unique, lowest first."""


FRONT = 8
"""Calls at the front of a lane that are kept in order, so that they can be looked at."""


class Lane:
    """Calls with one choice of backends: the first few in order, the others in a heap behind them.

    It begins with one, and is done with when it has none.
    """

    __slots__ = ("_dead", "_front", "_heap")

    def __init__(self, key: Key, request_id: str) -> None:
        self._front = [(key, request_id)]
        self._heap: list[tuple[Key, str]] = []
        self._dead: set[Key] = set()

    def __len__(self) -> int:
        return len(self._front) + len(self._heap) - len(self._dead)

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        yield from self._front
        for entry in self._heap:
            if entry[0] not in self._dead:
                yield entry

    def push(self, key: Key, request_id: str) -> None:
        front = self._front
        if len(front) < FRONT and not self._heap:
            insort(front, (key, request_id))
        elif key < front[-1][0]:
            insort(front, (key, request_id))
            if len(front) > FRONT:
                self._push_behind(*front.pop())
        else:
            self._push_behind(key, request_id)

    def _push_behind(self, key: Key, request_id: str) -> None:
        if key in self._dead:  # it comes back before its entry has left
            self._dead.remove(key)
        else:
            heapq.heappush(self._heap, (key, request_id))

    def remove(self, key: Key) -> bool:
        """Take an entry out; return whether others are left."""
        front, heap, dead = self._front, self._heap, self._dead
        if key > front[-1][0]:
            dead.add(key)
            if len(dead) * 2 > len(heap):
                self._heap = [entry for entry in heap if entry[0] not in dead]
                heapq.heapify(self._heap)
                dead.clear()
            return True
        del front[bisect_left(front, (key, ""))]
        if heap:
            while heap and heap[0][0] in dead:
                dead.remove(heapq.heappop(heap)[0])
            if heap and len(front) < FRONT:
                front.append(heapq.heappop(heap))
        return bool(front)

    @property
    def front(self) -> Sequence[tuple[Key, str]]:
        """The best-ranked entries, in order: up to `FRONT` of them, and all if there are fewer."""
        return self._front


class Queue:
    """All lanes. Empty lanes do not exist.

    Attributes:
        size: how many calls wait.
    """

    def __init__(self) -> None:
        self.lanes: dict[Choice, Lane] = {}
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[Key, str]]:
        """Yield all entries, lane by lane, in no particular order."""
        for lane in self.lanes.values():
            yield from lane

    def push(self, choice: Choice, key: Key, request_id: str) -> None:
        lane = self.lanes.get(choice)
        if lane is None:
            self.lanes[choice] = Lane(key, request_id)
        else:
            lane.push(key, request_id)
        self.size += 1

    def remove(self, choice: Choice, key: Key) -> None:
        if not self.lanes[choice].remove(key):
            del self.lanes[choice]
        self.size -= 1
