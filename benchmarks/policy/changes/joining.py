"""A backend joins that nothing is known of, or all that would be known had it been there from the start.

Who knew has from the first call on what another run of the same queries has learned of it by then, in which it was
there all along: speeds, how much fits into its memory, how long calls stay. Its prefix cache is empty all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agentsched.engine.backends import BackendRow
from agentsched.predict import Measured, Profile, Speed
from agentsched.sim.player import Player, Watch
from agentsched.sim.server import BatchServer
from benchmarks.policy.changes.scene import LEARNS, Prepare, Scene
from benchmarks.policy.changes.slowing import Held, copied
from benchmarks.policy.fleets import fleet
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.play import Feed, backend, ready
from benchmarks.policy.traffic import arrivals

KNOWN: Mapping[str, Callable[[Speed], Speed] | None] = {
    LEARNS: None,
    "knew": copied,
    "knew, learns no more": lambda speed: copied(speed, Held),
}
"""What the newcomer's speed is to begin with, from what was learned of it elsewhere; None for nothing."""

PROFILED, NEVER = "begins with a profile", "never comes"


def learned(scene: Scene) -> BackendRow:
    """Return the backend as it is known where it was there from the start, at the time at which it joins."""
    servers = {name: BatchServer(spec) for name, spec in fleet(scene.row.fleet).items()}
    feed = Feed(arrivals(scene.row, scene.seed, scene.rate))
    player = ready(DEFAULT, (), scene.row, servers, [feed])
    feed.arrive = player.arrive
    feed.next()
    player.run(until=scene.at)
    return player.loop.engine.backends[scene.backend]


def _prepare(who: str, scene: Scene, watches: Sequence[Watch]) -> Player:
    specs = fleet(scene.row.fleet)
    servers = {name: BatchServer(spec) for name, spec in specs.items() if name != scene.backend}
    player = ready(DEFAULT, (), scene.row, servers, watches)
    if who != NEVER:
        known = learned(scene) if who != LEARNS else None
        newcomer = BatchServer(specs[scene.backend])
        player.loop.at(scene.at, lambda _: join(player, scene.backend, newcomer, known, KNOWN.get(who)))
    return player


def join(
    player: Player,
    name: str,
    server: BatchServer,
    known: BackendRow | None,
    speed_of: Callable[[Speed], Speed] | None,
) -> None:
    """Have a backend join now.

    Args:
        known: what was learned of it elsewhere.
        speed_of: makes its speed out of that; where it is None, the newcomer has what a profile keeps of it.
    """
    loop, spec = player.loop, backend(name)
    if known is not None:
        measured = Measured(base_url=spec.base_url, name=name, learned=known.learned, source="run")
        loop.engine.fleet.profile = Profile(backends=(measured,))
    loop.join(spec, server)
    if known is not None and speed_of is not None:  # what started by the profile started by the same speeds
        row = loop.engine.backends[name]
        row.speed, row.budget, row.stay_s = speed_of(known.speed), known.budget, known.stay_s


JOINS: Mapping[str, Prepare] = {who: partial(_prepare, who) for who in (*KNOWN, PROFILED, NEVER)}
