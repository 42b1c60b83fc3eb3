"""An open row in which something happens to one backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentsched.sim.player import Player, Watch
from benchmarks.policy.row import Row

LEARNS = "learns"
"""Who is the library as it comes: it is told what a scheduler is told, and learns the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A row with a change.

    Attributes:
        rate: queries a second.
        what: happens: see `CHANGES`.
        backend: to whom it does.
        who: what the library knows of that: see there.
        factor: how many times as long a backend takes that becomes slower.
    """

    row: Row
    seed: int
    rate: float
    what: str
    backend: str
    who: str
    factor: float = 2.0

    @property
    def at(self) -> float:
        """When it happens: when half of the queries that count have arrived, on average."""
        return (self.row.warm_up + self.row.queries / 2.0) / self.rate


Prepare = Callable[[Scene, Sequence[Watch]], Player]
"""Makes what plays a scene; no query has arrived."""
