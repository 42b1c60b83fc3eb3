"""Queries as the engine sees them: which calls belong to one, when it ends, how nested ones join."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentsched import CallLimitReached, Expired, UsageError, step
from agentsched.engine.events import Event, QueryClosed, QueryOpened, Submitted
from agentsched.model import Query, Request
from tests.doubles import Rig, assert_quiet, begun, outcome


class Watched(Rig):
    """Remembers what the engine was told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.events: list[Event] = []
        engine = self.scheduler._driver.engine
        handle = engine.handle
        engine.handle = lambda event: self.events.append(event) or handle(event)  # type: ignore[method-assign]

    @property
    def requests(self) -> list[Request]:
        return [event.request for event in self.events if isinstance(event, Submitted)]

    @property
    def opened(self) -> list[Query]:
        return [event.query for event in self.events if isinstance(event, QueryOpened)]

    @property
    def closed(self) -> list[str]:
        return [event.query_id for event in self.events if isinstance(event, QueryClosed)]


def test_a_bare_call_belongs_to_no_query() -> None:
    rig = Watched()

    async def main() -> None:
        await rig.say()

    rig.run(main)
    (request,) = rig.requests
    assert (request.query, request.workflow, request.step, request.tenant) == (None, None, None, None)
    assert (request.deadline, request.slo_at, request.priority) == (None, None, 0)
    assert rig.opened == []


def test_calls_inside_belong_to_it_with_all_it_says() -> None:
    rig = Watched()

    async def main() -> None:
        await asyncio.sleep(1)
        async with rig.scheduler.query("qa", slo_s=5, timeout_s=9, tenant="acme", priority=3) as query:
            with step("draft"):
                await rig.say(max_tokens=50)
            await rig.say(stream=False)
            assert query.id == rig.opened[0].id
        await rig.say()

    rig.run(main)
    draft, plain, outside = rig.requests
    (query,) = rig.opened
    assert (query.workflow, query.tenant, query.priority, query.slo_s) == ("qa", "acme", 3, 5.0)
    assert query.deadline == pytest.approx(10)
    assert (draft.query, draft.workflow, draft.step, draft.tenant) == (query.id, "qa", "draft", "acme")
    assert (draft.priority, draft.max_tokens, draft.model) == (3, 50, "fake-model")
    assert draft.deadline == pytest.approx(10)
    assert draft.slo_at == pytest.approx(6)
    assert (plain.query, plain.step) == (query.id, None)
    assert outside.query is None
    assert rig.closed == [query.id]


def test_each_run_of_a_workflow_is_one_query() -> None:
    rig = Watched()

    @rig.scheduler.workflow(slo_s=30)
    async def answer(question: str) -> str:
        first, second = await asyncio.gather(rig.say(), rig.say())
        assert first and second
        return question

    async def main() -> None:
        assert await asyncio.gather(answer("a"), answer("b"), answer("c")) == ["a", "b", "c"]

    rig.run(main)
    assert len(rig.opened) == 3
    assert len({query.id for query in rig.opened}) == 3
    assert sorted(rig.closed) == sorted(query.id for query in rig.opened)
    for query in rig.opened:
        assert query.workflow == "answer"
        assert sum(request.query == query.id for request in rig.requests) == 2


def test_ids_differ_between_queries_calls_and_schedulers() -> None:
    rigs = [Watched(), Watched()]
    for rig in rigs:

        async def main(rig: Watched = rig) -> None:
            for _ in range(3):
                async with rig.scheduler.query("q"):
                    await rig.say()

        rig.run(main)
    ids = [thing.id for rig in rigs for thing in (*rig.opened, *rig.requests)]
    assert len(set(ids)) == len(ids) == 12


def test_a_call_that_outlives_its_query_goes_on() -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("q", timeout_s=9):
            task = rig.begun(400)
            await begun()
        assert rig.scheduler.snapshot().queries == 0
        assert (await task).usage.completion_tokens == 400

    rig.run(main)


# -- nested -------------------------------------------------------------------------------------------


