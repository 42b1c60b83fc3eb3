"""Asks backends what they serve, as tasks on event loops, and tells the engine, whatever comes of it."""

import asyncio
import logging
from collections.abc import Callable

from agentsched.engine.events import Event, ModelsListed
from agentsched.model import Backend
from agentsched.runtime.attempt import cancelled
from agentsched.runtime.loops import LoopRow
from agentsched.transport.listing import list_models
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack

log = logging.getLogger("agentsched")

AGAIN_S = 0.05
"""How long after a question was cut short it is asked again: a loop that ends is gone by then."""


class Inquiry:
    """The questions of one scheduler.

    Args:
        feed: takes the events.
    """

    def __init__(self, stack: Stack, feed: Callable[[Callable[[float], Event]], None]) -> None:
        self._stack = stack
        self._feed = feed
        self._unlisted: set[str] = set()

    def begin(self, row: LoopRow, backend: Backend) -> None:
        """Ask for the engine, which has noted it in the row; call it on the row's loop."""
        if backend.name not in row.asking:
            return
        work = self.list(row, backend)
        try:
            task = row.loop.create_task(work)
        except Exception as error:
            work.close()
            self._cannot_list(backend.name, error)
            self._listed(row, backend.name, None, ours=True)
            return
        if not task.done():  # a task may start eagerly
            row.asking[backend.name].task = task
        row.spawn(task)

    async def list(self, row: LoopRow, backend: Backend) -> None:
        """Ask a backend and tell the engine; call it on the row's loop."""
        name, models = backend.name, None
        asked = row.asking.get(name)
        ours = asked is not None and asked.task is asyncio.current_task()
        try:
            models = await list_models(self._stack, await row.transport(backend.base_url), backend)
            self._unlisted.discard(name)
        except asyncio.CancelledError as error:
            if cancelled():
                if (
                    asked is not None and ours
                ):  # if the loop goes on, ask again; if it closes, another one will
                    asked.task = None
                    row.loop.call_later(AGAIN_S, self._cut_short, row, name)
                raise
            self._cannot_list(name, error)
        except Exception as error:
            if ours and row.asking.get(name) is not asked:
                return  # it was taken back: somebody else asks
            self._cannot_list(name, error)
        except BaseException as error:
            self._listed(row, name, None, ours=ours)
            self._cannot_list(name, error)
            raise
        self._listed(row, name, models, ours=ours)

    def _listed(self, row: LoopRow, backend: str, models: tuple[str, ...] | None, *, ours: bool) -> None:
        if ours:
            row.asking.pop(backend, None)
        self._feed(lambda at: ModelsListed(at=at, backend=backend, models=models))

    def _cannot_list(self, backend: str, error: BaseException) -> None:
        if backend not in self._unlisted:
            why = error.detail if isinstance(error, Broken) else repr(error)
            log.warning("%s: its models are not known, so it is tried with any: %s", backend, why)
        self._unlisted.add(backend)

    def _cut_short(self, row: LoopRow, backend: str) -> None:
        if backend in row.asking:
            del row.asking[backend]
            self._feed(lambda at: ModelsListed(at=at, backend=backend, answered=False))
