"""The library's own policies, which have to learn speeds and lengths while the row is played."""

from __future__ import annotations

from collections.abc import Callable

from agentsched import Policy
from benchmarks.policy.contender import Contender, Prepare, Setup, Stage
from benchmarks.policy.peers import FACTORS


def behind_limits(policy: Callable[[], Policy]) -> Prepare:
    """Return what prepares a policy behind the limits that FIFO gets too."""

    def prepare(stage: Stage, factor: float) -> Setup:
        return Setup(policy=policy(), limits=stage.limits(factor))

    return prepare


DEFAULT = Contender(name="agentsched", prepare=behind_limits(Policy.default), dials=FACTORS)
OURS = (DEFAULT,)
