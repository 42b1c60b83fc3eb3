"""Case 77: short calls without end, a tenth cancelled and a tenth failing, leave nothing behind.

A hundred thousand with `make soak`. The default run makes fewer, which shows a leak of one object in ten calls.

Requests go in through the transport that SDK clients are given, and out to an upstream in memory, so that all
that this library does to a call is done; what an SDK does is not. Virtual time, real memory.
"""

import asyncio
import gc
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx2
import psutil
import pytest

from agentsched import AgentschedError, Backend, Scheduler
from agentsched.engine.engine import KEPT_STORIES
from agentsched.testing import VirtualClock
from agentsched.transport.outgoing import MAX_REMEMBERED
from tests.doubles import ASK, EVENTS_TYPE, MODEL, counts, delta, event, settled

CALLS = int(os.environ.get("AGENTSCHED_SOAK", "20000"))
WARM_UP = 10_000
WORKERS = 40
BACKENDS = 4

FAULTS = ("refused", 500, 400, "reset", "garbage")
"""Every tenth attempt has one of them, in turn."""

_HEADERS = httpx2.Headers(list(EVENTS_TYPE))

_CONTENT = [
    event(delta("so ", role="assistant")) + event(delta("it goes")),
    event(delta(finish="stop")) + event(counts()) + b"data: [DONE]\n\n",
]


def _request(**fields: Any) -> httpx2.Request:
    url = "http://agentsched.invalid/v1/chat/completions"
    return httpx2.Request("POST", url, json={**ASK, **fields})


_WHOLE, _STREAMED = _request(), _request(stream=True)


class Upstream(httpx2.AsyncBaseTransport):
    """Backends that answer in 0.2 s of virtual time; every tenth call is broken off in one of several ways."""

    def __init__(self) -> None:
        self.open = 0
        self._numbers = count()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        number = next(self._numbers)
        self.open += 1
        fault = FAULTS[number // 10 % len(FAULTS)] if number % 10 == 0 else None
        try:
            await asyncio.sleep(0.1)
            if fault == "refused":
                raise httpx2.ConnectError(fault)
        except BaseException:
            self.open -= 1
            raise
        status = fault if isinstance(fault, int) else 200
        return httpx2.Response(status, headers=_HEADERS, stream=_Answer(self, fault))


class _Answer(httpx2.AsyncByteStream):
    def __init__(self, upstream: Upstream, fault: str | int | None) -> None:
        self.fault = fault
        self._upstream = upstream
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield _CONTENT[0]
        await asyncio.sleep(0.1)
        if self.fault == "reset":
            raise httpx2.ReadError(self.fault)
        if self.fault == "garbage":
            yield b"data: <garbage>\n\n"
        yield _CONTENT[1]

    async def aclose(self) -> None:
        self._upstream.open -= not self._closed
        self._closed = True


class Soak:
    """Workers that make calls one after another, and what came of them."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.upstream = Upstream()
        self.scheduler = Scheduler(
            [
                Backend(f"http://b{number}:1/v1", models=[MODEL], max_concurrency=5, rpm=10_000_000)
                for number in range(BACKENDS)
            ],
            upstream=self.upstream,
            clock=self.clock,
        )
        self.transport: Any = self.scheduler.http_async_client()._transport
        self.outcomes: Counter[str] = Counter()
        self._numbers = count()

    async def call(self, number: int) -> None:
        """Make one call: whole or streamed, alone or in a query of its own with a deadline."""
        streamed = number % 2 == 0
        request = _STREAMED if streamed else _WHOLE
        if number % 4 == 0:
            with self.scheduler.query(f"flow-{number % 7}", timeout_s=60, tenant=f"t{number % 5}"):
                response = await self.transport.handle_async_request(request)
        else:
            response = await self.transport.handle_async_request(request)
        content = b"".join([chunk async for chunk in response.stream])
        await response.aclose()
        if response.status_code == 200:
            assert b"it goes" in content
            assert b"usage" not in content or not streamed
        self.outcomes[str(response.status_code)] += 1

    async def cancelled(self, number: int, after_s: float) -> None:
        """Make a call and leave it."""
        task = asyncio.ensure_future(self.call(number))
        await asyncio.sleep(after_s)
        task.cancel()
        await task

    async def worker(self, last: int) -> None:
        for number in self._numbers:
            if number >= last:
                return
            try:
                if number % 10 == 3:
                    await self.cancelled(number, (0.0, 0.05, 0.1, 0.15)[number // 10 % 4])
                else:
                    await self.call(number)
            except asyncio.CancelledError:
                self.outcomes["cancelled"] += 1
            except AgentschedError as error:
                self.outcomes[type(error).__name__] += 1

    async def run(self, calls: int) -> None:
        first = next(self._numbers)
        last = first + calls
        self._numbers = count(first)
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(self.worker(last))
        self._numbers = count(last)

    async def assert_nothing_is_left(self) -> None:
        await asyncio.sleep(0.2)
        await settled()
        driver, engine = self.scheduler._driver, self.scheduler._driver.engine
        engine.check()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert self.upstream.open == 0
        assert not engine.requests
        assert not engine.attempts
        assert not engine.queries
        assert not driver._calls
        assert not driver._attempts
        assert not driver._dropped
        assert all(not row.running for row in engine.backends.values())
        # tables that stay are bounded
        assert len(engine.stories) == KEPT_STORIES
        assert len(engine.past.lengths) <= 10
        assert len(engine._deadlines) <= 64
        assert len(driver.addressing._headers) <= min(MAX_REMEMBERED, 2 * BACKENDS)
        assert len(driver.addressing._urls) == BACKENDS


def resident() -> int:
    gc.collect()
    return psutil.Process(os.getpid()).memory_info().rss


@pytest.mark.timeout(300)
def test_case_77_many_calls_leave_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """77: memory after warm-up stays within 5 %, every table is bounded, no task and no room is left."""
    caplog.set_level(logging.CRITICAL, "agentsched")  # pytest keeps every record
    soak = Soak()

    async def main() -> None:
        await soak.run(WARM_UP)
        await soak.assert_nothing_is_left()
        before, objects = resident(), len(gc.get_objects())
        await soak.run(CALLS - WARM_UP)
        await soak.assert_nothing_is_left()
        after = resident()
        assert after <= before * 1.05, f"{before / 2**20:.1f} MiB grew to {after / 2**20:.1f} MiB"
        assert len(gc.get_objects()) <= objects + 2_000

    soak.clock.run(main())
    assert sum(soak.outcomes.values()) == CALLS
    assert soak.outcomes["cancelled"] == CALLS // 10
    assert soak.outcomes["200"] > 0.8 * CALLS
    failed = CALLS - soak.outcomes["200"] - soak.outcomes["cancelled"]
    assert failed > 0
