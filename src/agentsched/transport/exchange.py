"""One attempt over the wire: send a request, follow the answer, say how it ended.

Everything foreign ends here: transport exceptions, HTTP statuses, errors inside a stream all become a
`Failure`. What comes of a failure is not decided here.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

from agentsched.model import Failure, FailureKind, Usage
from agentsched.model.value import record
from agentsched.transport.body import read_body
from agentsched.transport.gist import AnswerTooLong, Gist
from agentsched.transport.head import Head
from agentsched.transport.incoming import CHARS_PER_TOKEN, Incoming, Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.outgoing import Outgoing
from agentsched.transport.refusal import Broken, encoded, in_band, raised, refused
from agentsched.transport.sse import Decoder, EventTooLong, ServerEvent, encode
from agentsched.transport.stack import Stack

PROGRESS_TOKENS = 200
"""Output tokens between two reports of progress."""

MAX_WHOLE_BYTES = 64 * 2**20
"""Bound on an answer that is held whole."""

MAX_ERROR_BYTES = 2**20

MAX_DETAIL_CHARS = 300
"""What errors and logs repeat of a backend's own words."""

DRAIN_S = 0.1
"""How long a connection may take to end after the terminal event before it is closed instead of kept."""

_NO_USAGE = b',"usage":null'

YIELD_CHUNKS = 256
"""Chunks after which the loop gets its turn even where all of them are there already."""


class Sink(Protocol):
    """Where an attempt puts what it receives. All calls come from the attempt's own task."""

    @property
    def delivered(self) -> bool:
        """Whether the caller may have seen a part of the answer."""
        ...

    def begin(self, head: Head) -> None:
        """The answer begins: what follows is for the caller."""
        ...

    def put(self, chunk: bytes) -> None:
        """Take bytes for the caller."""
        ...

    @property
    def full(self) -> bool:
        """Whether the reader is too far behind."""
        ...

    async def room(self) -> None:
        """Wait while it is full."""
        ...

    def ending(self) -> None:
        """The answer has its finish reason; `Exchange.stop` if the rest does not come soon."""
        ...

    def progressed(self, tokens: int, connect_s: float) -> None:
        """Output tokens so far; 0 where the backend has answered over a connection opened for it."""
        ...

    def finished(self, usage: Usage) -> None:
        """The backend is done. Bytes put before are the whole answer."""
        ...


@record
class Ended:
    """A failed attempt.

    Attributes:
        refusal: the backend's own error answer, if it gave one: head and body.
        partial_text: what had been generated.
    """

    failure: Failure
    refusal: tuple[Head, bytes] | None = None
    partial_text: str = ""


