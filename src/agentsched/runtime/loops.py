"""The event loops that calls come from: each with its own connection pool and its own timer."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from agentsched.model import Backend
from agentsched.runtime.pools import Pools

STOPPED_S = 0.1
"""How often a loop that others wait for is looked at: it may stop before it has done what was asked of it."""

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


@dataclass(slots=True, eq=False)
class Look:
    """A backend's load is looked at, or soon will be.

    Attributes:
        backend: its name.
        since: engine seconds.
        step: what is under way for it.
    """

    backend: str
    since: float
    step: asyncio.TimerHandle | asyncio.Task[None] | None = None


class LoopRow:
    """One event loop.

    Args:
        pools: its connections, opened at first use.
        on_wake: called when the timer rings.

    Attributes:
        tasks: those under way, and the backend that each has to do with.
        asking: by backend, the question for its models that was put to this loop.
        looks: those at the loads of backends that this loop has to do.
        ending: attempts that have a finish reason, and until when the rest must come, in that order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pools: Pools, on_wake: Callable[[], None]) -> None:
        self.loop = loop
        self.tasks: dict[asyncio.Task[None], str] = {}
        self.asking: dict[str, Question] = {}
        self.looks: set[Look] = set()
        self.ending: dict[Ending, float] = {}
        self._end_timer: asyncio.TimerHandle | None = None
        self._pools = pools
        self._on_wake = on_wake
        self._at_shutdown: AsyncGenerator[None, None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def transport(self, backend: Backend) -> Any:
        """Return the transport to a backend; call it on this loop.

        Raises:
            UsageError: if the environment names a proxy for it that cannot be used.
        """
        transport = self._pools.to(backend)
        if self._at_shutdown is None and self._pools.open:
            self._at_shutdown = self._close_pools_at_shutdown()
            await anext(self._at_shutdown)
        return transport

    async def _close_pools_at_shutdown(self) -> AsyncGenerator[None, None]:
        """Close the pools on their own loop when that one shuts its async generators down."""
        try:
            yield
        finally:
            self._stop_looking()
            await self._pools.aclose()

    def spawn(self, task: asyncio.Task[None], backend: str) -> None:
        """Keep a task that has to do with a backend alive until it is done."""
        self.tasks[task] = backend
        task.add_done_callback(lambda done: self.tasks.pop(done, None))

    def forget(self, backend: str, question: Question | None) -> None:
        """Close what is open to a backend that is gone, once its tasks have ended; call it on this loop.

        Args:
            question: for its models, which nobody needs to be answered any more.
        """
        if question is not None and question.task is not None:
            question.task.cancel()
        pool = self._pools.drop(backend)
        if pool is None:
            return
        work = self._close([task for task, at in self.tasks.items() if at == backend], pool)
        try:
            self.spawn(self.loop.create_task(work), "")
        except Exception:  # of the app's task factory: the pool is closed with all others
            work.close()

    async def _close(self, tasks: Sequence[asyncio.Task[None]], pool: Any) -> None:
        if tasks:
            await asyncio.wait(tasks)
        await self._pools.close(pool)

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
        """Stop the timers, the questions and the looks; return whether something is left for `aclose` to wait for.

        In a loop's last moments nothing is, which is as well: it runs no new task to the end.
        """
        for timer in (self._timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        for question in self.asking.values():
            if question.task is not None:
                question.task.cancel()
        self._stop_looking()
        return bool(self.tasks or self._pools.open)

    def _stop_looking(self) -> None:
        for look in self.looks:
            if look.step is not None:
                look.step.cancel()
        self.looks.clear()

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


async def close_there(row: LoopRow) -> None:
    """Close what a loop has open, on that loop, unless it stops first."""
    here = asyncio.get_running_loop()
    if row.loop is here:
        await row.aclose()
        return
    done = asyncio.Event()

    def tell(closing: asyncio.Task[None] | None = None) -> None:
        if closing is not None and not closing.cancelled():
            closing.exception()  # nothing can be done about it, and it is not to be logged as forgotten
        with suppress(RuntimeError):  # nobody waits here any more
            here.call_soon_threadsafe(done.set)

    def close() -> None:
        if row.stop():
            row.loop.create_task(row.aclose()).add_done_callback(tell)
        else:
            tell()

    with suppress(RuntimeError):  # it has closed, and all it had open with it
        row.loop.call_soon_threadsafe(close)
    while row.loop.is_running() and not done.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), STOPPED_S)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that this code runs in; None outside of any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
