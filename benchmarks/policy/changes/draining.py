"""A backend is drained: what runs there may end there, and nothing more is given to it.

Nothing of that has to be learned, so who knew is one who acts before it happens: either by giving it, from the start,
no call that would by its own estimate still run there then, or by giving it nothing at all in the last minute. Both
leave it with nothing to drain, and have prepared the others' caches as far as that gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from agentsched import Policy
from agentsched.model import BackendLoad, Job
from agentsched.policy import finish_time
from agentsched.sim.player import Player, Watch
from agentsched.sim.server import BatchServer
from benchmarks.policy.changes.scene import LEARNS, Prepare, Scene
from benchmarks.policy.contender import Contender
from benchmarks.policy.fleets import fleet
from benchmarks.policy.ours import DEFAULT, unlimited
from benchmarks.policy.play import ready

REMOVED = "removed, not drained"
SOONER_S = 60.0
"""How long before the others a backend is drained by who avoids it altogether: nearly all calls have ended by then."""


class Leaving:
    """The usual cost, but that a backend is no choice for calls which would still run there when it leaves.

    Attributes:
        now: tells the time.
    """

    def __init__(self, backend: str, at: float) -> None:
        self._backend = backend
        self._at = at
        self.now: Callable[[], float] = lambda: 0.0

    def __call__(self, job: Job, load: BackendLoad) -> float:
        if load.name == self._backend:
            own_s = finish_time(job, replace(load, running=0))
            if self.now() + own_s > self._at:
                return inf
        return finish_time(job, load)


def _prepare(
    scene: Scene, watches: Sequence[Watch], *, knew: bool = False, sooner_s: float = 0.0, drain: bool = True
) -> Player:
    servers = {name: BatchServer(spec) for name, spec in fleet(scene.row.fleet).items()}
    cost = Leaving(scene.backend, scene.at)
    knowing = Contender(name=scene.who, prepare=unlimited(Policy(cost=cost)))
    player = ready(knowing if knew else DEFAULT, (), scene.row, servers, watches)
    loop = player.loop
    cost.now = lambda: loop.now
    loop.at(max(scene.at - sooner_s, 0.0), lambda _: loop.leave(scene.backend, drain=drain))
    return player


DRAINS: Mapping[str, Prepare] = {
    LEARNS: _prepare,
    "knew": partial(_prepare, knew=True),
    "knew, drains a minute before": partial(_prepare, sooner_s=SOONER_S),
    REMOVED: partial(_prepare, drain=False),
}
