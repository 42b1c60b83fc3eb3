"""One attempt over the wire: send a request, follow the answer, say how it ended.

Everything foreign ends here: transport exceptions, HTTP statuses, errors inside a stream all become a
`Failure`. What comes of a failure is not decided here.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, Protocol, cast

from jiter import from_json

from agentsched.errors import AgentschedError
from agentsched.model import Failure, FailureKind, Usage
from agentsched.transport.gist import AnswerTooLong, Gist
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.outgoing import Outgoing
from agentsched.transport.sse import Decoder, EventTooLong, ServerEvent, encode
from agentsched.transport.stack import Stack

PROGRESS_TOKENS = 200
"""Output tokens between two reports of progress."""

MAX_WHOLE_BYTES = 64 * 2**20
"""Bound on an answer that is held whole."""

MAX_ERROR_BYTES = 2**20

DRAIN_S = 0.1
"""How long a connection may take to end after the terminal event before it is closed instead of kept."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers of an answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]


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

    async def room(self) -> None:
        """Wait while the reader is too far behind."""
        ...

    def progressed(self, tokens: int, connect_s: float) -> None:
        """Output tokens so far; 0 once the backend has answered at all."""
        ...

    def finished(self, usage: Usage) -> None:
        """The backend is done. Bytes put before are the whole answer."""
        ...


@dataclass(frozen=True, slots=True)
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
        model_back: the name to put into the answer where the backend's name for the model stands.
    """

    def __init__(
        self, stack: Stack, transport: Any, incoming: Incoming, outgoing: Outgoing, model_back: str | None
    ) -> None:
        self._stack = stack
        self._transport = transport
        self._incoming = incoming
        self._outgoing = outgoing
        self._model_back = model_back
        self._connect_s = 0.0
        self._reported = -1
        self._gist = Gist(incoming.kind)

    async def run(self, sink: Sink) -> Ended | None:
        """Send, follow, and return how it failed; None if it did not."""
        try:
            return await self._run(sink)
        except AgentschedError:
            raise
        except (EventTooLong, AnswerTooLong) as error:
            return self._broken(sink, FailureKind.PROTOCOL, str(error))
        except Exception as error:
            return self._broken(sink, _kind_of(self._stack, error), f"{type(error).__name__}: {error}")

    async def _run(self, sink: Sink) -> Ended | None:
        response = await self._transport.handle_async_request(self._request())
        try:
            head = Head(response.status_code, response.headers.raw)
            if head.status >= 400:
                return await self._refused(head, response)
            sink.progressed(0, self._connect_s)
            if self._outgoing.streamed and _is_event_stream(head):
                return await self._follow(head, response, sink)
            return await self._pass_through(head, response, sink)
        finally:
            await response.aclose()

    def _request(self) -> Any:
        outgoing = self._outgoing
        extensions = {"timeout": {**self._incoming.timeout, "pool": None}, "trace": self._trace()}
        return self._stack.Request(
            outgoing.method,
            _url(self._stack, outgoing.url),
            headers=outgoing.headers,
            content=outgoing.content,
            extensions=extensions,
        )

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

    async def _follow(self, head: Head, response: Any, sink: Sink) -> Ended | None:
        """Follow an event stream; to a caller who asked for one as it comes, to others as one answer."""
        decoder = Decoder()
        streaming = self._incoming.stream
        chunks = aiter(response.stream)
        async for chunk in chunks:
            for event in decoder.feed(chunk):
                over = self._event(event, head, sink, streaming=streaming)
                if over is not None:
                    if over.failed is None:
                        await _drain(chunks)
                    return over.failed
            await sink.room()
        for event in decoder.flush():
            over = self._event(event, head, sink, streaming=streaming)
            if over is not None:
                return over.failed
        if not self._gist.finished:
            return self._broken(sink, FailureKind.PROTOCOL, "the stream ended before the answer did")
        self._complete(head, sink, streaming=streaming)
        return None

    def _event(self, event: ServerEvent, head: Head, sink: Sink, *, streaming: bool) -> "_Over | None":
        """Take one event; return how the attempt ended if it did."""
        if event.data is None:
            return None
        if event.data == b"[DONE]":
            if not self._gist.finished:
                return _Over(self._broken(sink, FailureKind.PROTOCOL, "[DONE] came before a finish reason"))
            if streaming:
                self._begin(head, sink)
                sink.put(event.raw)
            self._complete(head, sink, streaming=streaming)
            return _Over(None)
        try:
            payload: Any = from_json(event.data)
        except ValueError:
            return _Over(self._broken(sink, FailureKind.PROTOCOL, "an event is not JSON"))
        if not isinstance(payload, dict):
            return _Over(self._broken(sink, FailureKind.PROTOCOL, "an event is not an object"))
        payload = cast("dict[str, Any]", payload)
        if payload.get("error") is not None:
            return _Over(self._in_band(payload, sink))
        self._gist.take(payload)
        if streaming:
            shown = self._shown(event, payload)
            if shown is not None:
                self._begin(head, sink)
                sink.put(shown)
        tokens = self._gist.tokens
        if tokens and (self._reported <= 0 or tokens >= self._reported + PROGRESS_TOKENS):
            self._reported = tokens
            sink.progressed(tokens, self._connect_s)
        return None

    def _begin(self, head: Head, sink: Sink) -> None:
        if not sink.delivered:
            sink.begin(head)

    def _shown(self, event: ServerEvent, payload: dict[str, Any]) -> bytes | None:
        """Return the event as the caller shall see it: without what we asked for, under the name it used."""
        changed = False
        if self._outgoing.hide_usage and "usage" in payload:
            if not payload.get("choices"):
                return None
            del payload["usage"]
            changed = True
        if self._model_back is not None and payload.get("model", self._model_back) != self._model_back:
            payload["model"] = self._model_back
            changed = True
        return encode(_dumps(payload)) if changed else event.raw

    def _complete(self, head: Head, sink: Sink, *, streaming: bool) -> None:
        if not streaming:
            whole = self._gist.whole()
            if self._model_back is not None and "model" in whole:
                whole["model"] = self._model_back
            sink.begin(Head(head.status, [*_without_type(head), (b"content-type", b"application/json")]))
            sink.put(_dumps(whole))
        sink.finished(self._gist.counted())

    # -- anything else --------------------------------------------------------------------------------

    async def _pass_through(self, head: Head, response: Any, sink: Sink) -> Ended | None:
        """Hand an answer on as it is; only the model's name is mapped back, in answers of known shape."""
        if self._incoming.kind is Kind.OPAQUE:
            sink.begin(head)
            async for chunk in response.stream:
                sink.put(chunk)
                await sink.room()
            sink.finished(Usage())
            return None
        content = await _read(response, MAX_WHOLE_BYTES)
        if content is None:
            return self._broken(sink, FailureKind.PROTOCOL, f"an answer of more than {MAX_WHOLE_BYTES} bytes")
        try:
            whole: Any = from_json(content)
        except ValueError:
            return self._broken(sink, FailureKind.PROTOCOL, "the answer is not JSON")
        if not isinstance(whole, dict):
            return self._broken(sink, FailureKind.PROTOCOL, "the answer is not an object")
        whole = cast("dict[str, Any]", whole)
        if self._model_back is not None and whole.get("model", self._model_back) != self._model_back:
            content = _dumps({**whole, "model": self._model_back})
        self._gist.take({"usage": whole.get("usage")})
        sink.begin(head)
        sink.put(content)
        sink.finished(self._gist.counted())
        return None

    # -- failures -------------------------------------------------------------------------------------

    async def _refused(self, head: Head, response: Any) -> Ended:
        content = await _read(response, MAX_ERROR_BYTES) or b""
        detail = f"HTTP {head.status}: {_message(content)}"
        kind = _kind_of_status(head.status, content, self._incoming.model)
        failure = Failure(kind=kind, status=head.status, retry_after_s=_retry_after(head), detail=detail)
        return Ended(failure, (head, content))

    def _in_band(self, payload: dict[str, Any], sink: Sink) -> Ended:
        """An error event inside a 200 stream, as vLLM sends when its queue is full."""
        error: Any = payload["error"]
        code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        content = _dumps(payload)
        kind = _kind_of_status(status, content, self._incoming.model)
        detail = f"error {status} in the stream: {_message(content)}"
        failure = Failure(kind=kind, status=status, delivered=sink.delivered, detail=detail)
        head = Head(status, [(b"content-type", b"application/json")])
        return Ended(failure, (head, content), self._gist.text)

    def _broken(self, sink: Sink, kind: FailureKind, detail: str) -> Ended:
        failure = Failure(kind=kind, delivered=sink.delivered, detail=detail[:500])
        return Ended(failure, partial_text=self._gist.text)


