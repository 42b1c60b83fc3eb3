"""The transports that an SDK's HTTP clients are given: a request goes in, a scheduled answer comes out."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from agentsched.errors import AgentschedError, UsageError
from agentsched.model import Request
from agentsched.runtime.call import Call
from agentsched.runtime.driver import Driver
from agentsched.runtime.iothread import IoThread
from agentsched.runtime.loops import running_loop
from agentsched.runtime.scope import heartbeat
from agentsched.runtime.verdict import for_sdk, made_for_sdk
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind, read
from agentsched.transport.listing import listed
from agentsched.transport.stack import Stack

BEAT_S = 0.2
"""How often a queued call tells its LangGraph node's idle timeout that all is well."""

LOOK_S = 0.1
"""How often a sync call that blocks an event loop looks whether it waits for that loop's own calls."""


class Inbound:
    """What both kinds of transport share.

    Args:
        describe: makes the engine's view of a call, from the context of the code that makes it.
    """

    def __init__(
        self, driver: Driver, describe: Callable[[Incoming], Request], max_body_bytes: int, io: IoThread
    ) -> None:
        self.driver = driver
        self.describe = describe
        self.io = io
        self._max_body_bytes = max_body_bytes

    def read(self, request: Any, content: bytes) -> Incoming:
        """Understand a request of either stack."""
        return read(
            method=request.method,
            raw_path=request.url.raw_path,
            headers=request.headers.raw,
            content=content,
            timeout=cast("Mapping[str, float | None]", request.extensions.get("timeout", {})),
            max_body_bytes=self._max_body_bytes,
        )

    def await_head(self, call: Call) -> Head:
        """Wait in this thread for the head of an answer that the I/O thread fetches."""
        blocked = running_loop()
        try:
            while True:
                try:
                    return self.io.run(_head(call), within_s=None if blocked is None else LOOK_S)
                except TimeoutError:
                    if blocked is not None and self.driver.waits_in_vain(call, blocked):
                        raise for_sdk(UsageError)(
                            "a sync call inside a running event loop waits for room that calls of the same loop "
                            "hold, which cannot go on meanwhile: use the async client (ainvoke, astream), or "
                            "asyncio.to_thread; nothing was sent",
                            request_id=call.request_id,
                        ) from None
        except BaseException:
            self.driver.cancel(call)
            del call  # it holds the error, whose traceback would hold it
            raise


async def _keep_alive(call: Call, beat: Callable[[], None]) -> None:
    """Wait for the head of an answer; time in the queue is no idleness of the node that waits."""
    while not call.head.done():
        if not call.running:
            beat()
        await asyncio.wait([call.head], timeout=BEAT_S)


async def _head(call: Call) -> Head:
    try:
        return await asyncio.shield(call.head)  # a look in between must not cancel it
    finally:
        del call


class Held:
    """The call whose answer a stream hands on, until the stream is left; one that is only dropped ends it as well."""

    def __init__(self, stack: Stack, stream: object, driver: Driver, call: Call) -> None:
        self._stack = stack
        self._driver = driver
        self._call: Call | None = call
        self._read_out = self._reading = False
        self._finalizer = weakref.finalize(stream, driver.drop, call)
        self._finalizer.atexit = False

    async def read(self, *, all_there: bool = False) -> bytes | None:
        """Return the next bytes, or all that are there; None at the end.

        Raises:
            StreamClosed: the stack's own, if it was left before, be it by another task under this one.
            RuntimeError: if another task is waiting for them.
        """
        call = self._call
        if call is None:
            if self._read_out:
                return None
            raise self._stack.StreamClosed()
        if self._reading:
            raise RuntimeError("another task is reading this answer")
        self._reading = True
        try:
            chunk = await (call.spool.read_all() if all_there else call.spool.read())
        except BaseException as error:
            closed = self._call is None and isinstance(error, AgentschedError)
            self.leave()
            del call  # it holds the error, whose traceback would hold it
            if closed:
                raise self._stack.StreamClosed() from None
            raise
        finally:
            self._reading = False
        if chunk is None:
            self._read_out = True
            self.leave()
        return chunk

    def leave(self) -> None:
        """End the call, and hold it no longer: responses, and errors with their tracebacks, may live on."""
        call, self._call = self._call, None
        if call is not None:
            self._finalizer.detach()
            self._driver.cancel(call)


