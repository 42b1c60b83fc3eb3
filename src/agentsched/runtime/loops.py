"""The event loops that calls come from: each with its own connection pool and its own timer."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from agentsched.runtime.pools import Pools

GRACE_S = 5.0
"""How long an answer may go on after its finish reason, for its usage and terminal event."""


class Ending(Protocol):
    """An attempt whose answer has its finish reason."""

    def late(self) -> None:
        """The rest has not come in time."""
        ...


@dataclass(slots=True)
class Question:
    """A backend is asked for its models.

    Attributes:
        since: engine seconds.
        task: does it; None while it has yet to begin.
    """

    since: float
    task: asyncio.Task[None] | None = None


class LoopRow:
    """One event loop.

    Args:
        pools: its connections, opened at first use.
        on_wake: called when the timer rings.

    Attributes:
        asking: by backend, the question for its models that was put to this loop.
        ending: attempts that have a finish reason, and until when the rest must come, in that order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pools: Pools, on_wake: Callable[[], None]) -> None:
        self.loop = loop
        self.tasks: set[asyncio.Task[None]] = set()
        self.asking: dict[str, Question] = {}
        self.ending: dict[Ending, float] = {}
        self._end_timer: asyncio.TimerHandle | None = None
        self._pools = pools
        self._on_wake = on_wake
        self._at_shutdown: AsyncGenerator[None, None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def transport(self, base_url: str) -> Any:
        """Return the transport to a backend; call it on this loop.

        Raises:
            UsageError: if the environment names a proxy for it that cannot be used.
        """
        transport = self._pools.to(base_url)
        if self._at_shutdown is None and self._pools.open:
            self._at_shutdown = self._close_pools_at_shutdown()
            await anext(self._at_shutdown)
        return transport

    async def _close_pools_at_shutdown(self) -> AsyncGenerator[None, None]:
        """Close the pools on their own loop when that one shuts its async generators down."""
        try:
            yield
        finally:
            await self._pools.aclose()

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

    def end_soon(self, attempt: Ending) -> None:
        """Call its `late` in `GRACE_S` unless it leaves `ending` before. One timer serves all of them."""
        self.ending.pop(attempt, None)
        due = self.ending[attempt] = self.loop.time() + GRACE_S
        if self._end_timer is None:
            self._end_timer = self.loop.call_at(due, self._end_late)

    def _end_late(self) -> None:
        now, self._end_timer = self.loop.time(), None
        for attempt, due in list(self.ending.items()):
            if due > now:
                self._end_timer = self.loop.call_at(due, self._end_late)
                break
            del self.ending[attempt]
            attempt.late()

    def stop(self) -> bool:
        """Stop the timers and the questions; return whether something is left for `aclose` to wait for.

        In a loop's last moments nothing is, which is as well: it runs no new task to the end.
        """
        for timer in (self._timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        for question in self.asking.values():
            if question.task is not None:
                question.task.cancel()
        return bool(self.tasks or self._pools.open)

    async def aclose(self) -> None:
        """Wait for the tasks and close the pool; call it on this loop."""
        self.stop()
        if self.tasks:
            await asyncio.wait(self.tasks)
        await self._pools.aclose()
        if self._at_shutdown is not None:
            with suppress(RuntimeError):  # the loop is at it
                await self._at_shutdown.aclose()
            self._at_shutdown = None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that this code runs in; None outside of any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