@lru_cache(maxsize=1024)
def _url(stack: Stack, url: str) -> Any:
    """Parse a URL; there are as many as backends times paths."""
    return stack.URL(url)


@dataclass(frozen=True, slots=True)
class _Over:
    failed: Ended | None


def _dumps(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of the connection's turn, so that it can be used again; not for long."""
    try:
        async with asyncio.timeout(DRAIN_S):
            async for _ in chunks:
                pass
    except TimeoutError:
        pass


def _is_event_stream(head: Head) -> bool:
    return any(n.lower() == b"content-type" and b"event-stream" in v.lower() for n, v in head.headers)


def _without_type(head: Head) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in head.headers if name.lower() != b"content-type"]


async def _read(response: Any, limit: int) -> bytes | None:
    """Read a body; None if it is larger than `limit`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.stream:
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            return None
    return b"".join(chunks)


def _kind_of(stack: Stack, error: Exception) -> FailureKind:
    if isinstance(error, (stack.ConnectError, stack.ConnectTimeout, stack.PoolTimeout)):
        return FailureKind.REFUSED
    if isinstance(error, stack.UnsupportedProtocol):
        return FailureKind.REFUSED
    if isinstance(error, stack.TimeoutException):
        return FailureKind.TIMEOUT
    return FailureKind.BROKEN


def _kind_of_status(status: int, content: bytes, model: str | None) -> FailureKind:
    if status in (429, 503):
        return FailureKind.OVERLOADED
    if status in (401, 403):
        return FailureKind.DENIED
    if status == 404:
        named = model is not None and (b"model" in content or model.encode() in content)
        return FailureKind.UNKNOWN_MODEL if named else FailureKind.ERROR
    if status == 408:
        return FailureKind.TIMEOUT
    return FailureKind.ERROR if status >= 500 or status in (405, 425) else FailureKind.INVALID


def _retry_after(head: Head) -> float | None:
    for name, value in head.headers:
        if name.lower() == b"retry-after":
            try:
                return max(0.0, float(value))
            except ValueError:
                return None
    return None


def _message(content: bytes) -> str:
    """Return the error message of an answer, short."""
    try:
        found: Any = from_json(content)
        error: Any = found.get("error", found)
        message: Any = (
            cast("dict[str, Any]", error).get("message", error) if isinstance(error, dict) else error
        )
    except (ValueError, AttributeError):
        message = content.decode("utf-8", "replace")
    return str(message)[:300]
