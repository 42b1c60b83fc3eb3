"""Looks at the gauges of busy backends, as tasks on event loops, and tells the engine what they show."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from agentsched.engine.backends import BackendRow
from agentsched.engine.events import Event, Signalled
from agentsched.model import Backend, Signals
from agentsched.runtime.attempt import cancelled
from agentsched.runtime.loops import Look, LoopRow
from agentsched.transport.metrics import CAP_S, read_signals
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack

log = logging.getLogger("agentsched")

AFTER_S = 0.05
"""How long after the engine asked for it a look begins: a loop that ends is gone by then, and starts no task."""

OVERDUE_S = 1.5 * CAP_S
"""Age at which a look that bounds its own time must be on a loop that has stopped or closed."""


FROZEN = "it shows the same again and again, whatever runs there"


class Gauges:
    """The looks of one scheduler, at most one at a time at each backend.

    A look that is cut short tells the engine nothing: it asks for another by itself.

    Args:
        feed: takes the events, unless their backend has left.
        clock: engine seconds.
        rows: the engine's, which know whether a backend says the same whatever happens.
    """

    def __init__(
        self,
        stack: Stack,
        feed: Callable[[Backend, Callable[[float], Event]], None],
        clock: Callable[[], float],
        rows: Mapping[str, BackendRow],
    ) -> None:
        self._stack = stack
        self._feed = feed
        self._clock = clock
        self._rows = rows
        self._looks: dict[str, Look] = {}
        self._silent: set[str] = set()

    def begin(self, row: LoopRow, backend: Backend) -> None:
        """Look at a backend soon, unless somebody is at it; call it on the row's loop."""
        look = Look(backend.name, self._clock())
        other = self._looks.setdefault(backend.name, look)
        if other is not look:
            if look.since < other.since + OVERDUE_S:
                return
            self._looks[backend.name] = look
        row.looks.add(look)
        look.step = row.loop.call_later(AFTER_S, self._start, row, backend, look)

    def overhear(self, backend: Backend, signals: Signals) -> None:
        """Take what an answer said of its backend's load, unless something was heard a short while ago."""
        row = self._rows.get(backend.name)
        if row is not None and row.heard.news_due(self._clock(), len(row.running)):
            self._feed(backend, lambda at: Signalled(at=at, backend=backend.name, signals=signals))
            if row.heard.frozen:
                self._complain(backend.name, FROZEN)

    def forget(self, row: LoopRow, name: str) -> None:
        """Look no more at a backend that is gone; call it on the row's loop."""
        for look in [look for look in row.looks if look.backend == name]:
            if look.step is not None:
                look.step.cancel()
            self._over(row, name, look)
        self._silent.discard(name)

    def _start(self, row: LoopRow, backend: Backend, look: Look) -> None:
        if self._looks.get(backend.name) is not look:
            row.looks.discard(look)
            return
        work = self._look(row, backend, look)
        try:
            task = row.loop.create_task(work)
        except Exception as error:
            work.close()
            self._over(row, backend.name, look)
            self._tell(backend, None, error)
            return
        look.step = task
        row.spawn(task, backend.name)

    async def _look(self, row: LoopRow, backend: Backend, look: Look) -> None:
        signals, error = None, None
        try:
            signals = await read_signals(self._stack, await row.transport(backend), backend)
        except asyncio.CancelledError as caught:
            if cancelled():
                raise
            error = caught
        except Exception as caught:
            error = caught
        finally:
            ours = self._over(row, backend.name, look)
        if ours:
            self._tell(backend, signals, error)

    def _over(self, row: LoopRow, name: str, look: Look) -> bool:
        """Forget a look; return whether no other one has taken its place."""
        row.looks.discard(look)
        ours = self._looks.get(name) is look
        if ours:
            del self._looks[name]
        return ours

    def _tell(self, backend: Backend, signals: Signals | None, error: BaseException | None) -> None:
        """Tell the engine, and the log when a backend begins to be silent."""
        name = backend.name
        self._feed(backend, lambda at: Signalled(at=at, backend=name, signals=signals))
        row = self._rows.get(name)
        if error is not None:
            if row is None or not row.heard.tells(self._clock()):  # its answers may tell
                self._complain(name, error.detail if isinstance(error, Broken) else repr(error))
        elif signals is not None and signals.kv_usage is not None and row is not None and row.heard.frozen:
            self._complain(name, FROZEN)
        else:
            self._silent.discard(name)

    def _complain(self, name: str, why: str) -> None:
        if name not in self._silent:
            self._silent.add(name)
            log.warning("%s: its load is not known, so only what is sent from here counts: %s", name, why)
