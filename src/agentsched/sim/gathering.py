"""Rows of a trace brought together to queries."""

from agentsched.errors import UsageError
from agentsched.sim.observed import ObservedCall, ObservedQuery
from agentsched.sim.tracerow import Row

MAX_ROWS = 1_000_000
MAX_CALLS = 5_000
"""Calls of one query."""

OF_THE_QUERY = ("workflow", "tenant", "priority", "slo_s")
"""Columns that are the same for all calls of a query."""


class Gathering:
    """Takes the rows in the order of the file.

    Attributes:
        queries: in the order of their first calls.
    """

    def __init__(self) -> None:
        self.queries: list[ObservedQuery] = []
        self._by_name: dict[str, ObservedQuery] = {}
        self._said: dict[tuple[str, str], tuple[int, object]] = {}
        self._rows = 0
        self._latest_s = 0.0

    def add(self, line: int, row: Row) -> None:
        """Take one row.

        Raises:
            UsageError: if it contradicts an earlier one, or is one too many.
        """
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise UsageError(f"the trace has more than {MAX_ROWS} rows; play a part of it")
        if row.time_s < self._latest_s:
            raise UsageError(
                f"time_s is {row.time_s!r} after {self._latest_s!r}; rows must be in the order of time_s"
            )
        self._latest_s = row.time_s
        query = self._query(row)
        if row.query is not None:
            self._compare(line, row, row.query, query)
        ended_at = None if row.duration_s is None else row.time_s + row.duration_s
        query.calls.append(ObservedCall(at=row.time_s, ended_at=ended_at, node=row.node()))

    def _query(self, row: Row) -> ObservedQuery:
        query = None if row.query is None else self._by_name.get(row.query)
        if query is None:
            query = ObservedQuery(arrived_at=row.time_s)
            for column in OF_THE_QUERY:
                _put(query, column, getattr(row, column))
            self.queries.append(query)
            if row.query is not None:
                self._by_name[row.query] = query
        return query

    def _compare(self, line: int, row: Row, name: str, query: ObservedQuery) -> None:
        if len(query.calls) >= MAX_CALLS:
            raise UsageError(f"the query {name!r} has more than {MAX_CALLS} calls")
        for column in OF_THE_QUERY:
            said = getattr(row, column)
            if said is None:
                continue
            before, known = self._said.setdefault((name, column), (line, said))
            if known != said:
                raise UsageError(
                    f"{column} of the query {name!r} is {said!r}, but line {before} says {known!r}"
                )
            _put(query, column, said)
        if query.calls and (query.calls[0].ended_at is None) != (row.duration_s is None):
            raise UsageError(
                f"duration_s must be given for all calls of the query {name!r} or for none of them"
            )


def _put(query: ObservedQuery, column: str, said: object) -> None:
    if said is not None:
        setattr(query, column, said)
