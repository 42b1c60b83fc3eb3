"""One generation at a fake backend: calls in its model on one side, events or a whole answer on the other."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentsched.sim.calls import Call, Refusal
from agentsched.sim.kv import chain_blocks
from agentsched.testing import wire
from agentsched.testing.answer import Answer, disturb, in_halves
from agentsched.testing.asked import Asked
from agentsched.testing.faults import Cut, EarlyEnd, ErrorEvent, Fault, Garbage, SlowStart, Stall
from agentsched.testing.live import Bell, Feed, LiveModel
from agentsched.testing.received import Received
from agentsched.testing.responder import ErrorReply, Reply, cut
from agentsched.testing.responses import ResponseShape
from agentsched.testing.tokens import CELL, Spelling, count, to_ids


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


@dataclass(slots=True, kw_only=True)
class _Part:
    """Hold one choice: what it will say, how much of it is known to be generated, how much was sent."""

    index: int
    spelling: Spelling
    reason: str
    tool_calls: tuple[tuple[str, str], ...]
    feed: Feed
    sent: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=_decoder)


class Generation:
    """Answer one request; `close` may be called at any time and ends what still runs."""

    def __init__(
        self,
        *,
        live: LiveModel,
        asked: Asked,
        row: Received,
        shape: wire.Shape | ResponseShape,
        timed: bool = False,
    ) -> None:
        self._live = live
        self._asked = asked
        self._row = row
        self._shape = shape
        self._timed = timed
        self.ended: Callable[[list[str]], None] | None = None
        self._bell = Bell()
        self._parts: list[_Part] = []
        row.prompt_tokens = count(asked.cells)

    def start(self, replies: list[Reply], *, block_tokens: int, event_tokens: int) -> Refusal | None:
        """Hand the calls to the engine; if it refuses one, none is made."""
        asked, width = self._asked, block_tokens * CELL
        blocks = chain_blocks(asked.cells, width=width, seed=asked.salt)
        tail = asked.cells[len(blocks) * width :]
        for index, reply in enumerate(replies):
            spelling, reason = cut(reply, limit=asked.limit, least=asked.least, stops=asked.stops)
            seed = blocks[-1] if blocks else asked.salt
            call = Call(
                call_id=f"{self._row.number}-{index}",
                prompt_tokens=count(asked.cells),
                output_tokens=spelling.tokens,
                priority=asked.priority,
                prompt_blocks=blocks,
                output_blocks=chain_blocks(tail + spelling.cells(), width=width, seed=seed),
                report_every=event_tokens if asked.stream else 0,
            )
            feed = self._live.submit(call, self._bell)
            if isinstance(feed, Refusal):
                self.close()
                return feed
            part = _Part(
                index=index, spelling=spelling, reason=reason, tool_calls=reply.tool_calls, feed=feed
            )
            self._parts.append(part)
        return None

    def close(self) -> None:
        """End the calls that still run."""
        for part in self._parts:
            self._live.abort(part.feed)

    async def answer(self, fault: Fault | None, close: Callable[[], None]) -> Answer:
        """Return the answer, disturbed by a fault if any: at once for a stream, at its end otherwise."""
        sleep = self._live.sleep
        if self._asked.stream:
            pieces = self.events()
            if fault is not None:
                pieces = disturb(pieces, fault, sleep, stream=True)
            return Answer(headers=wire.EVENTS_TYPE, body=pieces, close=close)
        if isinstance(fault, SlowStart):
            await sleep(fault.delay_s)
        body = await self.whole()
        match fault:
            case ErrorEvent(code=code, message=message):
                raise ErrorReply(code, message)
            case Garbage():
                return Answer(headers=wire.JSON_TYPE, body=b"<html>not JSON</html>", close=close)
            case Stall() | Cut() | EarlyEnd():
                headers = {**wire.JSON_TYPE, "content-length": str(len(body))}
                pieces = disturb(in_halves(body), fault, sleep, stream=False)
                return Answer(headers=headers, body=pieces, close=close)
            case _:
                return Answer(headers=wire.JSON_TYPE, body=body, close=close)

    async def whole(self) -> bytes:
        """Wait for the end and return the answer."""
        while not all(part.feed.ended for part in self._parts):
            await self._bell.heard()
        choices = [
            self._shape.choice(
                part.index,
                self._asked.repeated
                + part.spelling.piece(0, part.spelling.tokens).decode("utf-8", "replace"),
                part.reason,
                part.tool_calls,
                self._token_ids(part, 0, part.spelling.tokens),
            )
            for part in self._parts
        ]
        for part in self._parts:
            self._note_tokens(part)
            part.sent = part.feed.tokens
        self._finish()
        return self._shape.whole(choices, self._usage(), self._prompt_ids() | self._timings())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield the answer as server-sent events while it is generated."""
        while not all(part.feed.ended and part.sent == part.feed.tokens for part in self._parts):
            await self._bell.heard()
            for part in self._parts:
                for piece in self._news(part):
                    yield piece
        *late, last = self._shape.closing(
            self._usage(), wanted=self._asked.include_usage, extra=self._timings()
        )
        for piece in late:
            yield piece
        self._finish()
        yield last

    def _news(self, part: _Part) -> Iterator[bytes]:
        """Yield the events for what a choice has gained since it was last looked at."""
        tokens, ended, sent = part.feed.tokens, part.feed.ended, part.sent
        if tokens == sent:
            return
        self._note_tokens(part)
        part.sent = tokens
        if not sent and (opening := self._shape.opening(part.index, self._prompt_ids())) is not None:
            yield opening
        extra = self._token_ids(part, sent, tokens)
        if not sent and self._shape.kind == "completion":
            extra |= self._prompt_ids()
        yield self._shape.chunk(
            part.index,
            part.decoder.decode(part.spelling.piece(sent, tokens), final=ended),
            reason=part.reason if ended else None,
            calls=part.tool_calls if ended else (),
            extra=extra,
            counts=self._usage() if self._asked.continuous_usage else None,
        )

    def _note_tokens(self, part: _Part) -> None:
        row = self._row
        row.output_tokens += part.feed.tokens - part.sent
        row.cached_tokens = max(row.cached_tokens, part.feed.cached)
        if row.first_token_at is None:
            row.first_token_at = part.feed.first_at

    def _finish(self) -> None:
        for part in self._parts:
            self._live.note_end(part.feed)
        if self.ended is not None:
            self.ended([part.reason for part in self._parts])

    def _usage(self) -> dict[str, Any]:
        output = sum(part.sent for part in self._parts)
        counts = wire.usage(self._row.prompt_tokens, output, self._row.cached_tokens)
        if self._timed:
            del counts["prompt_tokens_details"]
        return counts

    def _timings(self) -> dict[str, Any]:
        """Return the times of the first choice, as a server with one call a slot tells them."""
        if not self._timed:
            return {}
        part, row = self._parts[0], self._row
        read_s, wrote_s = part.feed.first_at - part.feed.admitted_at, part.feed.ended_at - part.feed.first_at
        return {
            "timings": wire.timings(
                row.prompt_tokens, row.cached_tokens, part.sent, read_s=read_s, wrote_s=wrote_s
            )
        }

    def _prompt_ids(self) -> dict[str, Any]:
        if self._asked.token_ids:
            return {"prompt_token_ids": to_ids(self._asked.cells)}
        return {"prompt_token_ids": None} if self._shape.fingerprint is not None else {}

    def _token_ids(self, part: _Part, start: int, stop: int) -> dict[str, Any]:
        if not self._asked.token_ids:
            return {"token_ids": None} if self._shape.fingerprint is not None else {}
        return {"token_ids": to_ids(part.spelling.cells()[start * CELL : stop * CELL])}
