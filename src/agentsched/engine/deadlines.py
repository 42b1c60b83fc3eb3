"""When requests expire: a heap whose entries are dropped lazily once their request has ended."""

import heapq
from collections.abc import Container, Iterator, Sized
from math import inf
from typing import Protocol


class Live(Container[str], Sized, Protocol):
    """The requests that have not ended."""


class Deadlines:
    """Times at which live requests expire.

    Attributes:
        first: a time before which none does; infinity if there is none.
    """

    def __init__(self) -> None:
        self.first = inf
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, at: float, request_id: str) -> None:
        heapq.heappush(self._heap, (at, request_id))
        self.first = self._heap[0][0]

    def due(self, now: float, live: Live) -> Iterator[str]:
        """Take out and yield the live requests whose time has come."""
        while self._heap and self._heap[0][0] <= now:
            request_id = heapq.heappop(self._heap)[1]
            if request_id in live:
                yield request_id
        self.first = self._heap[0][0] if self._heap else inf

    def next(self, live: Live) -> float:
        """Return when the next live request expires; infinity if none ever does."""
        while self._heap and self._heap[0][1] not in live:
            heapq.heappop(self._heap)
        self.first = self._heap[0][0] if self._heap else inf
        return self.first

    def trim(self, live: Live) -> None:
        """Drop entries of ended requests once they are the greater part."""
        if len(self._heap) > 64 + 2 * len(live):
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)
            self.first = self._heap[0][0] if self._heap else inf
