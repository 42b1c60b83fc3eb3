"""What a played scenario amounts to, in figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, nan

from agentsched.model import Outcome
from agentsched.sim.backend import BackendModel
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import CallRow, Run
from agentsched.sim.spec import BackendSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How a figure is called, what it counts in, and whether less of it is better."""

    title: str
    unit: str
    less_is_better: bool = True
    digits: int = 2

    @property
    def sign(self) -> int:
        """What a value is multiplied with so that less of it is better."""
        return 1 if self.less_is_better else -1


METRICS: Mapping[str, Metric] = {
    "mean_s": Metric(title="mean", unit="s"),
    "p50_s": Metric(title="P50", unit="s"),
    "p95_s": Metric(title="P95", unit="s"),
    "p99_s": Metric(title="P99", unit="s"),
    "slowdown": Metric(title="slowdown", unit="x"),
    "slo_share": Metric(title="in SLO", unit="share", less_is_better=False, digits=3),
    "goodput": Metric(title="goodput", unit="queries/s", less_is_better=False, digits=4),
    "throughput": Metric(title="throughput", unit="queries/s", less_is_better=False, digits=4),
    "fairness": Metric(title="Jain", unit="0 to 1", less_is_better=False, digits=3),
    "call_mean_s": Metric(title="call mean", unit="s"),
    "call_p50_s": Metric(title="call P50", unit="s"),
    "call_p95_s": Metric(title="call P95", unit="s"),
    "call_p99_s": Metric(title="call P99", unit="s"),
    "upstream_calls": Metric(title="upstream calls", unit="per query"),
    "preemptions": Metric(title="preemptions", unit="per query", digits=3),
    "wasted_tokens": Metric(title="wasted tokens", unit="per query", digits=0),
}
"""The figures of a scenario in the order in which tables show them."""

Figures = Mapping[str, float]
"""One value for each of `METRICS`. A query that was not completed took infinitely long."""


def figures(
    runs: Sequence[Run],
    calls: Iterable[CallRow],
    alone_s: Callable[[Plan], float],
    *,
    engines: Iterable[BackendModel] = (),
    first: int = 0,
    last: int | None = None,
) -> dict[str, float]:
    """Return the figures of the queries numbered `first` up to, not including, `last`, in order of arrival.

    Per-query counts of upstream calls, preemptions and wasted tokens are over all that was played. Goodput and
    throughput are what was completed per second from the first to the last arrival that counts, whenever it arrived.
    They are not a number where that says nothing: if these arrive at once, or if all that are completed are so later.

    Args:
        runs, calls: a player's.
        alone_s: how long a plan takes when nothing else is there: the yardstick of slowdown.
        engines: where preemptions and wasted tokens are counted.
    """
    counted = runs[first:last]
    if not counted:
        raise ValueError("no query to count")
    among = {id(run) for run in counted}
    latencies = sorted(run.latency_s for run in counted)
    answers = sorted(
        call.ended_at - call.submitted_at if call.outcome is Outcome.COMPLETED else inf
        for call in calls
        if id(call.run) in among
    )
    slowdowns = [run.latency_s / alone_s(run.plan) if run.completed else inf for run in counted]
    since, until = counted[0].arrived_at, counted[-1].arrived_at
    done = [run for run in runs if run.completed and since <= run.ended_at <= until]
    span_s = until - since if done or not any(run.completed for run in counted) else 0.0
    preempted, wasted = _lost(engines)
    return {
        "mean_s": mean(latencies),
        "p50_s": quantile(latencies, 0.5),
        "p95_s": quantile(latencies, 0.95),
        "p99_s": quantile(latencies, 0.99),
        "slowdown": mean(slowdowns),
        "slo_share": sum(map(in_slo, counted)) / len(counted),
        "goodput": sum(map(in_slo, done)) / span_s if span_s else nan,
        "throughput": len(done) / span_s if span_s else nan,
        "fairness": jain(_by_tenant(counted, slowdowns)),
        "call_mean_s": mean(answers),
        "call_p50_s": quantile(answers, 0.5),
        "call_p95_s": quantile(answers, 0.95),
        "call_p99_s": quantile(answers, 0.99),
        "upstream_calls": sum(call.attempts for call in calls) / len(runs),
        "preemptions": preempted / len(runs),
        "wasted_tokens": wasted / len(runs),
    }


def in_slo(run: Run) -> bool:
    """Return whether a query was done by the time it wished to be; without a wish, whether it was done."""
    return run.latency_s <= (inf if run.plan.slo_s is None else run.plan.slo_s) and run.completed


def unloaded_s(
    plan: Plan,
    fleet: Iterable[BackendSpec],
    *,
    serving: Callable[[Node], Iterable[BackendSpec]] | None = None,
) -> float:
    """Return the seconds of a plan's critical path, each call alone on the engine that is fastest for it.

    Engines that would refuse a call are passed over; infinity if all would.

    Args:
        serving: the engines that serve a call's model; all of the fleet if None.
    """
    specs = list(fleet)
    ends: list[float] = []
    for node in plan.nodes:
        starts = max((ends[earlier] for earlier in node.after), default=0.0) + node.delay_s
        able = [spec for spec in (specs if serving is None else serving(node)) if takes(spec, node)]
        ends.append(
            starts + min((spec.alone_s(node.input_tokens, node.output_tokens) for spec in able), default=inf)
        )
    return max(ends)


def takes(spec: BackendSpec, node: Node) -> bool:
    """Return whether an engine that is idle has room for a call."""
    return node.input_tokens + node.output_tokens <= room_tokens(spec)


def room_tokens(spec: BackendSpec) -> int:
    """Return how many tokens the longest call that an engine takes may have, in and out."""
    return min(spec.max_model_len, spec.kv_blocks * spec.block_tokens)


def mean(values: Sequence[float]) -> float:
    """Return the mean; not a number if there are no values."""
    return sum(values) / len(values) if values else nan


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the least of the ordered values that at least this share of them does not exceed."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else nan


def jain(values: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 if all values are equal, 1/n if one has it all."""
    if not all(map(isfinite, values)):
        return 0.0
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def _by_tenant(runs: Sequence[Run], slowdowns: Sequence[float]) -> list[float]:
    """Return the mean slowdown of each tenant; of each query if there is one tenant only."""
    tenants: dict[str | None, list[float]] = {}
    for run, slowdown in zip(runs, slowdowns, strict=True):
        tenants.setdefault(run.plan.tenant, []).append(slowdown)
    return list(slowdowns) if len(tenants) == 1 else [mean(values) for values in tenants.values()]


def _lost(engines: Iterable[BackendModel]) -> tuple[int, int]:
    """Return how often an engine took a call's memory away, and the tokens computed in vain."""
    counted = [engine.counters for engine in engines]
    return sum(one.preemptions for one in counted), sum(one.wasted_tokens for one in counted)
