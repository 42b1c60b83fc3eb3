"""One attempt over the wire: send a request, follow the answer, say how it ended.

Everything foreign ends here: transport exceptions, HTTP statuses, errors inside a stream all become a
`Failure`. What comes of a failure is not decided here.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import field
from time import perf_counter
from typing import Any, cast

from agentsched.model import Failure, FailureKind, Limits, Usage
from agentsched.model.value import record
from agentsched.transport.body import read_body
from agentsched.transport.eventstream import EventStream
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.metrics import told_load
from agentsched.transport.outgoing import Outgoing, renamed, without_priority
from agentsched.transport.partial import Partial, Way
from agentsched.transport.patience import Patience
from agentsched.transport.pieces import AnswerTooLong
from agentsched.transport.priority import may_refuse_priority
from agentsched.transport.redirect import MAX_REDIRECTS, REDIRECTS, redirected
from agentsched.transport.refusal import Broken, encoded, failed, in_band, raised, refused
from agentsched.transport.sink import Sink
from agentsched.transport.sse import EventTooLong
from agentsched.transport.stack import Stack
from agentsched.transport.usage import counted

MAX_WHOLE_BYTES = 64 * 2**20
"""Bound on an answer that is held whole."""

MAX_ERROR_BYTES = 2**20

MAX_DETAIL_CHARS = 300
"""What errors and logs repeat of a backend's own words."""

_HOLDS = {Kind.CHAT: "choices", Kind.COMPLETION: "choices", Kind.RESPONSE: "output", Kind.EMBEDDING: "data"}
"""The list without which an answer is none."""


@record
class Ended:
    """A failed attempt.

    Attributes:
        refusal: the backend's own error answer, if it gave one: head and body.
        partial_text: what had been generated.
        partial: the same, if another backend may go on from there.
    """

    failure: Failure
    refusal: tuple[Head, bytes] | None = None
    partial_text: str = ""
    partial: Partial | None = field(default=None, compare=False)


