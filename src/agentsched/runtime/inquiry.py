"""Asks backends what they serve, as tasks on event loops, and tells the engine, whatever comes of it."""

import asyncio
import logging
from collections.abc import Callable

from agentsched.engine.events import Event, ModelsListed
from agentsched.model import Backend
from agentsched.runtime.attempt import cancelled
from agentsched.runtime.loops import LoopRow, Question
from agentsched.transport.listing import list_models
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack

log = logging.getLogger("agentsched")

AGAIN_S = 0.05
"""How long after a question was cut short it is asked again: a loop that ends is gone by then."""


class Inquiry:
    """The questions of one scheduler.

    Args:
        feed: takes the events, unless their backend has left.
    """

    def __init__(self, stack: Stack, feed: Callable[[Backend, Callable[[float], Event]], None]) -> None:
        self._stack = stack
        self._feed = feed
        self._unlisted: set[str] = set()

    def forget(self, name: str) -> None:
        """Say it again if one of the same name cannot list its models either."""
        self._unlisted.discard(name)

    def begin(self, row: LoopRow, backend: Backend, question: Question) -> None:
        """Ask for the engine, whose question is noted in the row; call it on the row's loop."""
        if row.asking.get(backend.name) is not question:
            return
        work = self.list(row, backend)
        try:
            task = row.loop.create_task(work)
        except Exception as error:
            work.close()
            self._cannot_list(backend.name, error)
            self._listed(row, backend, None, question)
            return
        if not task.done():  # a task may start eagerly
            question.task = task
        row.spawn(task, backend.name)

    async def list(self, row: LoopRow, backend: Backend) -> None:
        """Ask a backend and tell the engine; call it on the row's loop."""
        name, models = backend.name, None
        asked = row.asking.get(name)
        ours = asked is not None and asked.task is asyncio.current_task()
        try:
            models = await list_models(self._stack, await row.transport(backend), backend)
            self._unlisted.discard(name)
        except asyncio.CancelledError as error:
            if cancelled():
                if (
                    asked is not None and ours
                ):  # if the loop goes on, ask again; if it closes, another one will
                    asked.task = None
                    row.loop.call_later(AGAIN_S, self._cut_short, row, backend, asked)
                raise
            self._cannot_list(name, error)
        except Exception as error:
            if ours and row.asking.get(name) is not asked:
                return  # it was taken back: somebody else asks
            self._cannot_list(name, error)
        except BaseException as error:
            self._listed(row, backend, None, asked if ours else None)
            self._cannot_list(name, error)
            raise
        self._listed(row, backend, models, asked if ours else None)

    def _listed(
        self, row: LoopRow, backend: Backend, models: tuple[str, ...] | None, question: Question | None
    ) -> None:
        name = backend.name
        if question is not None and row.asking.get(name) is question:
            del row.asking[name]
        self._feed(backend, lambda at: ModelsListed(at=at, backend=name, models=models))

    def _cannot_list(self, backend: str, error: BaseException) -> None:
        if backend not in self._unlisted:
            why = error.detail if isinstance(error, Broken) else repr(error)
            log.warning("%s: its models are not known, so it is tried with any: %s", backend, why)
        self._unlisted.add(backend)

    def _cut_short(self, row: LoopRow, backend: Backend, question: Question) -> None:
        name = backend.name
        if row.asking.get(name) is question:
            del row.asking[name]
            self._feed(backend, lambda at: ModelsListed(at=at, backend=name, answered=False))
