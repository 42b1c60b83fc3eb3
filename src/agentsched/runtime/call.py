"""A call between its caller and its attempts, on the caller's event loop."""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context

from agentsched.engine.commands import Resolve
from agentsched.model import Outcome
from agentsched.runtime.loops import LoopRow
from agentsched.runtime.spool import Spool
from agentsched.runtime.verdict import error_of
from agentsched.transport.exchange import Ended
from agentsched.transport.head import Head, Headers
from agentsched.transport.incoming import Incoming
from agentsched.transport.partial import Partial

_HOP_BY_HOP = frozenset(b"connection keep-alive transfer-encoding content-length upgrade trailer".split())


class Call:
    """What the caller waits for.

    Attributes:
        head: resolved with the answer's head, or with the error that ended the call before there was one.
        priority: the higher, the more urgent.
        last: how the latest attempt failed.
        partial: what has come of the answer, if another attempt may go on from there.
        running: whether an attempt is under way, or was when the call ended.
        sent: whether some failed attempt reached its backend.
        over: whether the engine has ended it: from then on nothing can be cancelled.
    """

    def __init__(self, request_id: str, incoming: Incoming, row: LoopRow, priority: int = 0) -> None:
        self.request_id = request_id
        self.incoming = incoming
        self.row = row
        self.priority = priority
        self.context = copy_context()
        self.spool = Spool()
        self.head: asyncio.Future[Head] = row.loop.create_future()
        self.last: Ended | None = None
        self.partial: Partial | None = None
        self.running = False
        self.sent = False
        self.over = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The caller's event loop."""
        return self.row.loop

    @property
    def delivered(self) -> bool:
        """Whether the caller may have seen a part of the answer."""
        return self.head.done()

    def begin(self, head: Head, backend: str) -> None:
        """Hand over the head of the answer."""
        if not self.head.done():
            self.head.set_result(Head(head.status, self._headers(head.headers, backend)))

    def resolve(self, verdict: Resolve, served: Callable[[], Sequence[str]]) -> None:
        """End it without an answer, as the engine decided: with the backend's own error answer, or an error."""
        refusal = self.last.refusal if self.last is not None and verdict.outcome is Outcome.FAILED else None
        if refusal is not None and not self.head.done():
            head, content = refusal
            self.begin(head, verdict.backend or "")
            self.spool.put(content)
            self.spool.close()
            return
        partial = self.last.partial_text if self.last is not None else ""
        error = error_of(
            verdict,
            self.incoming.model,
            served,
            partial_text=partial,
            running=self.running,
            sent=self.sent or self.running,
        )
        if self.head.done():
            self.spool.close(error)
        else:
            self.head.set_exception(error)
            self.head.exception()  # a caller that left does not fetch it, which is no reason for a warning

    def _headers(self, headers: Headers, backend: str) -> list[tuple[bytes, bytes]]:
        ours = [
            (b"x-request-id", self.request_id.encode("ascii")),
            (b"x-agentsched-backend", backend.encode("ascii")),
        ]
        kept: list[tuple[bytes, bytes]] = []
        for name, value in headers:
            lower = name.lower()
            if lower == b"x-request-id":
                kept.append((b"x-backend-request-id", value))
            elif lower not in _HOP_BY_HOP or (lower == b"content-length" and self.incoming.method == "HEAD"):
                kept.append((name, value))
        return [*kept, *ours]
