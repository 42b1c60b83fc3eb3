"""Cancelled anywhere, a call leaves no task and no room, and its upstream connection is closed at once."""

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import pytest

from agentsched.engine.directory import Directory
from agentsched.testing import faults
from tests.doubles import Rig, after_turns, assert_idle, begun, settled

MOST_TURNS = 2_000


async def whole(rig: Rig) -> None:
    await rig.say(4)


async def streamed(rig: Rig) -> None:
    async for _ in await rig.say(4, stream=True):
        pass


async def not_streamable(rig: Rig) -> None:
    await rig.say(4, logprobs=False)


async def failing_over(rig: Rig) -> None:
    rig.fleet.heal()
    rig["fake-1"].fail(faults.Status(code=500))
    rig["fake-2"].fail(faults.Cut(after_events=2))
    await rig.say(4)


async def embedded(rig: Rig) -> None:
    await rig.client.embeddings.create(model="fake-model", input="x")


async def in_a_query(rig: Rig) -> None:
    async with rig.scheduler.query("q", timeout_s=30):
        await asyncio.gather(rig.say(2), rig.say(2), rig.say(2))


CALLS: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "whole": whole,
    "streamed": streamed,
    "not streamable": not_streamable,
    "failing over": failing_over,
    "embedded": embedded,
    "in a query": in_a_query,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("listed", [False, True], ids=["known", "asked"])
def test_after_any_number_of_turns(
    stack: ModuleType, call: Callable[[Rig], Awaitable[None]], listed: bool
) -> None:
    """The loop turns k times, then the caller is cancelled; k grows until the call gets through."""
    rig = Rig(3, limit=1, stack=stack, listed=listed)

    async def main() -> None:
        turns = 0
        while turns < MOST_TURNS:
            if listed:
                engine = rig.scheduler._driver.engine
                engine.directory = engine.fleet.directory = Directory(
                    [row.spec for row in engine.backends.values()]
                )
            task = asyncio.ensure_future(call(rig))
            if not await after_turns(task, turns):
                await task
                break
            turns += 1
            await settled(8)
            assert rig.in_flight == 0, "upstream is closed at once"
            assert_engine_idle(rig)
        assert 5 < turns < MOST_TURNS
        assert sum(fake.log.disconnects for fake in rig.fleet) > 0

    rig.run(main)


def assert_engine_idle(rig: Rig) -> None:
    engine = rig.scheduler._driver.engine
    engine.check()
    assert not engine.requests
    assert not engine.attempts
    assert not engine.queries
    assert not rig.scheduler._driver._calls
    assert not rig.scheduler._driver._attempts


@pytest.mark.parametrize("waited", [0.0, 0.5, 2.5])
def test_cancelled_in_the_queue_it_was_never_sent(stack: ModuleType, waited: float) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        running = rig.begun(1_000)
        await begun()
        waiting = [rig.begun(3) for _ in range(5)]
        await asyncio.sleep(waited)
        for task in waiting[:4]:
            task.cancel()
        await settled()
        assert rig.scheduler.snapshot().queued == 1
        await asyncio.gather(running, waiting[4])

    rig.run(main)
    assert len(rig.received) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_cancelled_at_the_model_the_next_call_starts_at_once(stack: ModuleType, stream: bool) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def read() -> None:
        answer = await rig.say(10_000, stream=stream)
        async for _ in answer:
            pass

    async def main() -> None:
        running = asyncio.ensure_future(read())
        await begun()
        next_one = rig.begun(1)
        await asyncio.sleep(1.0)
        running.cancel()
        at = rig.clock()
        await next_one
        assert rig.clock() - at < 0.02
        assert rig.received[0].outcome == "disconnected"
        assert rig.received[0].ended_at == pytest.approx(at)

    rig.run(main)


def test_a_timeout_of_the_callers_own_is_a_cancellation(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await rig.say(10_000)
            await settled()
            assert rig.in_flight == 0
        assert rig.clock() == pytest.approx(1.5, abs=0.01)

    rig.run(main)


def test_a_cancelled_sibling_takes_nobody_along(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)

    async def main() -> None:
        tasks = [rig.begun(100) for _ in range(10)]
        await asyncio.sleep(0.1)
        for task in tasks[::2]:
            task.cancel()
        found: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
        assert all(one.usage.completion_tokens == 100 for one in found[1::2])

    rig.run(main)
    assert sum(fake.log.disconnects for fake in rig.fleet) == 5


def test_cancelling_twice_and_after_the_end_changes_nothing(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        task = rig.begun(1_000)
        await asyncio.sleep(0.1)
        task.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        task.cancel()
        done = rig.begun(1)
        await done
        done.cancel()
        driver = rig.scheduler._driver
        assert not driver._calls

    rig.run(main)
    assert_idle(rig.scheduler)


def test_a_task_group_that_fails_ends_its_calls(stack: ModuleType) -> None:
    rig = Rig(1, limit=2, stack=stack)

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise LookupError("a step failed")

    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(rig.say(1_000))
                group.create_task(fail())
        assert rig.clock() == pytest.approx(0.5, abs=0.01)
        await settled()
        assert rig.in_flight == 0

    rig.run(main)
