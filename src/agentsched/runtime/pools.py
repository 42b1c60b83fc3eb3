"""The connection pools to the backends: one per event loop, and one more for each proxy that the environment names."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from agentsched.errors import UsageError
from agentsched.model import Backend
from agentsched.runtime.proxies import proxy_for
from agentsched.transport.stack import Stack
from agentsched.transport.upstream import Upstream

KEPT_ALIVE = 256
"""Idle connections kept where not all backends are limited."""

KEPT_ALIVE_S = 4.0
"""Servers close idle connections after 5 s (uvicorn, hence vLLM): one that goes first is not reused too late."""


class Pools:
    """The pools of one event loop.

    There is no limit on connections: the scheduler's own limits are the bound. HTTP/1.1 only, since a cancelled
    call must end its connection, whatever the server makes of a reset stream.

    Args:
        upstream: where the transport comes from instead.
        backends: the fleet, whose limits say how many idle connections are worth keeping.
    """

    def __init__(self, stack: Stack, upstream: Upstream | None, backends: Iterable[Backend]) -> None:
        self._stack = stack
        self._upstream = upstream
        self._kept = kept_alive(backends)
        self._taken: Any = None
        self._close: Callable[[], Awaitable[None]] | None = None
        self._by_proxy: dict[str | None, Any] = {}
        self._by_url: dict[str, Any] = {}

    @property
    def open(self) -> bool:
        """Whether there is anything to close."""
        return bool(self._by_proxy) or self._close is not None

    def to(self, base_url: str) -> Any:
        """Return the transport to a backend; call it on the loop.

        Raises:
            UsageError: if the environment names a proxy that cannot be used, or the app's transport is of another loop.
        """
        if self._upstream is not None:
            if self._taken is None:
                self._taken, self._close = self._upstream.take()
            return self._taken
        transport = self._by_url.get(base_url)
        if transport is None:
            proxy = proxy_for(base_url)
            if proxy not in self._by_proxy:
                self._by_proxy[proxy] = self._pool(proxy)
            transport = self._by_url[base_url] = self._by_proxy[proxy]
        return transport

    def _pool(self, proxy: str | None) -> Any:
        limits = self._stack.Limits(
            max_connections=None, max_keepalive_connections=self._kept, keepalive_expiry=KEPT_ALIVE_S
        )
        try:
            return self._stack.AsyncHTTPTransport(limits=limits, trust_env=True, proxy=proxy)
        except ImportError as error:
            raise UsageError(f"the proxy that the environment names cannot be used: {error}") from None
        except Exception:  # of whatever type: its text may quote the password
            raise UsageError(
                "the proxy that the environment names cannot be used: its scheme, host or port is none"
            ) from None

    async def aclose(self) -> None:
        """Close them all; they open again if they are used again."""
        pools = list(self._by_proxy.values())
        self._by_proxy.clear()
        self._by_url.clear()
        close, self._taken, self._close = self._close, None, None
        for pool in pools:
            await pool.aclose()
        if close is not None:
            await close()


def kept_alive(backends: Iterable[Backend]) -> int:
    """Return how many idle connections to keep: as many as the limits let be busy at a time."""
    limits = [backend.max_concurrency for backend in backends]
    known = sum(limit for limit in limits if limit is not None)
    return known if all(limits) else max(known, KEPT_ALIVE)
