"""The event loop that sync callers' calls run on: one thread, started by the first of them."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from agentsched.errors import SchedulerClosed
from agentsched.runtime.fork import watch

T = TypeVar("T")

STOP_S = 2.0
"""How long `stop` waits for the thread; it has nothing to do that takes longer."""


class IoThread:
    """A daemon thread with an event loop. It ends with `stop`, or silently with the interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        watch(self)

    def hold(self) -> None:
        self._lock.acquire()

    def let_go(self) -> None:
        self._lock.release()

    def start_anew(self) -> None:
        """The thread has stayed with the parent."""
        self._loop = self._thread = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Its loop; the thread is started if it is not running.

        Raises:
            SchedulerClosed: after `stop`.
        """
        with self._lock:
            if self._stopped:
                raise SchedulerClosed("the scheduler is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name="agentsched-io", daemon=True
                )
                self._thread.start()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T], *, within_s: float | None = None) -> T:
        """Run a coroutine there and wait for its result. A wait that is broken off cancels it.

        Raises:
            TimeoutError: if it is not done in `within_s`.
            SchedulerClosed: after `stop`, or if that comes meanwhile.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except SchedulerClosed:
            work.close()
            raise
        try:
            return future.result(within_s)
        except CancelledError:
            if not self._stopped:
                raise
            raise SchedulerClosed("the scheduler is closed") from None
        except BaseException:
            future.cancel()
            del future  # it holds the error, whose traceback would hold it
            raise

    def forsake(self) -> None:
        """Let the thread end: nobody is left who could use it. No lock is taken, since the collector calls this."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(loop.stop)

    def stop(self) -> None:
        """End the loop and wait for the thread, unless it is this one."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
            self._stopped = True
        if loop is None or thread is None:
            return
        try:
            loop.call_soon_threadsafe(loop.stop)
        except RuntimeError:
            return  # it has ended
        if thread is not threading.current_thread():
            thread.join(STOP_S)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
