"""The transport that an SDK's HTTP client is given: a request goes in, a scheduled answer comes out."""

import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cache
from typing import Any, NoReturn, cast

from agentsched.errors import UsageError
from agentsched.model import Request
from agentsched.runtime.call import Call
from agentsched.runtime.driver import Driver
from agentsched.runtime.verdict import for_sdk
from agentsched.transport.incoming import Incoming, Kind, read
from agentsched.transport.listing import as_list
from agentsched.transport.stack import Stack

ReadRequest = Callable[[Incoming], Request]


@cache
def transport_type(stack: Stack) -> type[Any]:
    """Return the async transport class for an HTTP stack."""

    class AnswerStream(stack.AsyncByteStream):
        """The bytes of one answer. Leaving it in any way frees the call's room."""

        def __init__(self, driver: Driver, call: Call) -> None:
            self._driver = driver
            self._call = call
            self._finalizer = weakref.finalize(self, driver.drop, call)
            self._finalizer.atexit = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                while (chunk := await self._call.spool.read()) is not None:
                    yield chunk
            except BaseException:
                self._driver.cancel(self._call)
                raise

        async def aclose(self) -> None:
            self._finalizer.detach()
            self._driver.cancel(self._call)

    class SchedulingTransport(stack.AsyncBaseTransport):
        """Hands every request to the scheduler."""

        def __init__(self, driver: Driver, describe: ReadRequest, max_body_bytes: int) -> None:
            self._driver = driver
            self._describe = describe
            self._max_body_bytes = max_body_bytes

        async def handle_async_request(self, request: Any) -> Any:
            incoming = await self._read(request)
            if incoming.kind is Kind.MODELS:
                names = await self._driver.list_all_models()
                return stack.Response(
                    200, headers={"content-type": "application/json"}, content=as_list(names)
                )
            call = self._driver.submit(incoming, self._describe(incoming))
            try:
                head = await call.head
            except BaseException:
                self._driver.cancel(call)
                raise
            if call.spool.complete:
                return stack.Response(head.status, headers=head.headers, content=call.spool.take())
            return stack.Response(head.status, headers=head.headers, stream=AnswerStream(self._driver, call))

        async def _read(self, request: Any) -> Incoming:
            content = await request.aread()
            try:
                return read(
                    method=request.method,
                    raw_path=request.url.raw_path,
                    headers=request.headers.raw,
                    content=content,
                    timeout=cast("Mapping[str, float | None]", request.extensions.get("timeout", {})),
                    max_body_bytes=self._max_body_bytes,
                )
            except UsageError as error:
                raise for_sdk(type(error))(str(error)) from None

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
