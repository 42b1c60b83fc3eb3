"""What people do today, and the published orders: the baselines, each with the dials that it deserves.

Those who release at once have no limits: the engines' own queues decide. The others hold calls back at limits
per backend, as many as its memory holds of the workload's calls times a tuned factor, and send the first of
their order to the backend that, by its true speeds, would finish it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentsched import Policy
from agentsched.model import BackendLoad, Job
from agentsched.policy import Cost, Rank, arrival
from agentsched.sim.player import CallRow, Run, Watch
from benchmarks.policy.contender import Contender, Setup, Stage

EXPONENTS = ((0.5,), (1.0,), (2.0,))
FACTORS = ((0.5,), (0.7,), (1.0,), (1.4,), (2.0,), (2.8,), (4.0,), (12.0,))
INPUT_PRICE, OUTPUT_PRICE = 1.0, 2.0
"""Prices of tokens in the Virtual Token Counter (Sheng et al., OSDI 2024)."""
GROUPS_PER_SLO = 4
"""Groups of deadlines per mean wish in the QLM-like order."""


def plain(*, cost: Cost, rank: Rank = arrival) -> Policy:
    """Return a policy that releases whatever a backend's limit lets it, and waits for none: a peer has no more."""
    return Policy(rank=rank, cost=cost, release_control=False, patience=0)


# -- released at once ----------------------------------------------------------------------------------------


def round_robin(stage: Stage) -> Setup:
    """Each call to the backend that got the fewest so far."""
    return Setup(policy=plain(cost=lambda job, load: 0.0))


def least_outstanding(stage: Stage) -> Setup:
    """Each call to the backend with the fewest unanswered."""
    return Setup(policy=plain(cost=lambda job, load: load.running))


def weighted_least_outstanding(stage: Stage, exponent: float) -> Setup:
    """The same, each unanswered call counted with the backend's seconds per call to the power of `exponent`."""
    seconds = {name: call_s**exponent for name, call_s in stage.profile.call_s.items()}
    return Setup(policy=plain(cost=lambda job, load: (load.running + 1) * seconds[load.name]))


# -- held back -----------------------------------------------------------------------------------------------


def held_back(stage: Stage, factor: float, rank: Rank, *watches: Watch) -> Setup:
    """Return the setup of an order behind limits."""
    policy = plain(rank=rank, cost=true_finish(stage))
    return Setup(policy=policy, limits=stage.limits(factor), watches=watches)


def true_finish(stage: Stage) -> Callable[[Job, BackendLoad], float]:
    """Return the cost of a careful balancer: when the call would be done, by true speeds and its step's mean length."""
    speeds = {name: spec.speed for name, spec in stage.specs.items()}
    outputs = stage.profile.output_tokens

    def cost(job: Job, load: BackendLoad) -> float:
        speed = speeds[load.name]
        prefill_s = (load.unread_tokens + job.input_tokens) * speed.prefill_s
        return prefill_s + outputs[_key(job)] * speed.step(load.running + 1)

    return cost


def fifo(stage: Stage, factor: float) -> Setup:
    """First come, first served."""
    return held_back(stage, factor, arrival)


def edf(stage: Stage, factor: float) -> Setup:
    """Earliest deadline of the query first."""
    return held_back(stage, factor, _slo_at)


def llf(stage: Stage, factor: float) -> Setup:
    """Least laxity first: the deadline less what the workflow still takes from this step on, on average."""
    left = stage.profile.path_s
    return held_back(stage, factor, lambda job: _slo_at(job) - left[_key(job)])


def qlm_like(stage: Stage, factor: float) -> Setup:
    """Groups of calls with similar deadlines, the earliest group first, within a group by arrival."""
    width_s = stage.profile.query_s * stage.slo_scale / GROUPS_PER_SLO
    return held_back(stage, factor, lambda job: _slo_at(job) // width_s)


def ayo_like(stage: Stage, factor: float, direction: str) -> Setup:
    """By depth in the workflow, calls that are nearest to its end first, or those farthest from it."""
    sign = 1.0 if direction == "nearest" else -1.0
    depth = stage.profile.depth
    return held_back(stage, factor, lambda job: sign * depth[_key(job)])


def plas(stage: Stage, factor: float) -> Setup:
    """Least attained service of the program first (PLAS, Autellix), service in seconds at backends."""
    attained = Attained()
    return held_back(stage, factor, lambda job: attained.seconds.get(job.query or "", 0.0), attained)


def vtc_like(stage: Stage, factor: float) -> Setup:
    """Fair over tenants: a start tag per call, as in start-time fair queueing, tokens at VTC's prices."""
    tags = StartTags(stage)
    return held_back(stage, factor, tags.tag, tags)


class Attained(Watch):
    """Adds up what each query has been served."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def ended(self, request_id: str, call: CallRow) -> None:
        query = call.run.query.id
        self.seconds[query] = self.seconds.get(query, 0.0) + call.ended_at - call.started_at

    def closed(self, run: Run) -> None:
        self.seconds.pop(run.query.id, None)


class StartTags(Watch):
    """Gives each call the larger of the virtual time and its tenant's last tag plus that call's price.

    The price is by the step's mean output at first, and put right when the call has ended.
    """

    def __init__(self, stage: Stage) -> None:
        self._outputs: Mapping[tuple[str, str], float] = stage.profile.output_tokens
        self._next: dict[str | None, float] = {}
        self._tags: dict[str, float] = {}
        self._now = 0.0

    def tag(self, job: Job) -> float:
        tag = max(self._now, self._next.get(job.tenant, 0.0))
        price = INPUT_PRICE * job.input_tokens + OUTPUT_PRICE * self._outputs[_key(job)]
        self._next[job.tenant] = tag + price
        self._tags[job.id] = tag
        return tag

    def started(self, request_id: str, call: CallRow) -> None:
        self._now = max(self._now, self._tags[request_id])

    def ended(self, request_id: str, call: CallRow) -> None:
        del self._tags[request_id]
        more = call.node.output_tokens - self._outputs[call.run.plan.workflow, call.node.step]
        self._next[call.run.plan.tenant] += OUTPUT_PRICE * more


def _slo_at(job: Job) -> float:
    assert job.slo_at is not None, "the bench's queries all wish for something"
    return job.slo_at


def _key(job: Job) -> tuple[str, str]:
    assert job.workflow is not None and job.step is not None, "the bench's calls all belong somewhere"
    return job.workflow, job.step


# -- all of them ---------------------------------------------------------------------------------------------

DIRECT = (
    Contender(name="round robin", prepare=round_robin),
    Contender(name="least outstanding", prepare=least_outstanding),
    Contender(name="weighted LO", prepare=weighted_least_outstanding, dials=EXPONENTS),
)
FIFO = Contender(name="FIFO + limit", prepare=fifo, dials=FACTORS)
ORDERED = (
    FIFO,
    Contender(name="EDF", prepare=edf, dials=FACTORS),
    Contender(name="LLF", prepare=llf, dials=FACTORS),
    Contender(name="QLM-like", prepare=qlm_like, dials=FACTORS),
    Contender(name="PLAS", prepare=plas, dials=FACTORS),
    Contender(name="VTC-like", prepare=vtc_like, dials=FACTORS),
    Contender(
        name="Ayo-like",
        prepare=ayo_like,
        dials=tuple((*factor, end) for factor in FACTORS for end in ("nearest", "farthest")),
    ),
)
PEERS = (*DIRECT, *ORDERED)
