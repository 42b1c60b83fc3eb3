"""The event loops that calls come from: each with its own connection pool and its own timer."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from agentsched.transport.stack import Stack

KEPT_ALIVE = 256

KEPT_ALIVE_S = 4.0
"""Servers close idle connections after 5 s (uvicorn, hence vLLM): one that goes first is not reused too late."""


class LoopRow:
    """One event loop.

    Args:
        upstream: the transport to the backends; None opens a pool of this loop's own at first use.
        on_wake: called when the timer rings.

    Attributes:
        asking: by backend, the task of this loop that asks it for its models.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stack: Stack,
        upstream: Any | None,
        on_wake: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.tasks: set[asyncio.Task[None]] = set()
        self.asking: dict[str, asyncio.Task[None]] = {}
        self._stack = stack
        self._upstream = upstream
        self._on_wake = on_wake
        self._pool: AsyncGenerator[Any, None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def transport(self) -> Any:
        """Return the transport to the backends; call it on this loop."""
        if self._upstream is None:
            self._pool = _pool(self._stack)
            self._upstream = await anext(self._pool)
        return self._upstream

    def spawn(self, task: asyncio.Task[None]) -> None:
        """Keep a task alive until it is done."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def arm(self, delay_s: float) -> None:
        """Ring after `delay_s` unless it rings earlier anyway; call it on this loop."""
        at = self.loop.time() + max(0.0, delay_s)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._on_wake()

    async def aclose(self) -> None:
        """Wait for the tasks and close the pool; call it on this loop."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self.asking.values():
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)
        if self._pool is not None:
            await self._pool.aclose()


async def _pool(stack: Stack) -> AsyncGenerator[Any, None]:
    """Open a pool, and close it on its own loop when that one shuts its async generators down."""
    limits = stack.Limits(
        max_connections=None, max_keepalive_connections=KEPT_ALIVE, keepalive_expiry=KEPT_ALIVE_S
    )
    transport = stack.AsyncHTTPTransport(limits=limits, trust_env=True)
    try:
        yield transport
    finally:
        await transport.aclose()