@cache
def async_transport_type(stack: Stack) -> type[Any]:
    """Return the async transport class for an HTTP stack."""

    class AnswerStream(stack.AsyncByteStream):
        """The bytes of one answer. Leaving it in any way frees the call's room."""

        def __init__(self, driver: Driver, call: Call) -> None:
            self._held = Held(stack, self, driver, call)

        def __aiter__(self) -> AsyncIterator[bytes]:
            return self

        async def __anext__(self) -> bytes:
            chunk = await self._held.read()
            if chunk is None:
                raise StopAsyncIteration
            return chunk

        async def aclose(self) -> None:
            self._held.leave()

    class SchedulingTransport(stack.AsyncBaseTransport):
        """Hands every request to the scheduler."""

        def __init__(self, inbound: Inbound) -> None:
            self._inbound = inbound

        async def handle_async_request(self, request: Any) -> Any:
            inbound, content = self._inbound, await request.aread()
            driver = inbound.driver
            try:
                incoming = inbound.read(request, content)
                if incoming.kind is Kind.MODELS:
                    return _models(stack, incoming, await driver.list_all_models())
                call = driver.submit(incoming, inbound.describe(incoming))
            except AgentschedError as error:
                raise made_for_sdk(error) from None
            try:
                beat = heartbeat()
                if beat is not None:
                    await _keep_alive(call, beat)
                head = await call.head
            except BaseException:
                driver.cancel(call)
                del call  # it holds the error, whose traceback would hold it
                raise
            if call.spool.complete:
                return _whole(stack, head, call.spool.take())
            return stack.Response(head.status, headers=head.headers, stream=AnswerStream(driver, call))

    return SchedulingTransport


@cache
def sync_transport_type(stack: Stack) -> type[Any]:
    """Return the sync transport class for an HTTP stack: its calls run on the I/O thread."""

    class AnswerStream(stack.SyncByteStream):
        """The bytes of one answer. Leaving it in any way frees the call's room."""

        def __init__(self, inbound: Inbound, call: Call) -> None:
            self._io = inbound.io
            self._held = Held(stack, self, inbound.driver, call)

        def __iter__(self) -> Iterator[bytes]:
            try:
                while (chunk := self._io.run(self._held.read(all_there=True))) is not None:
                    yield chunk
            finally:
                self._held.leave()

        def close(self) -> None:
            self._held.leave()

    class SchedulingTransport(stack.BaseTransport):
        """Hands every request to the scheduler."""

        def __init__(self, inbound: Inbound) -> None:
            self._inbound = inbound

        def handle_request(self, request: Any) -> Any:
            inbound, content = self._inbound, request.read()
            driver = inbound.driver
            try:
                incoming = inbound.read(request, content)
                if incoming.kind is Kind.MODELS:
                    return _models(stack, incoming, inbound.io.run(driver.list_all_models()))
                call = driver.submit(incoming, inbound.describe(incoming), inbound.io.loop)
            except AgentschedError as error:
                raise made_for_sdk(error) from None
            try:
                head = inbound.await_head(call)
            except BaseException:
                del call
                raise
            if call.spool.complete:
                return _whole(stack, head, call.spool.take())
            return stack.Response(head.status, headers=head.headers, stream=AnswerStream(inbound, call))

    return SchedulingTransport


def _whole(stack: Stack, head: Head, content: bytes) -> Any:
    headers = [*head.headers]
    if not head.get(b"content-length"):  # which the answer to a HEAD has
        headers.append((b"content-length", b"%d" % len(content)))
    return stack.Response(head.status, headers=headers, content=content)


def _models(stack: Stack, incoming: Incoming, names: Sequence[str]) -> Any:
    status, content = listed(names, incoming.path)
    return stack.Response(status, headers={"content-type": "application/json"}, content=content)
