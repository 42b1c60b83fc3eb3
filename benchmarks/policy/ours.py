"""The library's own policies, which learn speeds, lengths, caches and memory while the row is played.

Nothing of them is tuned for a row, and their backends have no limits. Beside the whole stand the same without one
of its parts, which is what that part is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agentsched import Policy
from agentsched.model import BackendLoad
from agentsched.policy import Cost, finish_time
from agentsched.predict.speed import BATCH_SLOPE, PRIOR_DECODE_S, PRIOR_PREFILL_S, READ_SHARE
from benchmarks.policy.contender import Contender, Prepare, Setup, Stage


def unlimited(policy: Policy) -> Prepare:
    """Return what prepares a policy as it comes."""

    def prepare(stage: Stage) -> Setup:
        return Setup(policy=policy)

    return prepare


def seen_as(change: Callable[[BackendLoad], BackendLoad]) -> Cost:
    """Return the usual cost by loads of which something is hidden."""
    return lambda job, load: finish_time(job, change(load))


def _all_alike(load: BackendLoad) -> BackendLoad:
    step_s = PRIOR_DECODE_S * (1.0 + BATCH_SLOPE * load.running)
    batch_s, read_s = PRIOR_DECODE_S * BATCH_SLOPE, PRIOR_DECODE_S * READ_SHARE
    return replace(
        load, entry_s=0.0, prefill_s=PRIOR_PREFILL_S, decode_s=step_s, batch_s=batch_s, read_s=read_s
    )


def _harmless(load: BackendLoad) -> BackendLoad:
    return replace(load, batch_s=0.0, read_s=0.0)


def _uncached(load: BackendLoad) -> BackendLoad:
    return replace(load, cached_tokens=0)


DEFAULT = Contender(name="agentsched", prepare=unlimited(Policy.default()))
OURS = (DEFAULT,)
WITHOUT: Mapping[str, Policy] = {
    "learned speeds": Policy(cost=seen_as(_all_alike)),
    "release control": Policy(release_control=False),
    "interference": Policy(cost=seen_as(_harmless)),
    "affinity": Policy(cost=seen_as(_uncached)),
    "patience": Policy(patience=0),
}
"""The library's policy less one of its parts, by that part."""

ABLATIONS = tuple(
    Contender(name=f"agentsched without {part}", prepare=unlimited(policy))
    for part, policy in WITHOUT.items()
)
