"""An engine becomes slower: the calls in flight go on, and nobody says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from math import inf

from agentsched.predict import Speed
from agentsched.sim.plan import Node
from agentsched.sim.player import Player, Watch
from agentsched.sim.server import BatchServer, News
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.changes.scene import LEARNS, Prepare, Scene
from benchmarks.policy.fleets import fleet
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.play import ready

DEAF = "never hears"


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


def copied(speed: Speed, into: type[Speed] = Speed) -> Speed:
    """Return the same speed."""
    made = into()
    made.prefill, made.decode = deepcopy(speed.prefill), deepcopy(speed.decode)
    made._set()
    return made


def slower(speed: Speed, factor: float, into: type[Speed] = Speed) -> Speed:
    """Return what would have been learned of an engine that always took so many times as long."""
    made = copied(speed, into)
    for fit in (made.prefill, made.decode):
        fit.scale(factor)
    made._set()
    return made


TOLD: Mapping[str, Callable[[Speed, float], Speed]] = {
    LEARNS: lambda speed, factor: speed,
    "knew": slower,
    "knew, learns no more": lambda speed, factor: slower(speed, factor, Held),
    DEAF: lambda speed, factor: copied(speed, Held),
}
"""What takes the place of a learned speed when its engine becomes so many times slower, by who is told what."""


def _prepare(who: str, scene: Scene, watches: Sequence[Watch]) -> Player:
    servers = {
        name: Slowing(spec, at=scene.at if name == scene.backend else inf, factor=scene.factor)
        for name, spec in fleet(scene.row.fleet).items()
    }
    player = ready(DEFAULT, (), scene.row, servers, watches)
    row = player.loop.engine.backends[scene.backend]

    def tell(now: float) -> None:
        row.speed = TOLD[who](row.speed, scene.factor)

    player.loop.at(scene.at, tell)
    return player


SLOWS: Mapping[str, Prepare] = {who: partial(_prepare, who) for who in TOLD}