def test_a_query_inside_a_query_joins_it() -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("outer", tenant="acme") as outer:
            async with rig.scheduler.query("inner") as inner, step("s"):
                assert inner.id == outer.id
                await rig.say()
            await rig.say()
            assert rig.closed == []

    rig.run(main)
    assert len(rig.opened) == 1
    assert [(r.workflow, r.tenant, r.step) for r in rig.requests] == [
        ("outer", "acme", "s"),
        ("outer", "acme", None),
    ]
    assert len(rig.closed) == 1


@pytest.mark.parametrize(
    ("outer", "inner", "expected"), [(10, 3, 3), (3, 10, 3), (None, 3, 3), (3, None, 3), (None, None, None)]
)
def test_the_earlier_deadline_and_wish_hold(
    outer: float | None, inner: float | None, expected: float | None
) -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("outer", timeout_s=outer, slo_s=outer):
            async with rig.scheduler.query("inner", timeout_s=inner, slo_s=inner):
                await rig.say()
            await rig.say()

    rig.run(main)
    within, after = rig.requests
    assert (
        within.deadline == within.slo_at == (None if expected is None else pytest.approx(expected, abs=0.01))
    )
    assert after.deadline == (None if outer is None else pytest.approx(outer, abs=0.01))


def test_a_deadline_inside_ends_the_calls_inside_only() -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("outer", timeout_s=60):
            slow = rig.begun(1_000)
            async with rig.scheduler.query("inner", timeout_s=1):
                with pytest.raises(Expired):
                    await rig.say(1_000)
            await slow

    rig.run(main)


@pytest.mark.parametrize(("outer", "inner", "expected"), [(0, 5, 5), (5, 0, 5), (-3, -5, -3)])
def test_the_higher_priority_holds(outer: int, inner: int, expected: int) -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("outer", priority=outer), rig.scheduler.query("inner", priority=inner):
            await rig.say()

    rig.run(main)
    assert rig.requests[0].priority == expected


def test_a_tenant_is_not_changed_on_the_way_in() -> None:
    rig = Watched()

    async def main() -> None:
        for outer in ("acme", None):
            async with rig.scheduler.query("outer", tenant=outer):
                with pytest.raises(UsageError, match="'inner' of tenant 'other' is inside one of"):
                    async with rig.scheduler.query("inner", tenant="other"):
                        pytest.fail("entered")
                with pytest.raises(UsageError, match="tenant 'other'"):
                    await rig.scheduler.workflow("inner", tenant="other")(rig.say)()
                async with rig.scheduler.query("inner", tenant=outer):
                    await rig.say()

    rig.run(main)
    assert len(rig.requests) == 2


def test_a_limit_of_calls_belongs_outside() -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("outer", max_calls=3):
            with pytest.raises(UsageError, match="'inner' is inside 'outer': max_calls belongs there"):
                async with rig.scheduler.query("inner", max_calls=1):
                    pytest.fail("entered")
            await rig.say()

    rig.run(main)


def test_nested_workflows_are_one_query() -> None:
    rig = Watched()

    @rig.scheduler.workflow
    async def inner() -> None:
        await rig.say()

    @rig.scheduler.workflow
    async def outer() -> None:
        await asyncio.gather(inner(), inner())

    rig.run(outer)
    assert len(rig.opened) == 1
    assert {request.workflow for request in rig.requests} == {"outer"}


# -- once ---------------------------------------------------------------------------------------------


def test_a_query_is_entered_once() -> None:
    rig = Watched()
    query = rig.scheduler.query("q")
    with query, pytest.raises(UsageError, match="one run"), query:
        pytest.fail("entered")
    with pytest.raises(UsageError, match="one run"), query:
        pytest.fail("entered")
    assert len(rig.opened) == len(rig.closed) == 1


def test_a_query_never_entered_is_none() -> None:
    rig = Watched()
    rig.scheduler.query("q")
    assert rig.opened == []


