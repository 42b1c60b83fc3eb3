"""Carry HTTP requests to a fake fleet without a socket, as an async transport of `httpx` or of `httpx2`.

The two modules have the same classes, but each takes only its own, so the classes here are made per module.
What goes wrong at a backend is raised as the exception that the module's real transport would raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
from collections.abc import AsyncGenerator
from functools import cache
from typing import TYPE_CHECKING, Any

from agentsched.testing.answer import Answer
from agentsched.testing.faults import CutShort, Refused, Reset
from agentsched.testing.wire import Request, as_object

if TYPE_CHECKING:
    from agentsched.testing.fleet import FakeFleet

OPENAI_WITH_HTTPX2 = 3


class FleetTransport:
    """Be the `AsyncBaseTransport` of one http module; made by `FakeFleet.transport`."""

    def __init__(self, fleet: FakeFleet, http: Any) -> None:
        self._fleet = fleet
        self._http = http

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of the http module with a response of it."""
        http = self._http
        backend = self._fleet.find(str(request.url))
        if backend is None:
            raise http.ConnectError(f"no fake backend at {request.url}", request=request)
        sent = Request(
            method=request.method,
            path=request.url.path.removeprefix(backend.prefix),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.aread(),
        )
        limit_s: float | None = as_object(request.extensions.get("timeout")).get("read")
        with _translated(http, request):
            async with asyncio.timeout(limit_s):
                answer = await backend.answer(sent)
        if isinstance(answer.body, bytes):
            headers = {**answer.headers, "content-length": str(len(answer.body))}
            return http.Response(answer.status, headers=headers, stream=http.ByteStream(answer.body))
        stream = _stream_class(http)(answer, http, request, limit_s)
        return http.Response(answer.status, headers=dict(answer.headers), stream=stream)

    async def aclose(self) -> None:
        """Do nothing: the fleet may have other transports."""

    async def __aenter__(self) -> FleetTransport:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class _FleetStream:
    """Be the `AsyncByteStream` of a streamed answer."""

    def __init__(self, answer: Answer, http: Any, request: Any, limit_s: float | None) -> None:
        self._answer = answer
        self._http = http
        self._request = request
        self._limit_s = limit_s

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        pieces = self._answer.body
        assert not isinstance(pieces, bytes)
        try:
            while True:
                with _translated(self._http, self._request):
                    try:
                        async with asyncio.timeout(self._limit_s):
                            piece = await anext(pieces)
                    except StopAsyncIteration:
                        return
                yield piece
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the answer, and what the backend still does for it."""
        self._answer.close()
        if not isinstance(self._answer.body, bytes):
            with contextlib.suppress(RuntimeError):  # another task is waiting for its next piece
                await self._answer.body.aclose()


@contextlib.contextmanager
def _translated(http: Any, request: Any) -> Any:
    """Raise what went wrong as an exception of the http module."""
    try:
        yield
    except TimeoutError as error:
        raise http.ReadTimeout("the fake backend sent nothing in time", request=request) from error
    except Refused as error:
        raise http.ConnectError(str(error), request=request) from error
    except Reset as error:
        raise http.ReadError(str(error), request=request) from error
    except CutShort as error:
        message = "peer closed connection without sending complete message body"
        raise http.RemoteProtocolError(message, request=request) from error


@cache
def _transport_class(http: Any) -> type[FleetTransport]:
    return type("FleetTransport", (FleetTransport, http.AsyncBaseTransport), {})


@cache
def _stream_class(http: Any) -> type[_FleetStream]:
    return type("FleetStream", (_FleetStream, http.AsyncByteStream), {})


def make_transport(fleet: FakeFleet, http: str | None = None) -> Any:
    """Return a transport of the module called `http`, by default the one that the installed openai uses."""
    module = importlib.import_module(http or _default_http())
    return _transport_class(module)(fleet, module)


def _default_http() -> str:
    try:
        major = int(importlib.metadata.version("openai").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return "httpx"
    return "httpx2" if major >= OPENAI_WITH_HTTPX2 else "httpx"
