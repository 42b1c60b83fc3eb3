"""Which backends can go on with an answer that another one began: found out once each, when it is first wanted."""

import asyncio

from agentsched.model import Backend
from agentsched.runtime.loops import LoopRow
from agentsched.transport.ability import way_of
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.partial import Way
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack


class Abilities:
    """Those of one scheduler's backends."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._ways: dict[str, tuple[Backend, Way | None]] = {}
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Future[Way | Broken | None]] = {}

    def forget(self, name: str) -> None:
        """Ask again: the backend has changed, or does not do as it did."""
        self._ways.pop(name, None)

    async def way(self, row: LoopRow, backend: Backend, incoming: Incoming) -> Way | None:
        """Return how a backend can go on with an answer to this call; None if it cannot. Call it on the row's loop.

        Raises:
            Broken: if that could not be found out.
        """
        if incoming.kind is Kind.COMPLETION:
            return Way.PROMPT
        key = (row.loop, backend.name)
        while True:
            known = self._ways.get(backend.name)
            if known is not None and known[0] is backend:
                return known[1]
            asking = self._asking.get(key)
            if asking is None:
                return await self._ask(row, backend, incoming)
            await asyncio.wait([asking])
            if not asking.cancelled():
                found = asking.result()
                if isinstance(found, Broken):
                    raise Broken(found.kind, found.detail)
                return found

    async def _ask(self, row: LoopRow, backend: Backend, incoming: Incoming) -> Way | None:
        """Ask for all who want to know: who comes meanwhile waits for the same answer, or failure."""
        key = (row.loop, backend.name)
        asking = self._asking[key] = row.loop.create_future()
        try:
            model = incoming.model or ""
            served = model if backend.models is None else backend.models.get(model, model)
            way = await way_of(self._stack, await row.transport(backend), backend, served)
        except Broken as error:
            asking.set_result(Broken(error.kind, error.detail))
            raise
        else:
            self._ways[backend.name] = (backend, way)
            asking.set_result(way)
            return way
        finally:
            asking.cancel()
            del self._asking[key]
