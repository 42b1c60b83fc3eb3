"""The backends of a scheduler, which may change while it runs."""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentsched.engine import Engine
from agentsched.engine.events import BackendJoined, BackendLeft, Event
from agentsched.errors import SchedulerClosed, UsageError
from agentsched.model import Backend
from agentsched.predict import Learned, Measured, Profile

if TYPE_CHECKING:
    from agentsched.runtime.driver import Driver


class Fleet:
    """What `Scheduler.fleet` is. All methods may be called from any thread, inside and outside of event loops.

    The last backend may leave as well. While there is none, calls are not kept waiting for one that may never come:
    those that wait and those that are made raise `FleetEmpty`, so that the app can tell its users or try again.
    """

    def __init__(self, driver: "Driver") -> None:
        self._driver = driver
        self._leaving: dict[str, list[asyncio.Future[None]]] = {}

    def __repr__(self) -> str:
        return f"<Fleet {', '.join(self.names) or 'empty'}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all backends in the order in which they joined, those that drain included."""
        with self._driver.lock:
            return tuple(self._driver.engine.backends)

    def profile(self) -> Profile:
        """Return what was learned of the backends so far, for the `profile` of another scheduler."""
        with self._driver.lock:
            engine = self._driver.engine
            return Profile(
                backends=tuple(
                    Measured(
                        base_url=row.spec.base_url,
                        name=row.name,
                        learned=row.learned,
                        source="run",
                        calls=row.started - row.failed,
                    )
                    for row in engine.backends.values()
                    if row.learned != Learned()
                ),
                prompts=engine.past.prompts.learned(),
            )

    def add(self, backend: Backend) -> None:
        """Let a backend take calls, also those that wait already, from now on.

        One without `models` is asked what it serves: now if calls wait, else at the next call.

        Raises:
            UsageError: if it is no `Backend`, or another one, be it one that drains, has its name or address.
            SchedulerClosed: after the end.
        """
        _check_backend(backend, "add")
        with self._changing() as engine:
            engine.fleet.check_new(backend)
            learned = engine.fleet.profile.of(backend)
            self._driver.feed(lambda at: BackendJoined(at=at, backend=backend, learned=learned))

    def remove(self, name: str) -> None:
        """Take a backend away at once.

        Its calls are stopped there and go on at other backends without a word, where they broke off, at no charge to
        their tries. Where the caller has seen a part of an answer that none can go on with, and where no other backend
        serves the model, the call ends with `BackendUnavailable`, which carries the text that had come.

        Raises:
            UsageError: if there is no such backend.
            SchedulerClosed: after the end.
        """
        self._leave(name)

    def replace(self, backend: Backend) -> None:
        """Put a backend in the place of the one of its name: `remove` and `add` in one step.

        Calls that run there go on as they do after `remove`, be it at the new one; calls that wait go on waiting.
        What was learned of the old one's speed, models and load is forgotten, but not what the profile says.

        Raises:
            UsageError: if it is no `Backend`, there is none of its name, or a third one has its address.
            SchedulerClosed: after the end.
        """
        _check_backend(backend, "replace")
        self._leave(backend.name, successor=backend)

    async def drain(self, name: str) -> None:
        """Give a backend no more calls, and return when all that run there have ended and it is gone.

        A wait that is cancelled changes nothing for the backend: it goes on draining. `remove` ends that at once.

        Raises:
            UsageError: if there is no such backend.
            SchedulerClosed: after the end.
        """
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            with self._changing() as engine:
                engine.fleet.of(_checked_name(name))
                self._leaving.setdefault(name, []).append(gone)
                self._driver.feed(lambda at: BackendLeft(at=at, backend=name, drain=True))
            await gone
        finally:
            with self._driver.lock:
                waiting = self._leaving.get(name, [])
                if gone in waiting:
                    waiting.remove(gone)
                    if not waiting:
                        del self._leaving[name]

    def hear(self, backend: Backend, event: Callable[[float], Event]) -> None:
        """Let the engine know what a backend said, unless it has left since it was asked."""
        with self._driver.lock:
            row = self._driver.engine.backends.get(backend.name)
            if row is not None and row.spec is backend:
                self._driver.feed(event)

    def gone(self, name: str) -> None:
        """Let those go on who wait for a backend to be gone; the lock is held."""
        for waiting in self._leaving.pop(name, ()):
            with suppress(RuntimeError):  # its loop has closed
                waiting.get_loop().call_soon_threadsafe(_tell, waiting)

    def start_anew(self) -> list[object]:
        """Forget who waits: they are the parent process's. Return what must not be collected in this one."""
        left, self._leaving = self._leaving, {}
        return [left]

    def _leave(self, name: str, successor: Backend | None = None) -> None:
        driver = self._driver
        with self._changing() as engine:
            row = engine.fleet.of(_checked_name(name))
            if successor is not None:
                engine.fleet.check_new(successor, instead_of=row)
            learned = None if successor is None else engine.fleet.profile.of(successor)
            driver.feed(
                lambda at: BackendLeft(
                    at=at,
                    backend=name,
                    drain=False,
                    seen=driver.seen_at(name),
                    successor=successor,
                    learned=learned,
                )
            )

    @contextmanager
    def _changing(self) -> Generator[Engine, None, None]:
        driver = self._driver
        with driver.lock:
            if driver.engine.closed:
                raise SchedulerClosed("the scheduler is closed")
            driver.let_change()
            yield driver.engine


def _tell(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _check_backend(backend: object, what: str) -> None:
    if not isinstance(backend, Backend):
        raise UsageError(
            f"fleet.{what} takes a Backend, such as Backend('http://gpu-c:8000/v1'), not {type(backend).__name__}"
        )


def _checked_name(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError(
            f"a backend's name is text, such as scheduler.fleet.names[0], not {type(name).__name__}"
        )
    return name
