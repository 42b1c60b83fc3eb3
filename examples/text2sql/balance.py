"""What an app does without a scheduler: a transport that sends each call to some backend at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import httpx2


class Rule(Protocol):
    """Chooses a backend by its position."""

    def pick(self, open_calls: Sequence[int]) -> int: ...


class RoundRobin:
    """Each backend in turn."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0

    def pick(self, open_calls: Sequence[int]) -> int:
        self._next = (self._next + 1) % self._count
        return self._next


class LeastOutstanding:
    """The backend with the fewest calls under way; among equals each in turn."""

    def __init__(self, count: int) -> None:
        self._turns = RoundRobin(count)

    def pick(self, open_calls: Sequence[int]) -> int:
        first = self._turns.pick(open_calls)
        order = [(first + offset) % len(open_calls) for offset in range(len(open_calls))]
        return min(order, key=lambda backend: open_calls[backend])


class _Answer(httpx2.AsyncByteStream):
    """An answer's bytes; the call is under way until they are closed."""

    def __init__(self, stream: Any, done: Any) -> None:
        self._stream = stream
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield chunk

    async def aclose(self) -> None:
        self._done()
        await self._stream.aclose()


class Balancer(httpx2.AsyncBaseTransport):
    """Sends each call to the backend that a rule picks."""

    def __init__(self, base_urls: Sequence[str], rule: Rule, inner: httpx2.AsyncBaseTransport) -> None:
        self._urls = [httpx2.URL(url) for url in base_urls]
        self._open = [0] * len(base_urls)
        self._rule = rule
        self._inner = inner

    @property
    def outstanding(self) -> Sequence[int]:
        """Calls under way, per backend."""
        return tuple(self._open)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        content = await request.aread()
        chosen = self._rule.pick(self._open)
        url = self._urls[chosen]
        target = url.copy_with(path=url.path.rstrip("/") + request.url.path.removeprefix("/v1"))
        self._open[chosen] += 1
        ended = False

        def done() -> None:
            nonlocal ended
            self._open[chosen] -= not ended
            ended = True

        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"host"]
        try:
            response = await self._inner.handle_async_request(
                httpx2.Request(
                    request.method, target, headers=headers, content=content, extensions=request.extensions
                )
            )
        except BaseException:
            done()
            raise
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=_Answer(response.stream, done)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()
