"""Who competes: what each lets go to which backend, in which order, and how that is set up for a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentsched import Backend, Policy
from agentsched.sim.player import Player, Watch
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.fleets import kv_tokens
from benchmarks.policy.profile import Profile

Fleet = Sequence[tuple[Backend, BatchServer]]
Dials = tuple[float | str, ...]
"""What is tuned of a contender, in the order of its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a contender has to prove itself.

    Attributes:
        profile: what was measured of the workload beforehand.
        slo_scale: what queries wish for, in multiples of their path.
    """

    specs: Mapping[str, BackendSpec]
    servers: Mapping[str, BatchServer]
    profile: Profile
    slo_scale: float

    def limits(self, factor: float) -> dict[str, int]:
        """Return calls per backend such that `factor` times its memory is spoken for on average."""
        return limits(self.specs, self.profile, factor)


def limits(specs: Mapping[str, BackendSpec], profile: Profile, factor: float) -> dict[str, int]:
    """Return calls per backend such that `factor` times its memory is spoken for on average."""
    return {
        name: min(max(round(factor * kv_tokens(spec) / profile.footprint_tokens), 1), spec.max_num_seqs)
        for name, spec in specs.items()
    }


def plain_player(fleet: Fleet, policy: Policy, watches: Sequence[Watch]) -> Player:
    """Make the library's own player, which leaves everything to the engine."""
    return Player(fleet, policy=policy, watches=watches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A contender made ready.

    Attributes:
        limits: most calls released to each backend; None for no limit anywhere.
        watches: told of what happens.
        player: makes what plays the queries.
    """

    policy: Policy
    limits: Mapping[str, int] | None = None
    watches: Sequence[Watch] = field(default_factory=list[Watch])
    player: Callable[[Fleet, Policy, Sequence[Watch]], Player] = plain_player


class Prepare(Protocol):
    """Makes a contender ready for a stage, with its dials set."""

    def __call__(self, stage: Stage, *dials: float | str) -> Setup: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to schedule.

    Attributes:
        name: in tables.
        dials: the settings to choose from for each workload and fleet, on queries that no row plays.
    """

    name: str
    prepare: Prepare
    dials: Sequence[Dials] = ((),)
