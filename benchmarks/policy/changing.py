"""A fleet of which one engine becomes slower while it is played, and who knows of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf

from agentsched.predict import Speed
from agentsched.sim.plan import Node
from agentsched.sim.player import CallRow, Watch
from agentsched.sim.report import mean, quantile
from agentsched.sim.server import BatchServer, News
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.fleets import fleet
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.play import Feed, ready
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.row import Row
from benchmarks.policy.traffic import arrivals

FIRST, LAST = 100, 1000
"""Of the calls made since the change, in order, those that count are from here up to, not including, there."""


class Slowing(BatchServer):
    """An engine that takes so many times as long from a point in time on."""

    def __init__(self, spec: BackendSpec, *, at: float, factor: float) -> None:
        super().__init__(spec)
        self._at = at
        self._factor = factor

    def start(self, now: float, attempt_id: int, node: Node) -> None:
        self._pass(now)
        super().start(now, attempt_id, node)

    def abort(self, now: float, attempt_id: int) -> int:
        self._pass(now)
        return super().abort(now, attempt_id)

    def next_at(self) -> float | None:
        due = super().next_at()
        at = min(self._at, inf if due is None else due)
        return at if at < inf else None

    def advance(self, now: float) -> list[News]:
        self._pass(now)
        return super().advance(now)

    def _pass(self, now: float) -> None:
        if now >= self._at:
            self.model.slow_down(self._at, self._factor)
            self._at = inf


class Held(Speed):
    """A learned speed that nothing is added to."""

    __slots__ = ()

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Take no notice."""

    def observe_decode(
        self, tokens: int, seconds: float, batch: float, *, read: int = 0, held: float = 0.0
    ) -> None:
        """Take no notice."""


def slower(speed: Speed, factor: float, into: type[Speed] = Speed) -> Speed:
    """Return what would have been learned of an engine that always took so many times as long."""
    made = into()
    made.prefill, made.decode = deepcopy(speed.prefill), deepcopy(speed.decode)
    for fit in (made.prefill, made.decode):
        fit.scale(factor)
    made._set()
    return made


TOLD: Mapping[str, Callable[[Speed, float], Speed]] = {
    "learns": lambda speed, factor: speed,
    "knew": slower,
    "knew, learns no more": lambda speed, factor: slower(speed, factor, Held),
    "never hears": lambda speed, factor: slower(speed, 1.0, Held),
}
"""What takes the place of a learned speed when its engine becomes so many times slower, by who is told what."""


class Since(Watch):
    """Keeps the calls made from a point in time on, and ends the play once those that count are over."""

    def __init__(self, at: float) -> None:
        self.calls: list[CallRow] = []
        self.stop: Callable[[], None] = lambda: None
        self._at = at
        self._open: set[str] = set()

    def calling(self, request_id: str, call: CallRow) -> None:
        if call.submitted_at >= self._at and len(self.calls) < LAST:
            self.calls.append(call)
            self._open.add(request_id)

    def ended(self, request_id: str, call: CallRow) -> None:
        self._open.discard(request_id)
        if len(self.calls) == LAST and not self._open:
            self.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Playable):
    """The library on an open row, while one engine becomes slower.

    Attributes:
        rate: queries a second.
        backend, factor: which engine takes how many times as long.
        who: what the library is told of that: see `TOLD`.
    """

    row: Row
    seed: int
    rate: float
    backend: str
    factor: float
    who: str

    @property
    def at(self) -> float:
        """When it does: when half of the queries that count have arrived, on average."""
        return (self.row.warm_up + self.row.queries / 2.0) / self.rate

    def play(self) -> Figures:
        servers = {
            name: Slowing(spec, at=self.at if name == self.backend else inf, factor=self.factor)
            for name, spec in fleet(self.row.fleet).items()
        }
        feed, since = Feed(arrivals(self.row, self.seed, self.rate)), Since(self.at)
        player = ready(DEFAULT, (), self.row, servers, [since, feed])
        feed.arrive, since.stop = player.arrive, player.loop.stop
        row = player.loop.engine.backends[self.backend]

        def tell(now: float) -> None:
            row.speed = TOLD[self.who](row.speed, self.factor)

        player.loop.at(self.at, tell)
        feed.next()
        player.run()
        assert len(since.calls) == LAST, "more queries arrive than that takes"
        took_s = sorted(call.ended_at - call.submitted_at for call in since.calls[FIRST:])
        return {"mean_s": mean(took_s), "p95_s": quantile(took_s, 0.95)}
