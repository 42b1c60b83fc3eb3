"""Steps and workflows around functions of every kind: their context is there inside, and nowhere else."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agentsched import Scheduler, step
from agentsched.runtime.scope import current_scope, step_name
from tests.doubles import Rig

rig = Rig()
scheduler: Scheduler = rig.scheduler


def here() -> tuple[str | None, str | None]:
    """Where the code runs: its workflow and its step."""
    scope = current_scope.get()
    return (scope.query.workflow if scope is not None else None, step_name())


NOWHERE = (None, None)


def marked(fn: Callable[..., Any]) -> Any:
    """The function as a step inside a workflow."""
    return scheduler.workflow("flow")(step("node")(fn))


INSIDE = ("flow", "node")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert here() == NOWHERE
    yield
    assert here() == NOWHERE
    assert not scheduler._driver.engine.queries


# -- plain and async ----------------------------------------------------------------------------------


def test_a_function() -> None:
    @marked
    def work(a: int, *, b: int) -> Any:
        assert here() == INSIDE
        return a + b

    assert work(1, b=2) == 3


async def test_an_async_function() -> None:
    @marked
    async def work(a: int, *, b: int) -> Any:
        assert here() == INSIDE
        await asyncio.sleep(0)
        assert here() == INSIDE
        return a + b

    assert await work(1, b=2) == 3


def test_an_error_leaves_nothing_behind() -> None:
    @marked
    def work() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        work()


async def test_an_async_error_leaves_nothing_behind() -> None:
    @marked
    async def work() -> None:
        await asyncio.sleep(0)
        raise LookupError("x")

    with pytest.raises(LookupError):
        await work()


async def test_a_cancelled_one_leaves_nothing_behind() -> None:
    @marked
    async def work() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert len(scheduler._driver.engine.queries) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Node:
    """A node as an object, as LangGraph takes them."""

    async def __call__(self, state: int) -> tuple[int, Any]:
        await asyncio.sleep(0)
        return state, here()

    async def method(self, state: int) -> tuple[int, Any]:
        await asyncio.sleep(0)
        return state, here()


async def plain_async(state: int) -> tuple[int, Any]:
    await asyncio.sleep(0)
    return state, here()


def returning_a_coroutine(state: int) -> Any:
    return plain_async(state)


AWAITABLE: dict[str, Any] = {
    "partial": functools.partial(plain_async, 1),
    "object": functools.partial(Node(), 1).func,
    "method": Node().method,
    "function that returns a coroutine": returning_a_coroutine,
}


@pytest.mark.parametrize("fn", AWAITABLE.values(), ids=AWAITABLE)
async def test_what_turns_out_to_be_async_is(fn: Any) -> None:
    arguments = () if isinstance(fn, functools.partial) else (1,)
    assert await marked(fn)(*arguments) == (1, INSIDE)


async def test_what_turns_out_to_be_async_may_fail_or_be_cancelled() -> None:
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise LookupError("x")

    late = marked(lambda seconds: wait(seconds))  # noqa: PLW0108 - not to be seen as async
    with pytest.raises(LookupError):
        await late(0)
    task = asyncio.ensure_future(late(60))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# -- generators ---------------------------------------------------------------------------------------


def test_a_generator_is_inside_while_it_works_and_its_consumer_is_not() -> None:
    @marked
    def work(count: int) -> Iterator[Any]:
        for number in range(count):
            assert here() == INSIDE
            yield number
        assert here() == INSIDE

    seen = []
    for number in work(3):
        assert here() == NOWHERE
        seen.append(number)
    assert seen == [0, 1, 2]


async def test_an_async_generator_is_inside_while_it_works_and_its_consumer_is_not() -> None:
    @marked
    async def work(count: int) -> AsyncIterator[Any]:
        for number in range(count):
            assert here() == INSIDE
            await asyncio.sleep(0)
            yield number
        assert here() == INSIDE

    seen = []
    async for number in work(3):
        assert here() == NOWHERE
        seen.append(number)
    assert seen == [0, 1, 2]


def test_a_generator_takes_what_is_sent_thrown_and_returned() -> None:
    def work() -> Any:
        got: list[Any] = []
        while len(got) < 3:
            try:
                got.append((yield len(got)))
            except LookupError as error:
                assert here() in (INSIDE, NOWHERE)
                got.append(error.args[0])
        return got

    for generator in (work(), marked(work)()):
        assert next(generator) == 0
        assert generator.send("a") == 1
        assert generator.throw(LookupError("b")) == 2
        with pytest.raises(StopIteration) as stop:
            generator.send("c")
        assert stop.value.value == ["a", "b", "c"]


async def test_an_async_generator_takes_what_is_sent_and_thrown() -> None:
    async def work() -> Any:
        got: list[Any] = []
        while len(got) < 3:
            try:
                got.append((yield list(got)))
            except LookupError as error:
                got.append(error.args[0])
        yield got

    for generator in (work(), marked(work)()):
        assert await anext(generator) == []
        assert await generator.asend("a") == ["a"]
        assert await generator.athrow(LookupError("b")) == ["a", "b"]
        assert await generator.asend("c") == ["a", "b", "c"]
        with pytest.raises(StopAsyncIteration):
            await anext(generator)


def test_what_a_generator_does_not_catch_comes_out() -> None:
    @marked
    def work() -> Any:
        yield 1

    generator = work()
    next(generator)
    with pytest.raises(LookupError):
        generator.throw(LookupError("x"))
    with pytest.raises(StopIteration):
        next(generator)


async def test_what_an_async_generator_does_not_catch_comes_out() -> None:
    @marked
    async def work() -> Any:
        yield 1

    generator = work()
    await anext(generator)
    with pytest.raises(LookupError):
        await generator.athrow(LookupError("x"))


@pytest.mark.parametrize("how", ["close", "drop", "break"])
def test_a_generator_that_is_left_cleans_up_inside(how: str) -> None:
    places: list[Any] = []

    @marked
    def work() -> Any:
        try:
            yield 1
            yield 2
        finally:
            places.append(here())

    generator = work()
    if how == "break":
        for _ in generator:
            break
        generator.close()
    else:
        next(generator)
        if how == "close":
            generator.close()
    del generator
    assert places == [INSIDE]


async def test_an_async_generator_that_is_left_cleans_up_inside() -> None:
    places: list[Any] = []

    @marked
    async def work() -> Any:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            places.append(here())

    generator = work()
    await anext(generator)
    await generator.aclose()
    assert places == [INSIDE]


async def test_an_async_generator_cancelled_at_work() -> None:
    places: list[Any] = []

    @marked
    async def work() -> Any:
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            places.append(here())

    async def consume() -> None:
        async for _ in work():
            pass

    task = asyncio.create_task(consume())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert places == [INSIDE]


async def test_generators_of_two_queries_take_turns() -> None:
    async def numbers() -> Any:
        for number in range(3):
            await asyncio.sleep(0)
            yield number, here()

    one = scheduler.workflow("one")(numbers)()
    two = scheduler.workflow("two")(numbers)()
    seen = [await anext(stream) for _ in range(3) for stream in (one, two)]
    assert [place[0] for _, place in seen] == ["one", "two"] * 3
    for stream in (one, two):
        await stream.aclose()


def test_a_generator_never_begun_is_no_query() -> None:
    @marked
    def work() -> Any:
        yield 1

    work()
    assert not scheduler._driver.engine.queries


# -- what frameworks look at --------------------------------------------------------------------------


async def example(state: dict[str, int], *, config: int = 3) -> dict[str, int]:
    """Doc."""
    return state


def test_a_wrapped_function_looks_like_itself() -> None:
    for wrapped in (step(example), scheduler.workflow(example), marked(example)):
        assert wrapped.__name__ == "example"
        assert wrapped.__doc__ == "Doc."
        assert wrapped.__module__ == example.__module__
        assert inspect.signature(wrapped) == inspect.signature(example)
        assert inspect.iscoroutinefunction(wrapped)
        assert wrapped.__wrapped__ is example, "LangGraph unwraps once"


def test_kinds_stay() -> None:
    async def agen() -> Any:
        yield 1

    def gen() -> Any:
        yield 1

    assert inspect.isasyncgenfunction(marked(agen))
    assert inspect.isgeneratorfunction(marked(gen))
    assert not inspect.iscoroutinefunction(marked(here))


# -- names --------------------------------------------------------------------------------------------


def test_names_of_steps() -> None:
    @step
    def bare() -> Any:
        return here()

    @step("given")
    def positional() -> Any:
        return here()

    @step(name="given")
    def by_keyword() -> Any:
        return here()

    @step()
    def empty() -> Any:
        return here()

    assert bare() == (None, "bare")
    assert positional() == by_keyword() == (None, "given")
    assert empty() == (None, "empty")
    assert step(bare, name="other")() == (None, "bare"), "the innermost is the most specific"
    assert step(here, name="other")() == (None, "other")
    assert step(Node)().method is not None


def test_names_of_workflows() -> None:
    @scheduler.workflow
    def bare() -> Any:
        return here()

    @scheduler.workflow("given", slo_s=3)
    def positional() -> Any:
        return here()

    @scheduler.workflow(slo_s=3)
    def optional() -> Any:
        return here()

    assert bare() == ("bare", None)
    assert positional() == ("given", None)
    assert optional() == ("optional", None)


# -- blocks -------------------------------------------------------------------------------------------


async def test_blocks_of_both_kinds() -> None:
    async with scheduler.query("q") as query, step("a"):
        assert query.workflow == "q"
        assert query.id is not None
        assert here() == ("q", "a")
        with step("b"):
            assert here() == ("q", "b")
            with scheduler.query("inner"):
                assert here() == ("q", "b"), "a query inside joins"
        assert here() == ("q", "a")
    with scheduler.query("q"), step("a"):
        assert here() == ("q", "a")


def test_one_step_around_many_blocks() -> None:
    again = step("again")
    with again, again:
        assert here() == (None, "again")
        with again:
            pass
        assert here() == (None, "again")
    assert here() == NOWHERE
    with pytest.raises(LookupError), again:
        raise LookupError


async def test_tasks_inherit_and_do_not_leak() -> None:
    async def inner(name: str) -> Any:
        with step(name):
            await asyncio.sleep(0)
            return here()

    async with scheduler.query("q"):
        with step("outer"):
            tasks = [asyncio.create_task(inner(name)) for name in "abc"]
            inherited = asyncio.create_task(plain_async(1))
        assert here() == ("q", None)
    assert await asyncio.gather(*tasks) == [("q", name) for name in "abc"]
    assert (await inherited)[1] == ("q", "outer")


async def test_threads_inherit_where_asyncio_hands_the_context_on() -> None:
    with scheduler.query("q"), step("s"):
        assert await asyncio.to_thread(here) == ("q", "s")


async def test_recursion() -> None:
    @step
    async def down(depth: int) -> Any:
        if depth:
            return await down(depth - 1)
        return here()

    assert await down(50) == (None, "down")


def test_another_schedulers_query_is_not_ours() -> None:
    other = Rig().scheduler
    with other.query("theirs"):
        with scheduler.query("ours") as query:
            assert query.id is not None
            assert len(scheduler._driver.engine.queries) == 1
            assert here() == ("ours", None)
        assert here() == ("theirs", None)