class Connecting:
    """Takes a transport's trace and counts the seconds it took to open connections."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self._started = 0.0

    async def __call__(self, event: str, _info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.started", "start_tls.started")):
            self._started = perf_counter()
        elif event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self.took_s += perf_counter() - self._started


class Exchange:
    """One attempt.

    Args:
        stack, transport: the HTTP stack and its async transport to the backends.
        sink: takes what comes.
        limits: how long it may take.
        begun: what other backends had written of the answer, and the way in which this one is asked for the rest.
    """

    def __init__(
        self,
        stack: Stack,
        transport: Any,
        incoming: Incoming,
        outgoing: Outgoing,
        sink: Sink,
        *,
        limits: Limits | None = None,
        begun: tuple[Partial, Way] | None = None,
    ) -> None:
        self._stack = stack
        self._transport = transport
        self._incoming = incoming
        self._outgoing = outgoing
        self._sink = sink
        self._limits = limits
        self._begun = begun
        self._connecting = Connecting()
        self._events: EventStream | None = None
        self._task: asyncio.Task[Any] | None = None
        self._breaking_off = False
        self._too_long: str | None = None
        self._patience: Patience | None = None
        self._refused_priority: str | None = None

    async def run(self) -> Ended | None:
        """Send, follow, and return how it failed; None if it did not."""
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        if self._limits:
            streamed = self._outgoing.streamed
            self._patience = Patience(self._limits, streamed=streamed, give_up=self._give_up)
        try:
            try:
                await self._try()
            except asyncio.CancelledError:
                if not self._breaking_off or self._task.uncancel() > 0:
                    raise  # somebody else's
                self._take_what_came()
        except Broken as broken:
            return self._ended(broken)
        except (EventTooLong, AnswerTooLong) as error:
            return self._ended(Broken(FailureKind.PROTOCOL, str(error)))
        except RecursionError:
            return self._ended(Broken(FailureKind.PROTOCOL, "an answer that is nested too deep"))
        finally:
            self._task = None
            if self._patience is not None:
                self._patience.close()
        return None

    def _take_what_came(self) -> None:
        """Take what has come as the answer, unless it took too long.

        Raises:
            Broken: if it did, or is no answer.
        """
        if self._too_long is not None:
            raise Broken(FailureKind.TIMEOUT, self._too_long) from None
        if self._events is not None:
            self._events.end()

    @property
    def partial_text(self) -> str:
        """What has been generated."""
        if self._events is not None:
            return self._events.gist.text
        return self._begun[0].text if self._begun is not None else ""

    @property
    def partial(self) -> Partial | None:
        """What has come of the answer, if another backend may go on from there."""
        if self._events is not None:
            return self._events.partial
        return self._begun[0] if self._begun is not None else None

    def stop(self) -> None:
        """Wait for no more: an answer that has its finish reason is complete without what may follow."""
        if self._events is not None and self._events.gist.settled:
            self._break_off()

    def _give_up(self, why: str) -> None:
        if self._events is None or not self._events.gist.settled:
            self._too_long = why
        self._break_off()

    def _break_off(self) -> None:
        if self._task is not None and not self._breaking_off:
            self._breaking_off = True
            self._task.cancel()

    def _ended(self, broken: Broken) -> Ended:
        partial = self.partial
        failure = Failure(
            kind=broken.kind,
            status=broken.refusal[0].status if broken.refusal is not None else None,
            retry_after_s=broken.retry_after_s,
            delivered=self._sink.delivered,
            kept_tokens=partial.tokens if partial is not None else None,
            detail=self._without_key(broken.detail)[:MAX_DETAIL_CHARS],
        )
        return Ended(failure, broken.refusal, self.partial_text, partial)

    def _without_key(self, detail: str) -> str:
        """Return what may be logged of a backend's words: some quote the key that they refuse."""
        return self._hidden(detail.encode("utf-8", "replace")).decode()

    def _hidden(self, content: bytes) -> bytes:
        key = self._outgoing.headers.get("authorization", "").removeprefix("Bearer ").encode()
        return content.replace(key, b"[key]") if key else content

    # -- the question ---------------------------------------------------------------------------------

    async def _try(self) -> None:
        redirects = 0
        while redirects <= MAX_REDIRECTS:
            try:
                response = await self._transport.handle_async_request(self._request())
            except Exception as error:  # whatever a transport raises before it has an answer, there is none
                raise raised(self._stack, error, self._incoming.timeout) from error
            head = Head(response.status_code, response.headers.raw)
            if response.is_stream_consumed:  # a client's hook has read it, and decoded it
                head, chunks = head.replaced(b"content-encoding"), _once(response.content)
            else:
                chunks = aiter(response.stream)
            try:
                if head.status not in REDIRECTS:
                    try:
                        await self._answer(head, chunks)
                        return
                    except Broken as broken:
                        if not self._without_priority(broken):
                            raise
                    continue
                redirects += 1
                self._outgoing = redirected(self._stack, self._outgoing, head)
                await self._read(chunks, MAX_ERROR_BYTES)
            finally:
                try:
                    await _close(chunks)
                finally:
                    await _close(response)
        raise Broken(FailureKind.PROTOCOL, f"more than {MAX_REDIRECTS} redirects")

    def _without_priority(self, broken: Broken) -> bool:
        """Go without the priority that was added, where that may be what was refused; return whether it may be."""
        unseen = self._events is None or not self._sink.delivered  # what others had said was seen anyway
        if not (self._outgoing.priority and unseen and may_refuse_priority(broken.refusal)):
            return False
        self._outgoing, self._events = without_priority(self._outgoing), None
        self._refused_priority = self._without_key(broken.detail)[:MAX_DETAIL_CHARS]
        return True

    def _request(self) -> Any:
        outgoing = self._outgoing
        extensions = {"timeout": {**self._incoming.timeout, "pool": None}, "trace": self._connecting}
        content = outgoing.content
        stream = self._stack.ByteStream(content)  # content= would normalise all headers a second time
        request = self._stack.Request(
            outgoing.method, outgoing.url, headers=outgoing.headers, stream=stream, extensions=extensions
        )
        if content or outgoing.method in ("POST", "PUT", "PATCH"):
            request.headers["content-length"] = str(len(content))
        request.read()
        return request

    # -- the answer -----------------------------------------------------------------------------------

    async def _answer(self, head: Head, chunks: AsyncIterator[bytes]) -> None:
        head, signals = told_load(head) if self._outgoing.asks_load else (head, None)
        if not 200 <= head.status < 300:
            if head.status < 400 and not self._incoming.kind.understood:
                await self._pass_through(head, chunks)
                return
            content = self._hidden(await self._read(chunks, MAX_ERROR_BYTES) or b"")
            raise refused(head, content, self._incoming.model, self._incoming.kind)
        if self._refused_priority is not None:
            self._sink.priority_refused(self._refused_priority)
        if self._connecting.took_s > 0:
            self._sink.progressed(0, self._connecting.took_s)
        if not self._incoming.kind.understood:
            await self._pass_through(head, chunks)
        elif encoded(head):
            raise Broken(FailureKind.PROTOCOL, "the answer came compressed, which was ruled out")
        elif self._outgoing.streamed and _may_be_events(head):
            if signals is not None:
                self._sink.signalled(signals)
            self._events = EventStream(
                self._stack,
                self._incoming,
                self._outgoing,
                self._sink,
                head,
                connect_s=self._connecting.took_s,
                patience=self._patience,
                begun=self._begun,
            )
            await self._events.follow(chunks)
        else:
            self._hand_over(head, await self._read(chunks, MAX_WHOLE_BYTES))
            if signals is not None:
                self._sink.signalled(signals)

    async def _read(self, chunks: AsyncIterator[bytes], limit: int) -> bytes | None:
        """Read a body; None if it is larger than `limit`."""
        try:
            return await read_body(chunks, limit)
        except Exception as error:
            raise raised(self._stack, error, self._incoming.timeout) from error

    async def _pass_through(self, head: Head, chunks: AsyncIterator[bytes]) -> None:
        """Hand on bytes that are not understood."""
        self._sink.begin(head)
        try:
            async for chunk in chunks:
                self._sink.put(chunk)
                if self._sink.full:
                    await self._sink.room()
        except Exception as error:
            raise raised(self._stack, error, self._incoming.timeout) from error
        self._sink.finished(Usage())

    def _hand_over(self, head: Head, content: bytes | None) -> None:
        """Hand over an answer that came whole, its bytes as they are where the model's name may stay."""
        if self._begun is not None:
            raise Broken(FailureKind.UNABLE, "a whole answer came where the rest of one was asked for")
        if content is None:
            raise Broken(FailureKind.PROTOCOL, f"an answer of more than {MAX_WHOLE_BYTES} bytes")
        whole = _object(content)
        holds = _HOLDS[self._incoming.kind]
        found = isinstance(whole.get(holds), list)
        if self._incoming.kind is Kind.RESPONSE and whole.get("status") == "failed":
            renamed(whole, self._outgoing.model_back)
            raise failed(head, whole, dumps(whole))
        if whole.get("error") and not (found and whole[holds]):
            raise in_band(whole, self._incoming.model)
        if self._incoming.stream:
            raise Broken(FailureKind.PROTOCOL, "a whole answer came where a stream was asked for")
        if not found:
            raise Broken(FailureKind.PROTOCOL, f"the answer has no {holds}")
        self._sink.begin(head, whole)
        self._sink.put(dumps(whole) if renamed(whole, self._outgoing.model_back) else content)
        self._sink.finished(counted(whole.get("usage"), timings=whole.get("timings")))


def _may_be_events(head: Head) -> bool:
    """Whether what comes may be events; some servers and proxies do not say so."""
    kind = head.get(b"content-type").lower()
    return (
        b"event-stream" in kind or kind.startswith((b"text/plain", b"application/octet-stream")) or not kind
    )


def _object(content: bytes) -> dict[str, Any]:
    try:
        found: Any = loads(content)
    except ValueError:
        raise Broken(FailureKind.PROTOCOL, "the answer is not JSON") from None
    if not isinstance(found, dict):
        raise Broken(FailureKind.PROTOCOL, "the answer is not an object")
    return found  # pyright: ignore[reportUnknownVariableType]


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _close(what: Any) -> None:
    """Close a response, or an iterator that can be closed: one that is only dropped closes in its own time."""
    with suppress(Exception):
        await what.aclose()
