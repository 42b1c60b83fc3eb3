"""What no scheduler can beat on a row: lower bounds on the mean latency and the makespan, an upper one on throughput.

1. *Path*: a query takes at least its critical path, each call alone on the backend that is fastest for it, of
   its prompt only those blocks read that no other prompt of the row has.
2. *Pool*: all backends as one server. A call occupies engine m for at least

       p_m = own_tokens * prefill_s + steps * slope * step_s + (1 - slope) * step_s * shares_m

   seconds of its own, since a step over n sequences takes `step_s * (1 - slope + n * slope)` besides what it
   reads. Its shared part serves what fits: of memory a call takes the share `area / capacity`, the tokens that it
   holds summed over its steps (the area bound), of the seats `steps / seats`; in each step either kind of shares
   sums to 1 at most, so any mean of the two with the same weights for all calls does too, and is a valid `shares_m`.
   For any positive s_m, a server of speed `sum(s_m)` to which the call is `min(p_m * s_m)` of work, with all work
   of a query there when it arrives, does in time whatever the fleet does; shortest remaining work first has the
   least mean latency on it (Schrage 1968). The best of several weights is taken.
3. *Makespan*: from the first arrival that counts to the last end, the latest path or all work on the pool.

Memory that two calls of the row share counts for neither, and only the queries that count are there: both favour
the bound. For those who compute equal nodes once, a node that has equals counts for nothing at all. All bounds are
those of the row's own queries.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from agentsched.sim.plan import Node, Plan
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.fleets import kv_tokens

MEMORY_WEIGHTS = (1.0, 0.9, 0.5, 0.0)
"""How much the shares of memory count, the rest being shares of seats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of one row with one seed.

    Attributes:
        path_s, pool_s: lower bounds on the mean latency in seconds.
        makespan_s: a lower one on the seconds from the first arrival to the last end.
        throughput: an upper one on the queries a second that can be completed when such queries come for ever.
    """

    path_s: float
    pool_s: float
    makespan_s: float
    throughput: float

    @property
    def mean_s(self) -> float:
        """The better of the lower bounds."""
        return max(self.path_s, self.pool_s)


def bounds(
    arrivals: Sequence[tuple[float, Plan]],
    specs: Mapping[str, BackendSpec],
    *,
    own: Own,
    first: int,
    last: int,
) -> Bounds:
    """Return the bounds for the queries numbered `first` up to, not including, `last`.

    Args:
        own: of all queries that may be played, those as well that do not count.
    """
    counted, engines = arrivals[first:last], list(specs.values())
    paths = [_path_s(plan, engines, own) for _, plan in counted]
    pools = [_pool(counted, engines, own, weight) for weight in MEMORY_WEIGHTS]
    first_at = counted[0][0]
    latest_path = max(at - first_at + path_s for (at, _), path_s in zip(counted, paths, strict=True))
    seconds = max(seconds for _, seconds in pools)
    return Bounds(
        path_s=sum(paths) / len(paths),
        pool_s=max(mean_s for mean_s, _ in pools),
        makespan_s=max(latest_path, seconds),
        throughput=len(counted) / seconds if seconds else inf,
    )


def _pool(
    counted: Sequence[tuple[float, Plan]], engines: Sequence[BackendSpec], own: Own, memory_weight: float
) -> tuple[float, float]:
    """Return the least mean latency on all backends as one server, and the seconds that it is busy."""
    seconds = [
        [_occupied_s(spec, node, own, memory_weight) for spec in engines]
        for _, plan in counted
        for node in plan.nodes
    ]
    weights = _weights(seconds)
    work = iter([min(p * s for p, s in zip(row, weights, strict=True)) for row in seconds])
    jobs = [(at, sum(next(work) for _ in plan.nodes)) for at, plan in counted]
    speed = sum(weights)
    return srpt_mean_s(jobs, speed), sum(size for _, size in jobs) / speed


class Own:
    """Which of a row's work is a call's own, because no other has it.

    Args:
        plans: all queries of the row; none of their nodes has output blocks.
        fused: whether equal nodes may be computed once.
    """

    def __init__(self, plans: Iterable[Plan], *, fused: bool) -> None:
        nodes = [node for plan in plans for node in plan.nodes]
        assert not any(node.output_blocks for node in nodes), "answers that others begin with are not counted"
        self._blocks = Counter(block for node in nodes for block in set(node.prompt_blocks))
        self._signatures = Counter(node.signature for node in nodes) if fused else Counter[str | None]()

    def spared(self, node: Node) -> bool:
        """Whether somebody else may do all of it."""
        return node.signature is not None and self._signatures[node.signature] > 1

    def tokens(self, node: Node, width: int) -> int:
        """Return the prompt tokens that nobody else's prompt begins with; one is always computed.

        Whoever shares a block shares all before it, so the end of what is shared can be found by bisection.
        """
        shared = bisect_left(node.prompt_blocks, True, key=lambda block: self._blocks[block] == 1)
        return max(node.input_tokens - shared * width, 1)


def srpt_mean_s(jobs: Sequence[tuple[float, float]], speed: float = 1.0) -> float:
    """Return the mean time in system of shortest remaining work first on one server.

    Args:
        jobs: arrival time and work of each, in order of arrival.
    """
    waiting: list[tuple[float, float]] = []
    total_s, now, following = 0.0, 0.0, 0
    while waiting or following < len(jobs):
        if not waiting:
            now = max(now, jobs[following][0])
        while following < len(jobs) and jobs[following][0] <= now:
            at, work = jobs[following]
            heapq.heappush(waiting, (work / speed, at))
            following += 1
        left_s, at = heapq.heappop(waiting)
        until = jobs[following][0] if following < len(jobs) else inf
        if now + left_s <= until:
            now += left_s
            total_s += now - at
        else:
            heapq.heappush(waiting, (left_s - (until - now), at))
            now = until
    return total_s / len(jobs)


def _occupied_s(spec: BackendSpec, node: Node, own: Own, memory_weight: float) -> float:
    """Return the seconds for which a call has an engine to itself, at least: see p_m above."""
    if own.spared(node):
        return 0.0
    speed, tokens, steps = spec.speed, own.tokens(node, spec.block_tokens), max(node.output_tokens - 1, 0)
    area = steps * tokens + steps * (steps + 1) / 2.0
    shares = memory_weight * area / kv_tokens(spec) + (1.0 - memory_weight) * steps / spec.max_num_seqs
    slope = min(speed.batch_slope, 1.0)
    return tokens * speed.prefill_s + speed.step_s * (steps * slope + (1.0 - slope) * shares)


def _path_s(plan: Plan, engines: Sequence[BackendSpec], own: Own) -> float:
    ends: list[float] = []
    for node in plan.nodes:
        least = (
            0.0
            if own.spared(node)
            else min(
                spec.alone_s(own.tokens(node, spec.block_tokens), node.output_tokens) for spec in engines
            )
        )
        ends.append(max((ends[earlier] for earlier in node.after), default=0.0) + node.delay_s + least)
    return max(ends)


def _weights(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Return the speeds s_m: any are valid, those that make the backends' mean calls equally much work are good."""
    totals = [sum(column) for column in zip(*seconds, strict=True)]
    return [1.0 / total if total else 1.0 for total in totals]
