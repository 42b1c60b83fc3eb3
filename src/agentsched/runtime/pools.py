"""The connection pools of an event loop: one for each backend, so that it can be closed when that one is gone."""

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any

from agentsched.errors import UsageError
from agentsched.model import Backend
from agentsched.runtime.proxies import proxy_for
from agentsched.transport.stack import Stack
from agentsched.transport.upstream import Upstream

KEPT_ALIVE = 256
"""Idle connections kept to a backend without a limit."""

KEPT_ALIVE_S = 4.0
"""Servers close idle connections after 5 s (uvicorn, hence vLLM): one that goes first is not reused too late."""


class Pools:
    """The pools of one event loop.

    There is no limit on connections: the scheduler's own limits are the bound. HTTP/1.1 only, since a cancelled
    call must end its connection, whatever the server makes of a reset stream.

    Args:
        upstream: where one transport for all backends comes from instead.
    """

    def __init__(self, stack: Stack, upstream: Upstream | None) -> None:
        self._stack = stack
        self._upstream = upstream
        self._taken: Any = None
        self._close: Callable[[], Awaitable[None]] | None = None
        self._certificates: Any = None
        self._by_backend: dict[str, Any] = {}
        self._dropped: list[Any] = []

    @property
    def open(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._by_backend or self._dropped) or self._close is not None

    def to(self, backend: Backend) -> Any:
        """Return the transport to a backend; call it on the loop.

        Raises:
            UsageError: if the environment names a proxy that cannot be used, or the app's transport is of another loop.
        """
        if self._upstream is not None:
            if self._taken is None:
                self._taken, self._close = self._upstream.take()
            return self._taken
        transport = self._by_backend.get(backend.name)
        if transport is None:
            transport = self._by_backend[backend.name] = self._pool(backend)
        return transport

    def drop(self, backend: str) -> Any | None:
        """Return the pool of a backend that is gone, to be closed; None if there is none."""
        pool = self._by_backend.pop(backend, None)
        if pool is not None:
            self._dropped.append(pool)
        return pool

    async def close(self, pool: Any) -> None:
        """Close a pool that was dropped, unless it has been closed with all others. A cancellation comes after that."""
        if pool in self._dropped:
            self._dropped.remove(pool)
            await _to_the_end(pool.aclose())

    def _pool(self, backend: Backend) -> Any:
        if self._certificates is None:  # reading them takes longer than all else
            self._certificates = self._stack.create_ssl_context(trust_env=True)
        limits = self._stack.Limits(
            max_connections=None, max_keepalive_connections=kept_alive(backend), keepalive_expiry=KEPT_ALIVE_S
        )
        proxy = proxy_for(backend.base_url)
        try:
            return self._stack.AsyncHTTPTransport(
                limits=limits, verify=self._certificates, trust_env=True, proxy=proxy
            )
        except ImportError as error:
            raise UsageError(f"the proxy that the environment names cannot be used: {error}") from None
        except Exception:  # of whatever type: its text may quote the password
            raise UsageError(
                "the proxy that the environment names cannot be used: its scheme, host or port is none"
            ) from None

    async def aclose(self) -> None:
        """Close them all; they open again if they are used again."""
        pools = [*self._by_backend.values(), *self._dropped]
        self._by_backend.clear()
        self._dropped.clear()
        close, self._taken, self._close = self._close, None, None
        for pool in pools:
            await pool.aclose()
        if close is not None:
            await close()


@coroutine
def _to_the_end(work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
    """Let it run to its end: a loop that ends cancels its tasks, and a pool forgets connections before they close."""
    cancelled: CancelledError | None = None
    while True:
        try:
            step = work.send(None)
        except StopIteration:
            break
        try:
            yield step
        except CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def kept_alive(backend: Backend) -> int:
    """Return how many idle connections to keep: as many as its limit lets be busy at a time."""
    return backend.max_concurrency if backend.max_concurrency is not None else KEPT_ALIVE
