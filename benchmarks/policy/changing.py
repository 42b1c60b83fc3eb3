"""A fleet to one backend of which something happens while it is played, and who knows of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentsched.sim.player import CallRow, Watch
from agentsched.sim.report import mean, quantile
from benchmarks.policy.changes.draining import DRAINS
from benchmarks.policy.changes.joining import JOINS
from benchmarks.policy.changes.scene import Prepare, Scene
from benchmarks.policy.changes.slowing import SLOWS
from benchmarks.policy.play import Feed
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.traffic import arrivals

FIRST, LAST = 100, 1000
"""Of the calls made since the change, in order, those that count are from here up to, not including, there."""

CHANGES: Mapping[str, Mapping[str, Prepare]] = {"slows": SLOWS, "joins": JOINS, "drains": DRAINS}
"""What may happen, and what makes the player of it, by who knows what."""


class Since(Watch):
    """Keeps the calls made from a point in time on, and says when those that count are over."""

    def __init__(self, at: float) -> None:
        self.calls: list[CallRow] = []
        self.over: Callable[[], None] = lambda: None
        self._at = at
        self._open: set[str] = set()

    def calling(self, request_id: str, call: CallRow) -> None:
        if call.submitted_at >= self._at and len(self.calls) < LAST:
            self.calls.append(call)
            self._open.add(request_id)

    def ended(self, request_id: str, call: CallRow) -> None:
        self._open.discard(request_id)
        if len(self.calls) == LAST and not self._open:
            self.over()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Scene, Playable):
    """The library on an open row, while one backend becomes slower, joins or leaves.

    Once the calls that count are over, no further queries arrive, and those that have are played to their end.
    """

    def play(self) -> Figures:
        feed, since = Feed(arrivals(self.row, self.seed, self.rate)), Since(self.at)
        player = CHANGES[self.what][self.who](self, [since, feed])
        feed.arrive, since.over = player.arrive, feed.end
        feed.next()
        player.run()
        assert len(since.calls) == LAST, "more queries arrive than that takes"
        player.loop.engine.check()
        took_s = sorted(call.ended_at - call.submitted_at for call in since.calls[FIRST:])
        return {
            "mean_s": mean(took_s),
            "p95_s": quantile(took_s, 0.95),
            "lost": float(sum(not run.completed for run in player.runs)),
        }
