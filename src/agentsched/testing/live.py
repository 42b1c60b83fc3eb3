"""A backend model that lives in the time of the running event loops: calls go in, feeds come out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass

from agentsched.sim.backend import BackendModel
from agentsched.sim.calls import Call, CallId, Kind, Output, Refusal
from agentsched.sim.spec import BackendSpec

ANOTHER_CLOCK_S = 1e-6
"""Time by which the loop must be behind the model to be taken for another clock, and not for rounding."""


class Bell:
    """Wake the one task that waits for news of its feeds."""

    __slots__ = ("_rung", "_waiter", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Say that there is news; only on the bell's own loop."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def heard(self) -> None:
        """Wait until there is news since this was last awaited."""
        if not self._rung:
            self._waiter = self.loop.create_future()
            await self._waiter
        self._rung = False


class Feed:
    """Hold what a call has got so far; a plain mutable row."""

    __slots__ = (
        "admitted_at",
        "bell",
        "cached",
        "call_id",
        "ended",
        "ended_at",
        "first_at",
        "submitted_at",
        "tokens",
    )

    def __init__(self, call_id: CallId, bell: Bell, now: float) -> None:
        self.call_id = call_id
        self.bell = bell
        self.tokens = 0
        self.cached = 0
        self.ended = False
        self.submitted_at = now
        self.admitted_at = now
        self.first_at = now
        self.ended_at = now

    def take(self, output: Output) -> None:
        """Note an output; only on the bell's loop."""
        self.tokens = output.tokens
        self.cached = output.cached_tokens
        if output.kind is Kind.ADMITTED and not output.tokens:
            self.admitted_at = output.at
        if output.kind is Kind.FIRST_TOKEN:
            self.first_at = output.at
        if output.kind is Kind.FINISHED:
            self.ended = True
            self.ended_at = output.at
        if self.ended or output.kind in (Kind.FIRST_TOKEN, Kind.PROGRESS):
            self.bell.ring()


@dataclass(slots=True, kw_only=True)
class Lag:
    """Tell how far the ends of calls lagged behind the model, in wall seconds."""

    calls: int = 0
    late_s: float = 0.0
    worst_s: float = 0.0
    planned_s: float = 0.0

    def add(self, *, late_s: float, planned_s: float) -> None:
        """Count a call that ended `late_s` after its time."""
        self.calls += 1
        self.late_s += late_s
        self.worst_s = max(self.worst_s, late_s)
        self.planned_s += planned_s

    @property
    def share(self) -> float:
        """Return lateness by planned time, over all calls."""
        return self.late_s / self.planned_s if self.planned_s else 0.0


class LiveModel:
    """Advance one `BackendModel` by timers of whatever loops its callers run on.

    Model time is the loops' time, `scale` times as fast and counted from `start_at`, once that has been
    called. On a clock that is behind the model (a new virtual one, say) a model that
    nobody waits for goes on from where it is.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self.model = BackendModel(spec)
        self.lag = Lag()
        self.scale = 1.0
        self._origin = 0.0
        self._base = 0.0
        self._feeds: dict[CallId, Feed] = {}
        self._timers: dict[asyncio.AbstractEventLoop, tuple[float, asyncio.TimerHandle]] = {}
        self._lock = threading.RLock()

    def start_at(self, origin: float, *, scale: float) -> None:
        """Let the model go on from where it is at loop time `origin`, at `scale` model seconds per second."""
        self.scale = scale
        self._origin, self._base = origin, self.model.now

    def now(self) -> float:
        """Return the model time that corresponds to the running loop's time; it never goes backwards."""
        moment = self._base + (asyncio.get_running_loop().time() - self._origin) * self.scale
        if moment < self.model.now - ANOTHER_CLOCK_S and self._deserted():
            self.start_at(asyncio.get_running_loop().time(), scale=self.scale)
        return max(moment, self.model.now)

    def _deserted(self) -> bool:
        """Say whether nobody waits for the model any more: no calls, or those of loops that have ended."""
        return all(feed.bell.loop.is_closed() for feed in self._feeds.values())

    def loop_time(self, moment: float) -> float:
        """Return the loop time at which the model reaches `moment`."""
        return self._origin + (moment - self._base) / self.scale

    async def sleep(self, seconds: float) -> None:
        """Sleep for some model seconds."""
        await asyncio.sleep(seconds / self.scale)

    def submit(self, call: Call, bell: Bell) -> Feed | Refusal:
        """Hand in a call; `bell` rings when its feed has changed."""
        with self._lock:
            now = self.now()
            if (refusal := self.model.submit(now, call)) is not None:
                return refusal
            feed = self._feeds[call.call_id] = Feed(call.call_id, bell, now)
            self._advance(now, bell.loop)
            return feed

    def abort(self, feed: Feed) -> None:
        """End a call early; one that has ended stays as it is. The feed's loop may have stopped."""
        with self._lock:
            if self._feeds.pop(feed.call_id, None) is None:
                return
            try:
                now, loop = self.now(), asyncio.get_running_loop()
            except RuntimeError:  # no loop runs here: a stream is collected after its loop has ended
                now, loop = self.model.now, None
            self.model.abort(now, feed.call_id)
            self._advance(now, loop)

    def settle(self) -> None:
        """Bring the model up to the running loop's time, as reading its gauges needs."""
        with self._lock:
            self._advance(self.now(), asyncio.get_running_loop())

    def note_end(self, feed: Feed) -> None:
        """Count how late the end of a call has reached its reader."""
        late_s = asyncio.get_running_loop().time() - self.loop_time(feed.ended_at)
        planned_s = (feed.ended_at - feed.submitted_at) / self.scale
        self.lag.add(late_s=max(late_s, 0.0), planned_s=planned_s)

    def _advance(self, now: float, loop: asyncio.AbstractEventLoop | None) -> None:
        """Play the model up to `now` and hand out what happened; `loop` is the one that runs here."""
        for output in self.model.advance(now):
            feed = self._feeds.get(output.call_id)
            if feed is None:
                continue
            if output.kind is Kind.FINISHED:
                del self._feeds[output.call_id]
            if feed.bell.loop is loop:
                feed.take(output)
            else:
                with contextlib.suppress(RuntimeError):  # its loop was closed under it
                    feed.bell.loop.call_soon_threadsafe(feed.take, output)
        if loop is not None:
            self._set_timer(loop)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wake this loop when the model has news; other loops keep the timers they have."""
        due = self.model.next_at()
        known = self._timers.get(loop)
        if known is not None:
            if known[0] == due:
                return
            known[1].cancel()
            del self._timers[loop]
        if due is not None and not loop.is_closed():
            self._timers[loop] = (due, loop.call_at(self.loop_time(due), self._wake, loop, due))
        for other in [other for other in self._timers if other.is_closed()]:
            del self._timers[other]

    def _wake(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        with self._lock:
            self._timers.pop(loop, None)
            self._advance(max(self.now(), due), loop)
