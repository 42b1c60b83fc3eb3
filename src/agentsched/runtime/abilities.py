"""Which backends can go on with an answer that another one began: found out once each, when it is first wanted."""

import asyncio
from contextlib import suppress

from agentsched.model import Backend
from agentsched.runtime.loops import LoopRow
from agentsched.transport.ability import way_of
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.listing import list_cards
from agentsched.transport.outgoing import served_as
from agentsched.transport.partial import Partial, Way
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack


class Abilities:
    """Those of one scheduler's backends."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._ways: dict[str, tuple[Backend, Way | None]] = {}
        self._windows: dict[str, tuple[Backend, int]] = {}
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Future[Way | Broken | None]] = {}

    def forget(self, name: str) -> None:
        """Ask again: the backend has changed, or does not do as it did."""
        self._ways.pop(name, None)
        self._windows.pop(name, None)

    def window(self, backend: Backend) -> int:
        """Return the most tokens of prompt and answer together, where that was found out; 0 elsewhere."""
        known = self._windows.get(backend.name)
        return known[1] if known is not None and known[0] is backend else 0

    async def way(
        self, row: LoopRow, backend: Backend, incoming: Incoming, partial: Partial, *, exact: bool
    ) -> Way | None:
        """Return how a backend can go on with an answer to this call; None if it cannot. Call it on the row's loop.

        Args:
            exact: whether it is known to go on by the ids of tokens.

        Raises:
            Broken: if that could not be found out.
        """
        served = served_as(incoming.model, backend)
        by_ids = exact and partial.ids is not None and partial.ids.model == served
        if by_ids and (incoming.max_tokens is not None or await self._has_window(row, backend, served)):
            return Way.IDS
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

    async def _has_window(self, row: LoopRow, backend: Backend, model: str | None) -> bool:
        """Ask how many tokens its prompt and its answer may have: without a cap a completion has 16, a chat all."""
        if not self.window(backend):
            with suppress(Broken):
                cards = await list_cards(self._stack, await row.transport(backend), backend)
                window = next((card.max_tokens for card in cards if card.name == model), None)
                self._windows[backend.name] = (backend, window or 0)
        return self.window(backend) > 0

    async def _ask(self, row: LoopRow, backend: Backend, incoming: Incoming) -> Way | None:
        """Ask for all who want to know: who comes meanwhile waits for the same answer, or failure."""
        key = (row.loop, backend.name)
        asking = self._asking[key] = row.loop.create_future()
        try:
            served = served_as(incoming.model, backend)
            way = await way_of(self._stack, await row.transport(backend), backend, served or "")
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
