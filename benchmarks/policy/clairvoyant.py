"""What could be done by somebody who knows everything: true lengths, whole plans, true speeds, what is cached.

Not a bound, but the ceiling in practice that the published orders are measured against: the best of {shortest
remaining work, earliest deadline, least laxity} x {with an eye on prefix caches, without} x headrooms x patience.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from agentsched import Policy
from agentsched.sim.player import CallRow, Run, Watch
from benchmarks.policy.contender import Contender, Dials, Fleet, Setup, Stage
from benchmarks.policy.fleets import mean_alone_s
from benchmarks.policy.knowing import KnowingPlayer
from benchmarks.policy.profile import paths_to_end

ORDERS = ("SRPT", "EDF", "LLF")
HEADROOMS = (0.3, 0.5, 0.7, 0.9, 1.3)
"""Tokens released in multiples of a backend's memory; those that are cached count for nothing."""
PATIENCE = (2.0, 1e3)
"""How many times the seconds of the best place another one may cost; the last is no patience at all."""
GRID: tuple[Dials, ...] = (
    *product(ORDERS, ("cached",), HEADROOMS, PATIENCE),
    *product(ORDERS, ("uncached",), (1.3,), (1e3,)),
    *product(("SRPT, hopeless last", "EDF, hopeless last"), ("cached",), (0.3, 0.5, 0.7), (2.0,)),
)
HOPELESS = 1.6
"""Times the seconds alone, as the mean over the backends, of what a query has left: with less time it will be late."""


class Truth(Watch):
    """Knows what every live query really has left to do."""

    def __init__(self, stage: Stage, order: str) -> None:
        self._specs = stage.specs
        self._order, _, hopeless = order.partition(", ")
        self._hopeless_last = bool(hopeless)
        self._own_s: dict[str, list[float]] = {}
        self._left_s: dict[str, float] = {}
        self._paths_s: dict[str, list[float]] = {}

    def rank(self, now: float, run: Run, number: int) -> tuple[bool, float]:
        """Return where a call stands in the order; lower first."""
        query, slo_s = run.query.id, run.plan.slo_s
        assert slo_s is not None, "the bench's queries all wish for something"
        slo_at, path_s = run.arrived_at + slo_s, self._paths_s[query][number]
        late = self._hopeless_last and now + HOPELESS * path_s > slo_at
        if self._order == "SRPT":
            return late, self._left_s[query]
        return late, slo_at - path_s if self._order == "LLF" else slo_at

    def opened(self, run: Run) -> None:
        query, plan = run.query.id, run.plan
        own = [mean_alone_s(self._specs, node.input_tokens, node.output_tokens) for node in plan.nodes]
        self._own_s[query], self._left_s[query] = own, sum(own)
        self._paths_s[query] = paths_to_end(plan, self._specs)

    def ended(self, request_id: str, call: CallRow) -> None:
        query = call.run.query.id
        self._left_s[query] -= self._own_s[query][call.number]

    def closed(self, run: Run) -> None:
        for table in (self._own_s, self._left_s, self._paths_s):
            table.pop(run.query.id, None)


def prepare(stage: Stage, *dials: float | str, fuses: bool = False) -> Setup:
    """Set one of the grid up: order, whether caches are looked at, headroom, patience."""
    order, affinity, headroom, patience = dials
    truth = Truth(stage, str(order))

    def player(fleet: Fleet, policy: Policy, watches: Sequence[Watch]) -> KnowingPlayer:
        return KnowingPlayer(
            fleet,
            watches=watches,
            specs=stage.specs,
            rank=truth.rank,
            affine=affinity == "cached",
            headroom=float(headroom),
            patience=float(patience),
            fuses=fuses,
        )

    return Setup(policy=Policy.fcfs(), watches=[truth], player=player)


def prepare_fusing(stage: Stage, *dials: float | str) -> Setup:
    """The same, with equal nodes computed once and their answers remembered."""
    return prepare(stage, *dials, fuses=True)


CLAIRVOYANT = Contender(name="clairvoyant", prepare=prepare, dials=GRID)
FUSING = Contender(name="clairvoyant, fusing", prepare=prepare_fusing, dials=GRID)