class Exchange:
    """One attempt.

    Args:
        stack, transport: the HTTP stack and its async transport to the backends.
        sink: takes what comes.
    """

    def __init__(
        self, stack: Stack, transport: Any, incoming: Incoming, outgoing: Outgoing, sink: Sink
    ) -> None:
        self._stack = stack
        self._transport = transport
        self._incoming = incoming
        self._outgoing = outgoing
        self._sink = sink
        self._connect_s = 0.0
        self._report_at = 1
        self._streaming = incoming.stream
        self._gist = Gist(incoming.kind, several=incoming.several, whole=not self._streaming)
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False

    async def run(self) -> Ended | None:
        """Send, follow, and return how it failed; None if it did not."""
        self._task = asyncio.current_task()
        try:
            response = await self._transport.handle_async_request(self._request())
        except Exception as error:  # whatever a transport raises before it has an answer, there is none
            return self._ended(raised(self._stack, error))
        chunks = aiter(response.stream)
        try:
            await self._answer(Head(response.status_code, response.headers.raw), chunks)
        except Broken as broken:
            return self._ended(broken)
        except (EventTooLong, AnswerTooLong) as error:
            return self._ended(Broken(FailureKind.PROTOCOL, str(error)))
        finally:
            try:
                await _close(chunks)
            finally:
                await _close(response)
        return None

    def stop(self) -> None:
        """Wait for no more: an answer that has its finish reason is complete without what may follow."""
        if self._task is not None and self._said_all:
            self._stopped = True
            self._task.cancel()

    def _ended(self, broken: Broken) -> Ended:
        failure = Failure(
            kind=broken.kind,
            status=broken.refusal[0].status if broken.refusal is not None else None,
            retry_after_s=broken.retry_after_s,
            delivered=self._sink.delivered,
            detail=self._without_key(broken.detail)[:MAX_DETAIL_CHARS],
        )
        return Ended(failure, broken.refusal, self._gist.text)

    def _without_key(self, detail: str) -> str:
        """Return what may be logged of a backend's words: some quote the key that they refuse."""
        key = self._outgoing.headers.get("authorization", "").removeprefix("Bearer ")
        return detail.replace(key, "[key]") if key else detail

    async def _answer(self, head: Head, chunks: AsyncIterator[bytes]) -> None:
        if not 200 <= head.status < 300:
            content = await self._read(chunks, MAX_ERROR_BYTES) or b""
            raise refused(head, content, self._incoming.model, self._incoming.kind)
        if self._connect_s > 0:
            self._sink.progressed(0, self._connect_s)
        if self._incoming.kind is Kind.OPAQUE:
            await self._pass_through(head, chunks)
        elif encoded(head):
            raise Broken(FailureKind.PROTOCOL, "the answer came compressed, which was ruled out")
        elif self._outgoing.streamed and b"event-stream" in head.get(b"content-type").lower():
            await self._follow(head, chunks)
        else:
            self._hand_over(head, await self._read(chunks, MAX_WHOLE_BYTES))

    async def _next(self, chunks: AsyncIterator[bytes]) -> bytes | None:
        """Return the next bytes; None at their end."""
        try:
            return await anext(chunks)
        except StopAsyncIteration:
            return None
        except Exception as error:
            raise raised(self._stack, error) from error

    async def _read(self, chunks: AsyncIterator[bytes], limit: int) -> bytes | None:
        """Read a body; None if it is larger than `limit`."""
        try:
            return await read_body(chunks, limit)
        except Exception as error:
            raise raised(self._stack, error) from error

    def _request(self) -> Any:
        outgoing = self._outgoing
        extensions = {"timeout": {**self._incoming.timeout, "pool": None}, "trace": self._trace()}
        content = outgoing.content
        stream = self._stack.ByteStream(content)  # content= would normalise all headers a second time
        request = self._stack.Request(
            outgoing.method, outgoing.url, headers=outgoing.headers, stream=stream, extensions=extensions
        )
        if content or outgoing.method in ("POST", "PUT", "PATCH"):
            request.headers["content-length"] = str(len(content))
        request.read()
        return request

    def _trace(self) -> Callable[[str, Mapping[str, Any]], Awaitable[None]]:
        started = 0.0

        async def trace(event: str, _info: Mapping[str, Any]) -> None:
            nonlocal started
            if event.endswith(("connect_tcp.started", "start_tls.started")):
                started = perf_counter()
            elif event.endswith(("connect_tcp.complete", "start_tls.complete")):
                self._connect_s += perf_counter() - started

        return trace

    # -- a stream of events ---------------------------------------------------------------------------

    async def _follow(self, head: Head, chunks: AsyncIterator[bytes]) -> None:
        """Follow an event stream: to a caller who asked for one as it comes, to others as one answer."""
        decoder = Decoder()
        try:
            over = await self._events(decoder, head, chunks)
        except asyncio.CancelledError:
            if not self._stopped or self._task is None or self._task.uncancel() > 0:
                raise
            over = False
        except (Broken, EventTooLong):
            if not self._said_all:
                raise
            over = False  # what cannot be read after the finish reason would not have been the answer
            decoder = Decoder()
        if over:
            await _drain(chunks)
        elif any(self._last(event, head) for event in decoder.flush()):
            pass
        elif self._gist.finished and self._gist.answers >= self._incoming.answers:
            self._complete(head)
        else:
            raise Broken(FailureKind.PROTOCOL, "the stream ended before the answer did")

    @property
    def _said_all(self) -> bool:
        """Whether the answer is complete, whatever may follow."""
        gist = self._gist
        return gist.finished and gist.steady and gist.answers >= self._incoming.answers

    def _last(self, event: ServerEvent, head: Head) -> bool:
        """Take an event that the stream's end may have cut off."""
        try:
            return self._event(event, head)
        except Broken:
            if not self._said_all:
                raise
            return False

    async def _events(self, decoder: Decoder, head: Head, chunks: AsyncIterator[bytes]) -> bool:
        """Take events until the bytes end or the last one has come; return whether it has."""
        gist, turn, ended_at = self._gist, 0, -1
        while True:
            try:
                chunk = await anext(chunks)  # not `_next`: a coroutine is a tenth of what an event costs
            except StopAsyncIteration:
                return False
            except Exception as error:
                raise raised(self._stack, error) from error
            for event in decoder.feed(chunk):
                if self._event(event, head):
                    return True
            if self._streaming and self._sink.full:
                await self._sink.room()
                ended_at = -1
            if gist.finished and gist.said != ended_at and self._said_all:
                ended_at = gist.said  # what follows and says nothing more does not put the end off
                self._sink.ending()
            turn += 1
            if turn % YIELD_CHUNKS == 0:
                await asyncio.sleep(0)

    def _event(self, event: ServerEvent, head: Head) -> bool:
        """Take one event; return whether it was the last."""
        data = event.data
        if not data:
            return False
        if data.startswith(b"[DONE]"):
            if not self._gist.finished:
                raise Broken(FailureKind.PROTOCOL, "[DONE] came before a finish reason")
            if self._streaming:
                self._show(event.whole, head)
            self._complete(head)
            return True
        try:
            payload: Any = loads(data)
        except ValueError:
            raise Broken(FailureKind.PROTOCOL, "an event is not JSON") from None
        if payload.__class__ is not dict:
            raise Broken(FailureKind.PROTOCOL, "an event is not an object")
        if payload.get("error"):
            raise in_band(payload, self._incoming.model)
        gist = self._gist
        gist.take(payload, len(data))
        if self._streaming:
            shown = self._shown(event, payload)
            if shown is not None:
                self._show(shown, head)
        due = self._report_at
        if gist.pieces >= due or gist.usage is not None or gist.chars >= due * CHARS_PER_TOKEN:
            self._report(gist.tokens)
        return False

    def _report(self, tokens: int) -> None:
        if tokens >= self._report_at:
            self._report_at = tokens + PROGRESS_TOKENS
            self._sink.progressed(tokens, self._connect_s)

    def _show(self, shown: bytes, head: Head) -> None:
        if not self._sink.delivered:
            self._sink.begin(head)
        self._sink.put(shown)

    def _shown(self, event: ServerEvent, payload: dict[str, Any]) -> bytes | None:
        """Return the event as the caller shall see it: without the usage that we asked for, under the name it used."""
        whole = event.whole
        if self._outgoing.hide_usage and "usage" in payload:
            if payload["usage"] is not None and not payload.get("choices"):
                return None
            usage, whole = payload.pop("usage"), whole.replace(_NO_USAGE, b"")
            if usage is not None or len(whole) != len(event.whole) - len(_NO_USAGE):
                whole = encode(dumps(payload))
        return encode(dumps(payload)) if self._renamed(payload) else whole

    def _complete(self, head: Head) -> None:
        if not self._streaming:
            whole = self._gist.whole()
            self._renamed(whole)
            self._sink.begin(head.replaced(b"content-type", b"application/json"))
            self._sink.put(dumps(whole))
        self._sink.finished(self._gist.counted())

    def _renamed(self, payload: dict[str, Any]) -> bool:
        """Put the app's name of the model where the backend's stands; return whether it changed anything."""
        model = self._outgoing.model_back
        if model is None or payload.get("model", model) == model:
            return False
        payload["model"] = model
        return True

    # -- anything else --------------------------------------------------------------------------------

    async def _pass_through(self, head: Head, chunks: AsyncIterator[bytes]) -> None:
        """Hand on bytes that are not understood."""
        self._sink.begin(head)
        while (chunk := await self._next(chunks)) is not None:
            self._sink.put(chunk)
            if self._sink.full:
                await self._sink.room()
        self._sink.finished(Usage())

    def _hand_over(self, head: Head, content: bytes | None) -> None:
        """Hand over an answer that came whole, its bytes as they are where the model's name may stay."""
        if content is None:
            raise Broken(FailureKind.PROTOCOL, f"an answer of more than {MAX_WHOLE_BYTES} bytes")
        whole = _answer(content)
        if whole.get("error") and not whole.get("choices"):
            raise in_band(whole, self._incoming.model)
        if self._incoming.stream:
            raise Broken(FailureKind.PROTOCOL, "a whole answer came where a stream was asked for")
        if not isinstance(whole.get("choices"), list):
            raise Broken(FailureKind.PROTOCOL, "the answer has no choices")
        self._gist.take({"usage": whole.get("usage")}, 0)
        self._sink.begin(head)
        self._sink.put(dumps(whole) if self._renamed(whole) else content)
        self._sink.finished(self._gist.counted())


def _answer(content: bytes) -> dict[str, Any]:
    try:
        found: Any = loads(content)
    except ValueError:
        raise Broken(FailureKind.PROTOCOL, "the answer is not JSON") from None
    if not isinstance(found, dict):
        raise Broken(FailureKind.PROTOCOL, "the answer is not an object")
    return found  # pyright: ignore[reportUnknownVariableType]


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of the connection's turn, so that it can be used again; not for long."""
    await asyncio.sleep(0)  # the caller goes first
    with suppress(Exception):  # the answer is complete: nothing that happens to the connection now matters
        async with asyncio.timeout(DRAIN_S):
            async for _ in chunks:
                pass


async def _close(what: Any) -> None:
    """Close a response, or an iterator that can be closed: one that is only dropped closes in its own time."""
    with suppress(Exception):
        await what.aclose()
