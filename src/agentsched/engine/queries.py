"""The queries that calls belong to: those that are open, and of closed ones the limits that still hold."""

from dataclasses import dataclass

from agentsched.model import Query

KEPT_LIMITS = 1_000
"""Closed queries whose `max_calls` is remembered for tasks that outlive them; the oldest go first."""


@dataclass(slots=True)
class QueryRow:
    """A query and how many calls it has made."""

    query: Query
    calls: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether it has made more calls than it may."""
        limit = self.query.max_calls
        return limit is not None and self.calls > limit


class Queries:
    """All queries that matter. Its length is the number of open ones."""

    def __init__(self) -> None:
        self._open: dict[str, QueryRow] = {}
        self._closed: dict[str, QueryRow] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def rows(self) -> list[QueryRow]:
        """Open ones first."""
        return [*self._open.values(), *self._closed.values()]

    def open(self, query: Query) -> None:
        self._open[query.id] = QueryRow(query)

    def close(self, query_id: str) -> None:
        """Forget it, unless it has a limit that tasks it leaves behind must keep to."""
        row = self._open.pop(query_id, None)
        if row is not None and row.query.max_calls is not None:
            self._closed[query_id] = row
            if len(self._closed) > KEPT_LIMITS:
                del self._closed[next(iter(self._closed))]

    def of(self, query_id: str | None) -> QueryRow | None:
        """Return the query that a call names, if it is known."""
        if query_id is None:
            return None
        return self._open.get(query_id) or self._closed.get(query_id)
