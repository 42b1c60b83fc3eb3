"""An asyncio loop on which time costs nothing: when all tasks wait, the clock jumps to the next timer.

Built from public seams only: a selector that moves the clock where others would wait, and a loop that reads
it. What a thread does still takes real time: while one is at work, the loop waits for it before it jumps.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from agentsched.errors import UsageError
from agentsched.testing.threads import OtherThreads

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

LIMIT_S = 30 * 86400.0
"""Virtual time that one run may take; only a timer that repeats for ever gets there."""
SLICE_S = 0.001
"""Real time after which a thread at work is looked at again."""


class Deadlock(RuntimeError):
    """Every task waits, no timer is set, and no thread woke the loop: the program would have hung."""


class VirtualClock:
    """Run coroutines in virtual time; the clock is called, or its `time`, for the seconds since it was made.

    `patience_s` are real seconds: how long a thread at work holds up a jump, and how long other threads
    have to wake a loop that has nothing left to do before that is called a deadlock.
    """

    def __init__(self, *, start: float = 0.0, patience_s: float = 1.0) -> None:
        self._now = start
        self._patience_s = patience_s
        self._others = OtherThreads()

    def __call__(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    time = __call__

    def __repr__(self) -> str:
        return f"<VirtualClock at {self._now:.6f} s>"

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run `main` to its end on a new loop, as `asyncio.run` does; the clock goes on from where it was.

        Raises:
            UsageError: inside a running event loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            main.close()
            raise UsageError(
                "VirtualClock.run starts a loop of its own: call it from sync code, not inside a loop"
            )
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(main)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop that lives in this clock's time: a `loop_factory` for `asyncio.Runner`."""
        selector = _JumpingSelector(self._wait)
        loop = _VirtualLoop(selector, self)
        selector.loop = loop
        return loop

    def _wait(
        self, loop: _VirtualLoop, timeout: float | None, wait_for_real: Callable[[float], bool]
    ) -> None:
        """Let `timeout` seconds pass, unless something outside the loop wakes it first."""
        waited_s = 0.0
        while sign := self._others.at_work(loop.jobs):
            if wait_for_real(SLICE_S):
                return
            waited_s += SLICE_S
            if waited_s >= self._patience_s:
                self._others.give_up(sign)
        if wait_for_real(0):  # by a thread that was done before it was looked at
            return
        if timeout is not None:
            self._now += timeout
            if self._now > loop.started_at + LIMIT_S:
                raise Deadlock(f"{LIMIT_S:.0f} s of virtual time have passed; waiting: {_waiting(loop)}")
        elif not (threading.active_count() > 1 and wait_for_real(self._patience_s)):
            raise Deadlock(f"nothing can happen any more at {self._now:g} s; waiting: {_waiting(loop)}")


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Read the virtual clock, and count the jobs that are out in executors."""

    def __init__(self, selector: selectors.BaseSelector, clock: Callable[[], float]) -> None:
        self._virtual_now = clock
        self.started_at = clock()
        self.jobs = 0
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual_now()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        job = super().run_in_executor(executor, func, *args)
        self.jobs += 1
        job.add_done_callback(self._job_done)
        return job

    def _job_done(self, _: asyncio.Future[Any]) -> None:
        self.jobs -= 1

    async def shutdown_default_executor(self, *timeout: float | None) -> None:
        self.jobs += 1
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            self.jobs -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Where a selector would wait for I/O, let virtual time pass instead."""

    loop: _VirtualLoop

    def __init__(self, wait: Callable[[_VirtualLoop, float | None, Callable[[float], bool]], None]) -> None:
        super().__init__()
        self._wait = wait
        self._found: list[tuple[selectors.SelectorKey, int]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        self._found = []
        self._wait(self.loop, timeout, self._for_real)
        return self._found

    def _for_real(self, seconds: float) -> bool:
        self._found = super().select(seconds)
        return bool(self._found)


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    """Name the tasks that wait, and where."""
    places: list[str] = []
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        frames = task.get_stack(limit=1)
        where = f" at {frames[-1].f_code.co_qualname}:{frames[-1].f_lineno}" if frames else ""
        places.append(f"{task.get_name()}{where}")
    return ", ".join(places) or "no task"
