"""A streamed answer on its way: to a caller who asked for a stream as it comes, to others as one object."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, cast

from agentsched.model import FailureKind
from agentsched.transport.gist import ChoicesGist, Gist
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.marks import CHARS_PER_TOKEN
from agentsched.transport.outgoing import Outgoing, renamed
from agentsched.transport.partial import Partial, Way, extendable
from agentsched.transport.patience import Patience
from agentsched.transport.pieces import MAX_BYTES, AnswerTooLong
from agentsched.transport.refrain import Refrain
from agentsched.transport.refusal import Broken, failed, in_band, raised
from agentsched.transport.responsegist import ResponseGist
from agentsched.transport.rest import Rest
from agentsched.transport.sink import Sink
from agentsched.transport.sse import Decoder, EventTooLong, encode, name_of
from agentsched.transport.stack import Stack
from agentsched.transport.tokenids import TokenIds
from agentsched.transport.usage import counted

PROGRESS_TOKENS = 200
"""Output tokens between two reports of progress."""

DRAIN_S = 0.1
"""How long a connection may take to end after the terminal event before it is closed instead of kept."""

YIELD_CHUNKS = 256
"""Chunks after which the loop gets its turn even where all of them are there already."""

_NO_USAGE = b',"usage":null'


class EventStream:
    """The events of one attempt.

    Args:
        head: what came before them.
        connect_s: seconds that opening a connection took, for reports of progress.
        patience: is told what comes; None if nothing bounds the attempt.
        begun: what others had written of the answer, and the way in which this backend was asked for the rest.
    """

    def __init__(
        self,
        stack: Stack,
        incoming: Incoming,
        outgoing: Outgoing,
        sink: Sink,
        head: Head,
        *,
        connect_s: float = 0.0,
        patience: Patience | None = None,
        begun: tuple[Partial, Way] | None = None,
    ) -> None:
        self._stack = stack
        self._incoming = incoming
        self._model = incoming.model
        self._timeouts = incoming.timeout
        self._outgoing = outgoing
        self._sink = sink
        self._head = head
        self._connect_s = connect_s
        self._patience = patience
        self._streaming = incoming.stream
        self._decoder = Decoder()
        self._refrain = Refrain()
        self._bytes = 0
        self._begun = self._over = False
        self._rest = Rest(incoming.kind, *begun) if begun is not None else None
        self._latest: Mapping[str, Any] = {}
        self._first = begun[0].event if begun is not None else None
        self._ids = self._ids_of(begun)
        self._untouched = self._as_it_comes = self._rest is None and self._ids is None
        self.gist = begun[0].gist if begun is not None else _gist(incoming)
        self._before, self._said_before = self.gist.tokens, self.gist.said
        self._report_at = self._before + 1

    @property
    def partial(self) -> Partial | None:
        """What has come of the answer, if another backend may go on from there."""
        gist, first = self.gist, self._first
        if (
            first is None
            or not isinstance(gist, ChoicesGist)
            or not gist.plain
            or not extendable(self._incoming)
        ):
            return None
        ids = self._ids if self._ids is not None and self._ids.known else None
        return Partial(gist, first, gist.tokens if ids is None else len(ids.written), ids)

    def _ids_of(self, begun: tuple[Partial, Way] | None) -> TokenIds | None:
        """Return what takes the ids of tokens in; None if none come, or not those of what was before."""
        if not self._outgoing.hide_ids:
            return None
        if begun is None or begun[1] is Way.ANEW:
            return TokenIds(self._outgoing.served)
        if begun[0].ids is not None:
            begun[0].ids.go_on()
        return begun[0].ids

    async def follow(self, chunks: AsyncIterator[bytes]) -> None:
        """Follow the events to the end of the answer.

        Raises:
            Broken: if they end before it does, or are no answer.
            EventTooLong, AnswerTooLong: if they go beyond all bounds.
        """
        try:
            over = await self._events(chunks)
        except (Broken, EventTooLong):
            if self._over or not self.gist.settled:
                raise
            over = False  # what cannot be read after the finish reason would not have been the answer
            self._decoder = Decoder()
        if over:
            await _drain(chunks)
        else:
            self.end()

    def end(self) -> None:
        """Take what has come as the whole answer.

        Raises:
            Broken: if it is not.
        """
        if self._over or any(self._last(*event) for event in self._decoder.flush()):
            return
        if not self.gist.done:
            raise Broken(FailureKind.PROTOCOL, "the stream ended before the answer did")
        self._complete()

    def _last(self, whole: bytes, data: bytes | None) -> bool:
        """Take an event that the stream's end may have cut off."""
        try:
            return self._event(whole, data)
        except Broken:
            if self._over or not self.gist.settled:
                raise
            return False

    async def _events(self, chunks: AsyncIterator[bytes]) -> bool:
        """Take events until the bytes end or the last one has come; return whether it has."""
        gist, turn, ended_at = self.gist, 0, -1
        while True:
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                return False
            except Exception as error:
                raise raised(self._stack, error, self._timeouts) from error
            if self._chunk(chunk):
                return True
            if self._streaming and self._sink.full:
                await self._room()
                ended_at = -1
            if gist.settled and gist.said != ended_at:
                ended_at = gist.said  # what follows and says nothing more does not put the end off
                self._sink.ending()
            turn += 1
            if turn % YIELD_CHUNKS == 0:
                await asyncio.sleep(0)

    def _chunk(self, chunk: bytes) -> bool:
        """Take the events that end in a chunk; return whether the last one is among them."""
        gist, refrain, patience = self.gist, self._refrain, self._patience
        self._bytes += len(chunk)
        if self._bytes > MAX_BYTES:
            raise AnswerTooLong(f"an answer of more than {MAX_BYTES} bytes")
        piece = refrain.piece(chunk)
        if piece is not None:
            gist.add(piece)
            if self._streaming:
                self._show(chunk)
            if gist.pieces >= self._report_at or gist.chars >= self._report_at * CHARS_PER_TOKEN:
                self._report()
            if patience is not None:
                patience.heard(said=gist.said > self._said_before)
            return False
        for whole, data in self._decoder.feed(chunk):
            if self._event(whole, data):
                return True
            if patience is not None and data:
                patience.heard(said=gist.said > self._said_before)
            if whole is chunk and gist.piece is not None and self._untouched:
                refrain.learn(chunk, gist.piece)
        if gist.piece is None or not self._decoder.idle:
            refrain.forget()
        return False

    async def _room(self) -> None:
        if self._patience is None:
            await self._sink.room()
            return
        self._patience.pause()
        await self._sink.room()
        self._patience.resume()

    def _event(self, whole: bytes, data: bytes | None) -> bool:
        """Take one event; return whether it was the last."""
        if not data:
            return False
        if data.startswith(b"[DONE]"):
            if not self.gist.ended:
                raise Broken(FailureKind.PROTOCOL, "[DONE] came before a finish reason")
            if self._streaming:
                self._show(whole)
            self._complete()
            return True
        try:
            payload: Any = loads(data)
        except ValueError:
            raise Broken(FailureKind.PROTOCOL, "an event is not JSON") from None
        if payload is None:
            return False  # llama.cpp begins so where there are several prompts
        if payload.__class__ is not dict:
            raise Broken(FailureKind.PROTOCOL, "an event is not an object")
        if payload.get("error") or payload.get("type") == "error":
            raise in_band(payload, self._model)
        self._latest = payload if self._rest is None else {**payload}
        if self._first is None:
            self._first = {**payload}
            renamed(self._first, self._outgoing.model_back)
        if self._ids is not None:
            self._ids.take_out(payload)
        if self._rest is not None and not self._rest.event(payload):
            return False
        if self._rest is not None or self._ids is not None:
            whole = encode(dumps(payload))
        return self._take(whole, payload)

    def _take(self, whole: bytes, payload: dict[str, Any]) -> bool:
        last = self.gist.take(payload)
        if self._streaming:
            shown = self._shown(whole, payload)
            self._untouched = shown is whole and self._as_it_comes
            if shown is not None:
                self._show(shown)
        self._report()
        if last:
            self._complete()
        return last

    def _report(self) -> None:
        gist, due = self.gist, self._report_at
        if gist.pieces < due and gist.chars < due * CHARS_PER_TOKEN and gist.usage is None:
            return
        tokens = gist.tokens
        if tokens >= due:
            self._report_at = tokens + PROGRESS_TOKENS
            self._sink.progressed(tokens - self._before, self._connect_s)

    def _show(self, shown: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._sink.begin(self._head)
        self._sink.put(shown)

    def _shown(self, whole: bytes, payload: dict[str, Any]) -> bytes | None:
        """Return the event as the caller shall see it: without the usage that we asked for, under the name it used."""
        if self._outgoing.hide_usage and "usage" in payload:
            if payload["usage"] is None:
                del payload["usage"]
                shorter = whole.replace(_NO_USAGE, b"")
                whole = shorter if len(shorter) == len(whole) - len(_NO_USAGE) else encode(dumps(payload))
            elif not payload.get("choices"):
                return None  # beside choices it comes without being asked for
        model = self._outgoing.model_back
        if model is None:
            return whole
        response: Any = payload.get("response")
        inside = isinstance(response, dict) and renamed(cast("dict[str, Any]", response), model)
        return encode(dumps(payload), name_of(whole)) if renamed(payload, model) or inside else whole

    def _complete(self) -> None:
        self._over = True
        if not self._streaming:
            whole = self.gist.whole()
            renamed(whole, (self._first or {}).get("model") if self._rest else self._outgoing.model_back)
            head = self._head.replaced(b"content-type", b"application/json")
            content = dumps(whole)
            if whole.get("status") == "failed":
                raise failed(head, whole, content)
            self._sink.begin(head, whole if self._rest is None else self._latest)
            self._sink.put(content)
        else:
            self._sink.tells(self._latest)
        if self._rest is None:
            self._sink.finished(self.gist.counted())
        else:
            usage = counted(self._rest.usage, max(self.gist.tokens - self._before, 0))
            self._sink.finished(usage, kept_tokens=self._rest.kept)


def _gist(incoming: Incoming) -> Gist:
    if incoming.kind is Kind.RESPONSE:
        return ResponseGist()
    return ChoicesGist(
        incoming.kind, wanted=incoming.answers, several=incoming.several, whole=not incoming.stream
    )


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read to the end of the connection's turn, so that it can be used again; not for long."""
    await asyncio.sleep(0)  # the caller goes first
    with suppress(Exception):  # the answer is complete: nothing that happens to the connection now matters
        async with asyncio.timeout(DRAIN_S):
            async for _ in chunks:
                pass
