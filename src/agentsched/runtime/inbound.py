"""The transport that an SDK's HTTP client is given: a request goes in, a scheduled answer comes out."""

import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn, cast

from agentsched.errors import AgentschedError, UsageError
from agentsched.model import Request
from agentsched.runtime.call import Call
from agentsched.runtime.driver import Driver
from agentsched.runtime.verdict import for_sdk, made_for_sdk
from agentsched.transport.incoming import Incoming, Kind, read
from agentsched.transport.listing import as_list
from agentsched.transport.stack import Stack

ReadRequest = Callable[[Incoming], Request]


@cache
def _stream_type(stack: Stack) -> type[Any]:
    class AnswerStream(stack.AsyncByteStream):
        """The bytes of one answer. Leaving it in any way frees the call's room."""

        def __init__(self, driver: Driver, call: Call) -> None:
            self._driver = driver
            self._call = call
            self._finalizer = weakref.finalize(self, driver.drop, call)
            self._finalizer.atexit = False

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            try:
                chunk = await self._call.spool.read()
            except BaseException:
                self._leave()
                raise
            if chunk is None:
                self._leave()
                raise StopAsyncIteration
            return chunk

        async def aclose(self) -> None:
            self._leave()

        def _leave(self) -> None:
            self._finalizer.detach()  # it would keep the call, and with an error's traceback all of this, for ever
            self._driver.cancel(self._call)

    return AnswerStream


@cache
def transport_type(stack: Stack) -> type[Any]:
    """Return the async transport class for an HTTP stack."""
    stream_type = _stream_type(stack)

    class SchedulingTransport(stack.AsyncBaseTransport):
        """Hands every request to the scheduler."""

        def __init__(self, driver: Driver, describe: ReadRequest, max_body_bytes: int) -> None:
            self._driver = driver
            self._describe = describe
            self._max_body_bytes = max_body_bytes

        async def handle_async_request(self, request: Any) -> Any:
            content = await request.aread()
            try:
                incoming = self._read(request, content)
                if incoming.kind is Kind.MODELS:
                    return _models(await self._driver.list_all_models())
                call = self._driver.submit(incoming, self._describe(incoming))
            except AgentschedError as error:
                raise made_for_sdk(error) from None
            try:
                head = await call.head
            except BaseException:
                self._driver.cancel(call)
                raise
            if call.spool.complete:
                content = call.spool.take()
                headers = [*head.headers, (b"content-length", b"%d" % len(content))]
                return stack.Response(head.status, headers=headers, content=content)
            return stack.Response(head.status, headers=head.headers, stream=stream_type(self._driver, call))

        def _read(self, request: Any, content: bytes) -> Incoming:
            return read(
                method=request.method,
                raw_path=request.url.raw_path,
                headers=request.headers.raw,
                content=content,
                timeout=cast("Mapping[str, float | None]", request.extensions.get("timeout", {})),
                max_body_bytes=self._max_body_bytes,
            )

    def _models(names: Sequence[str]) -> Any:
        return stack.Response(200, headers={"content-type": "application/json"}, content=as_list(names))

    return SchedulingTransport


@cache
def refusing_type(stack: Stack) -> type[Any]:
    """Return the sync transport class that lets nothing through."""

    class RefusingTransport(stack.BaseTransport):
        """Raises on use, so that a sync call cannot slip past the scheduler unnoticed."""

        def handle_request(self, request: Any) -> NoReturn:
            raise for_sdk(UsageError)(
                "the scheduler takes async calls only (ainvoke, astream, an async client); nothing was sent"
            )

    return RefusingTransport
