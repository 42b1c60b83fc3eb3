"""Nothing waits without need: a call that finds room is released in the turn of the loop in which it comes in."""

import asyncio
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, Scheduler
from tests.doubles import ASK, MODEL, said, upstream

TURNS = 1
"""A task that is created in one turn takes its first step in the next."""


@pytest.mark.parametrize("calls", [1, 50])
async def test_free_capacity_is_used_in_the_same_turn(stack: ModuleType, calls: int) -> None:
    transport = upstream(stack, said("a"))
    backend = Backend("http://b:1/v1", models=[MODEL], max_concurrency=calls)
    async with Scheduler([backend], upstream=transport) as scheduler:
        client = scheduler.http_async_client()
        request = client.build_request("POST", "/chat/completions", json=ASK)
        begun = [client._transport.handle_async_request(request) for _ in range(calls)]
        waiting: list[Any] = [
            one.send(None) for one in begun
        ]  # as far as each gets without a turn of the loop
        assert all(asyncio.isfuture(one) for one in waiting)
        assert scheduler.snapshot().running == calls
        assert transport.seen.requests == []
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert len(transport.seen.requests) == calls
        for one in begun:
            one.close()


async def test_room_that_gets_free_is_used_in_the_same_turn(stack: ModuleType) -> None:
    backend = Backend("http://b:1/v1", models=[MODEL], max_concurrency=1)
    async with Scheduler([backend], upstream=upstream(stack, said("a"))) as scheduler:
        client = scheduler.http_async_client()
        request = client.build_request("POST", "/chat/completions", json=ASK)
        first, second = (client._transport.handle_async_request(request) for _ in range(2))
        first.send(None)
        second.send(None)
        assert (scheduler.snapshot().running, scheduler.snapshot().queued) == (1, 1)
        first.close()  # its caller leaves
        assert (scheduler.snapshot().running, scheduler.snapshot().queued) == (1, 0)
        second.close()
        assert scheduler.snapshot().running == 0