def test_a_deadline_may_pass_before_the_query_begins() -> None:
    rig = Watched()
    query = rig.scheduler.query("q", deadline=datetime.now(UTC) + timedelta(milliseconds=20))
    time.sleep(0.03)  # a deadline is a date: only the wall's clock passes it
    with pytest.raises(UsageError, match="has passed"), query:
        pytest.fail("entered")
    assert rig.opened == []


def test_an_error_closes_it() -> None:
    rig = Watched()
    with pytest.raises(LookupError), rig.scheduler.query("q"):
        raise LookupError
    assert rig.closed == [rig.opened[0].id]


def test_a_block_may_be_left_in_another_context() -> None:
    """As a fixture that yields inside does: entered in one task, left in another."""
    rig = Watched()

    async def main() -> None:
        query = rig.scheduler.query("q")
        await asyncio.create_task(query.__aenter__())
        await rig.say()
        await asyncio.create_task(query.__aexit__(None, None, None))
        await assert_quiet(rig.scheduler)

    rig.run(main)
    assert len(rig.closed) == 1


def test_blocks_left_in_the_wrong_order_do_not_bring_an_ended_query_back() -> None:
    """As two fixtures do that end in another order than they began."""
    rig = Watched()

    async def main() -> None:
        one, two = rig.scheduler.query("one"), rig.scheduler.query("two")
        one.__enter__()
        two.__enter__()  # joins
        one.__exit__(None, None, None)
        await rig.say()
        two.__exit__(None, None, None)
        await rig.say()
        with rig.scheduler.query("three"):
            await rig.say()

    rig.run(main)
    assert rig.requests[1].query is None
    assert rig.requests[2].workflow == "three"
    assert len(rig.opened) == len(rig.closed) == 2


def test_a_query_opened_where_another_has_ended_is_its_own() -> None:
    rig = Watched()

    async def later() -> None:
        await asyncio.sleep(1)
        async with rig.scheduler.query("later"):
            await rig.say()

    async def main() -> None:
        async with rig.scheduler.query("first", tenant="acme"):
            task = asyncio.create_task(later())
            await rig.say()
        await task

    rig.run(main)
    assert [query.workflow for query in rig.opened] == ["first", "later"]
    assert [request.tenant for request in rig.requests] == ["acme", None]


# -- max_calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_no_more_than_max_calls_are_sent(limit: int) -> None:
    rig = Watched()

    async def main() -> None:
        async with rig.scheduler.query("q", max_calls=limit):
            found = await asyncio.gather(*(outcome(rig.say()) for _ in range(8)))
        assert sum(isinstance(one, CallLimitReached) for one in found) == 8 - limit
        async with rig.scheduler.query("q", max_calls=limit):
            await rig.say()

    rig.run(main)
    assert len(rig.received) == limit + 1


def test_a_call_cancelled_in_the_queue_leaves_its_place() -> None:
    rig = Watched(1, limit=1)

    async def main() -> None:
        blocking = rig.begun(200)
        await begun()
        async with rig.scheduler.query("q", max_calls=1):
            waiting = rig.begun()
            await begun()
            waiting.cancel()
            await outcome(asyncio.gather(waiting, return_exceptions=True))
            await rig.say()
            assert isinstance(await outcome(rig.say()), CallLimitReached)
        await blocking

    rig.run(main)


# -- LangGraph names its nodes ------------------------------------------------------------------------


def test_a_langgraph_node_is_a_step_without_being_told() -> None:
    from langgraph.graph import END, START, StateGraph

    rig = Watched()

    async def draft(state: dict[str, Any]) -> dict[str, Any]:
        await rig.say()
        with step("closer"):
            await rig.say()
        return state

    graph: Any = StateGraph(dict)
    graph.add_node("draft_node", draft)
    graph.add_edge(START, "draft_node")
    graph.add_edge("draft_node", END)
    compiled = graph.compile()

    async def main() -> None:
        async with rig.scheduler.query("q"):
            await compiled.ainvoke({"x": 1})
            await rig.say()

    rig.run(main)
    assert [request.step for request in rig.requests] == ["draft_node", "closer", None]
