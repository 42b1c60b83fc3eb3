"""The calls that have no seat: on their way in, then waiting in order. Leaving from the middle is cheap."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

from agentsched.sim.calls import Sequence

DEAD_ENTRIES = 64
"""Ended calls that the line may carry along before it is rebuilt."""


class Line:
    """Order the calls without a seat by their key, each from the time at which it is ready."""

    __slots__ = ("_dead", "_entered_at", "_entering", "_heap")

    def __init__(self) -> None:
        self._entering: deque[Sequence] = deque()
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        self._entered_at = 0.0
        self._dead = 0

    def __len__(self) -> int:
        """Return how many entries there are, those of ended calls included."""
        return len(self._entering) + len(self._heap)

    @property
    def next_ready_at(self) -> float | None:
        """Return when the next call on its way in will be ready; None if there is none."""
        return self._entering[0].ready_at if self._entering else None

    @property
    def waits(self) -> bool:
        """Whether some call may wait for a seat."""
        return bool(self._heap)

    def arrive(self, row: Sequence) -> None:
        """Let a call in; calls arrive in the order of their `ready_at`."""
        self._entering.append(row)

    def enter(self, now: float) -> None:
        """Let the calls that are ready by `now` wait for a seat."""
        entering = self._entering
        while entering and entering[0].ready_at <= now:
            row = entering.popleft()
            if not row.ended:
                heappush(self._heap, (row.key, row))
        self._entered_at = now

    def put_back(self, row: Sequence) -> None:
        """Let a call wait that had a seat; its key brings it before those that came later."""
        heappush(self._heap, (row.key, row))

    def head(self) -> Sequence | None:
        """Return the first call that waits."""
        heap = self._heap
        while heap and heap[0][1].ended:
            heappop(heap)
            self._dead -= 1
        return heap[0][1] if heap else None

    def pop(self) -> None:
        """Take the head away."""
        heappop(self._heap)

    def forget(self, row: Sequence) -> None:
        """Note that a call in the line has ended."""
        while self._entering and self._entering[0].ended:
            self._entering.popleft()
        if row.ready_at > self._entered_at:
            return
        self._dead += 1
        if self._dead > DEAD_ENTRIES and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[1].ended]
            heapify(self._heap)
            self._dead = 0
