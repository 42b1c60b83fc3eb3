"""`query()`: one run of a workflow, as a block around the code that makes its calls."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from agentsched.engine.events import QueryClosed, QueryOpened
from agentsched.errors import UsageError
from agentsched.model import Query
from agentsched.model.options import seconds
from agentsched.runtime.driver import Driver
from agentsched.runtime.options import label, seconds_until, whole
from agentsched.runtime.scope import Bound, Scope, current_scope

MAX_PRIORITY = 2**31
"""Room for any scale of urgency that engines know."""


class QueryBlock:
    """A query: enter it (``async with`` or ``with``), make calls inside, leave it. Each object once.

    Inside another query of the same scheduler it joins that one: the earlier deadline holds, the higher
    priority, the outer tenant and workflow.

    Attributes:
        id: set while it is entered; the outer query's where it joined one.
        workflow: the name it was given.
    """

    def __init__(
        self,
        driver: Driver,
        new_id: Callable[[], str],
        workflow: str,
        *,
        slo_s: float | None,
        timeout_s: float | None,
        deadline: object,
        tenant: str | None,
        priority: int,
        max_calls: int | None,
    ) -> None:
        self.workflow = label(workflow, "query: workflow")
        self.id: str | None = None
        self._driver = driver
        self._new_id = new_id
        self._slo_s = seconds(slo_s, "query: slo_s")
        self._timeout_s = seconds(timeout_s, "query: timeout_s")
        self._deadline = deadline
        seconds_until(deadline)
        self._tenant = None if tenant is None else label(tenant, "query: tenant")
        self._priority = whole(priority, "query: priority", least=-MAX_PRIORITY, most=MAX_PRIORITY)
        self._max_calls = None if max_calls is None else whole(max_calls, "query: max_calls", least=1)
        self._scope: Scope | None = None
        self._joined = False

    # -- a block --------------------------------------------------------------------------------------

    def __enter__(self) -> "QueryBlock":
        self.open()
        current_scope.set(self._scope)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the block, in whatever order blocks are left: an ended one never becomes current again."""
        self.close()
        scope = current_scope.get()
        while scope is not None and scope.ended:
            scope = scope.outer
        current_scope.set(scope)

    async def __aenter__(self) -> "QueryBlock":
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # -- a frame around a function's run --------------------------------------------------------------

    def open(self) -> None:
        """Begin, or join the query around."""
        if self._scope is not None:
            raise UsageError("a query is one run: call scheduler.query(...) again for another")
        now = self._driver.clock()
        deadline = _earlier(
            None if self._timeout_s is None else now + self._timeout_s,
            None if self._deadline is None else now + (seconds_until(self._deadline) or 0.0),
        )
        slo_at = None if self._slo_s is None else now + self._slo_s
        outer = current_scope.get()
        if outer is not None and outer.owner is self._driver and not outer.ended:
            self._scope = self._join(outer, deadline, slo_at)
            return
        query = Query(
            id=self._new_id(),
            workflow=self.workflow,
            tenant=self._tenant,
            priority=self._priority,
            slo_s=self._slo_s,
            deadline=deadline,
            max_calls=self._max_calls,
        )
        self.id = query.id
        self._driver.feed(lambda at: QueryOpened(at=at, query=query))
        self._scope = Scope(self._driver, query, self._priority, deadline, slo_at, outer)

    def active(self) -> AbstractContextManager[None]:
        """Surround a stretch of the function's own code."""
        return Bound(current_scope, self._scope)

    def close(self) -> None:
        """End; what it still has running goes on."""
        if self._scope is not None:
            self._scope.ended = True
        if not self._joined and self.id is not None:
            query_id = self.id
            self._driver.feed(lambda at: QueryClosed(at=at, query_id=query_id))

    def _join(self, outer: Scope, deadline: float | None, slo_at: float | None) -> Scope:
        if self._max_calls is not None:
            raise UsageError(
                f"query {self.workflow!r} is inside {outer.query.workflow!r}: max_calls belongs there"
            )
        if self._tenant is not None and self._tenant != outer.query.tenant:
            raise UsageError(
                f"query {self.workflow!r} of tenant {self._tenant!r} is inside one of {outer.query.tenant!r}"
            )
        self._joined = True
        self.id = outer.query.id
        return Scope(
            outer.owner,
            outer.query,
            max(self._priority, outer.priority),
            _earlier(deadline, outer.deadline),
            _earlier(slo_at, outer.slo_at),
            outer,
        )


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
