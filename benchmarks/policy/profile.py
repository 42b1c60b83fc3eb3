"""What an operator could measure beforehand about a workload on a fleet: means per step, from other queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.fleets import fleet, mean_alone_s
from benchmarks.policy.workloads import WORKLOADS

QUERIES = 300


class PerStep(dict[tuple[str, str], float]):
    """Means by (workflow, step); a step that was never seen is taken for the mean of its workflow's others."""

    def __missing__(self, key: tuple[str, str]) -> float:
        others = [value for (workflow, _), value in self.items() if workflow == key[0]] or self.values()
        return sum(others) / len(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Means over the queries profiled.

    Attributes:
        call_s: seconds of a call alone, per backend.
        footprint_tokens: tokens that a call holds in memory, weighted by how long it holds them.
        output_tokens: of a call of a step.
        path_s, depth: seconds, and calls, on the longest path from there to the end.
        query_s: seconds of a query's longest path.
    """

    call_s: Mapping[str, float]
    footprint_tokens: float
    output_tokens: PerStep
    path_s: PerStep
    depth: PerStep
    query_s: float


@lru_cache(maxsize=16)
def sampled(workload: str) -> Sequence[Plan]:
    """Return queries that no row plays."""
    return tuple(islice(WORKLOADS[workload](Random("profile")), QUERIES))


@lru_cache(maxsize=64)
def profile(workload: str, fleet_name: str) -> Profile:
    """Profile a workload."""
    specs = fleet(fleet_name)
    plans = sampled(workload)
    nodes = [node for plan in plans for node in plan.nodes]
    seconds = [mean_alone_s(specs, node.input_tokens, node.output_tokens) for node in nodes]
    held = sum((node.input_tokens + node.output_tokens) * s for node, s in zip(nodes, seconds, strict=True))
    outputs: dict[tuple[str, str], list[float]] = {}
    paths: dict[tuple[str, str], list[float]] = {}
    depths: dict[tuple[str, str], list[float]] = {}
    longest: list[float] = []
    for plan in plans:
        path_s = paths_to_end(plan, specs)
        longest.append(max(path_s))
        for node, left_s, left in zip(plan.nodes, path_s, depths_to_end(plan), strict=True):
            key = (plan.workflow, node.step)
            outputs.setdefault(key, []).append(node.output_tokens)
            paths.setdefault(key, []).append(left_s)
            depths.setdefault(key, []).append(left)
    return Profile(
        call_s={
            name: sum(spec.alone_s(node.input_tokens, node.output_tokens) for node in nodes) / len(nodes)
            for name, spec in specs.items()
        },
        footprint_tokens=held / sum(seconds),
        output_tokens=_means(outputs),
        path_s=_means(paths),
        depth=_means(depths),
        query_s=sum(longest) / len(longest),
    )


def paths_to_end(plan: Plan, specs: Mapping[str, BackendSpec]) -> list[float]:
    """Return per node the mean seconds of the longest path from its start to the end of the plan."""
    own = [mean_alone_s(specs, node.input_tokens, node.output_tokens) for node in plan.nodes]
    return _longest(plan, own, [node.delay_s for node in plan.nodes])


def depths_to_end(plan: Plan) -> list[float]:
    """Return per node how many calls are on the longest path from it to the end, itself included."""
    return _longest(plan, [1.0] * len(plan.nodes), [0.0] * len(plan.nodes))


def _longest(plan: Plan, own: Sequence[float], delay: Sequence[float]) -> list[float]:
    after = [0.0] * len(own)
    for number in range(len(own) - 1, -1, -1):
        through = delay[number] + own[number] + after[number]
        for earlier in plan.nodes[number].after:
            after[earlier] = max(after[earlier], through)
    return [mine + later for mine, later in zip(own, after, strict=True)]


def _means(values: Mapping[tuple[str, str], Sequence[float]]) -> PerStep:
    return PerStep({key: sum(found) / len(found) for key, found in values.items()})
