"""What the app wants backends reached through: its own transport or client, or a function that makes one a loop."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from agentsched.errors import UsageError
from agentsched.transport.stack import Stack, stack_of


class Upstream:
    """Hands out transports to event loops.

    Args:
        given: an async transport or client of httpx or httpx2, which stays its owner's; or a function without
            arguments that makes one, called once per event loop.

    Raises:
        UsageError: if it is, or the function makes, neither.
    """

    def __init__(self, given: Any) -> None:
        self._make: Callable[[], Any] | None = None
        if callable(given) and not hasattr(given, "handle_async_request"):
            self._make, given = given, given()
        self.stack = stack_of(given)
        self._first: Any = given
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None

    def take(self) -> tuple[Any, Callable[[], Awaitable[None]] | None]:
        """Return a transport for the running loop, and what closes it; None where its owner does.

        Raises:
            UsageError: for a second loop where a single one can be served.
        """
        loop = asyncio.get_running_loop()
        if self._make is not None:
            made = self._first if self._first is not None else self._make()
            self._first = None
            return transport_of(self.stack, made), made.aclose
        if _pools(self.stack, self._first):
            if self._loop is None:
                self._loop = weakref.ref(loop)
            elif self._loop() is not loop:
                raise UsageError(
                    "the client or transport given as upstream keeps connections that belong to the event loop that "
                    "used it first; for a second asyncio.run, several threads or sync clients give a function that "
                    f"makes one: upstream=lambda: {self.stack.__name__}.AsyncClient(...)"
                )
        return transport_of(self.stack, self._first), None


def transport_of(stack: Stack, given: Any) -> Any:
    """Return a transport as it is, and one that sends through a client, with all that the client adds to requests."""
    return _sending_type(stack)(given) if isinstance(given, stack.AsyncClient) else given


def _pools(stack: Stack, given: Any) -> bool:
    """Whether it keeps connections; a transport of the app's own making has to see to that itself."""
    inner = getattr(given, "_transport", given) if isinstance(given, stack.AsyncClient) else given
    return isinstance(inner, stack.AsyncHTTPTransport)


@cache
def _sending_type(stack: Stack) -> type[Any]:
    class Sending(stack.AsyncBaseTransport):
        """Sends through a client, with its headers, cookies, parameters, hooks and authentication."""

        def __init__(self, client: Any) -> None:
            self._client = client

        async def handle_async_request(self, request: Any) -> Any:
            merged = self._client.build_request(
                request.method,
                request.url,
                headers=request.headers,
                content=await request.aread(),
                extensions=request.extensions,
            )
            return await self._client.send(merged, stream=True, follow_redirects=False)

    return Sending
