"""An HTTP answer on its way out, and what a fault makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from agentsched.testing import wire
from agentsched.testing.faults import (
    Cut,
    CutShort,
    EarlyEnd,
    ErrorEvent,
    Fault,
    Garbage,
    Reset,
    SlowStart,
    Stall,
)

Pieces = AsyncGenerator[bytes, None]


def _nothing() -> None:
    return None


@dataclass(slots=True, kw_only=True)
class Answer:
    """Hold status, headers and body: bytes, or pieces with the times at which they come.

    Whoever takes the answer calls `close` in the end, read or unread; it may be called again.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | Pieces = b""
    close: Callable[[], None] = _nothing


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer with a JSON body."""
    return Answer(status=status, headers={**wire.JSON_TYPE, **(headers or {})}, body=wire.dump(value))


async def in_halves(body: bytes) -> Pieces:
    """Yield a body in two pieces, so that something can happen between them."""
    yield body[: len(body) // 2]
    yield body[len(body) // 2 :]


async def disturb(
    pieces: Pieces, fault: Fault, sleep: Callable[[float], Awaitable[None]], *, stream: bool
) -> Pieces:
    """Yield the pieces of an answer as a fault lets them through."""
    sent = 0
    after: int = getattr(fault, "after_events", 0)
    if not stream:
        after = min(after, 1)
    async with aclosing(pieces):
        if isinstance(fault, SlowStart):
            await sleep(fault.delay_s)
        async for piece in pieces:
            if sent == after:
                await _break_off(fault, sleep, stream=stream)
                match fault:
                    case EarlyEnd():
                        return
                    case ErrorEvent(code=code, message=message):
                        yield wire.event(wire.error(code, message))
                        yield wire.DONE
                        return
                    case Garbage():
                        yield b'data: {"id": "broken\n\n'
                    case _:
                        pass
            sent += 1
            yield piece


async def _break_off(fault: Fault, sleep: Callable[[float], Awaitable[None]], *, stream: bool) -> None:
    """Wait or raise, where that is what the fault does."""
    match fault:
        case Stall(for_s=None):
            await asyncio.Event().wait()
        case Stall(for_s=seconds):
            await sleep(seconds or 0.0)
        case Cut(reset=True):
            raise Reset("connection reset by the fake backend")
        case Cut():
            raise CutShort("connection closed by the fake backend")
        case EarlyEnd() if not stream:
            raise CutShort("the fake backend sent less than it had announced")
        case _:
            pass
