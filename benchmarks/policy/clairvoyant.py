"""What could be done by somebody who knows everything: true lengths, whole plans, true speeds, what is cached.

Not a bound, but the ceiling in practice that the published orders are measured against: the best of {shortest
remaining work, earliest deadline, least laxity} x {with an eye on prefix caches, without} x headrooms.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentsched import Policy
from agentsched.sim.player import CallRow, Run, Watch
from benchmarks.policy.contender import Contender, Dials, Fleet, Setup, Stage
from benchmarks.policy.fleets import mean_alone_s
from benchmarks.policy.knowing import KnowingPlayer
from benchmarks.policy.profile import paths_to_end

ORDERS = ("SRPT", "EDF", "LLF")
PLACES = (
    *(("cached", headroom) for headroom in (0.3, 0.5, 0.7, 0.9)),
    *(("uncached", headroom) for headroom in (0.9, 1.3)),
)
"""With an eye on caches and without, and the tokens released in multiples of a backend's memory: cached ones count for
nothing."""
GRID: tuple[Dials, ...] = tuple((order, *place) for order in ORDERS for place in PLACES)


class Truth(Watch):
    """Knows what every live query really has left to do."""

    def __init__(self, stage: Stage, order: str) -> None:
        self._specs = stage.specs
        self._order = order
        self._own_s: dict[str, list[float]] = {}
        self._left_s: dict[str, float] = {}
        self._paths_s: dict[str, list[float]] = {}

    def rank(self, run: Run, number: int) -> float:
        """Return where a call stands in the order; lower first."""
        query, slo_s = run.query.id, run.plan.slo_s
        if self._order == "SRPT" or slo_s is None:
            return self._left_s[query]
        path_s = self._paths_s[query][number] if self._order == "LLF" else 0.0
        return run.arrived_at + slo_s - path_s

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
    """Set one of the grid up: order, whether caches are looked at, headroom."""
    order, affinity, headroom = dials
    truth = Truth(stage, str(order))

    def player(fleet: Fleet, policy: Policy, watches: Sequence[Watch]) -> KnowingPlayer:
        return KnowingPlayer(
            fleet,
            watches=watches,
            specs=stage.specs,
            rank=truth.rank,
            affine=affinity == "cached",
            headroom=float(headroom),
            fuses=fuses,
        )

    return Setup(policy=Policy.fcfs(), watches=[truth], player=player)


def prepare_fusing(stage: Stage, *dials: float | str) -> Setup:
    """The same, with equal nodes computed once."""
    return prepare(stage, *dials, fuses=True)


CLAIRVOYANT = Contender(name="clairvoyant", prepare=prepare, dials=GRID)
FUSING = Contender(name="clairvoyant, fusing", prepare=prepare_fusing, dials=GRID)
