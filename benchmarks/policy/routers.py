"""LiteLLM's strategies as contenders: real, and so slow that they play on two small rows only."""

from __future__ import annotations

from collections.abc import Mapping

from agentsched.sim.report import figures
from benchmarks.policy.fleets import fleet
from benchmarks.policy.row import Row
from benchmarks.policy.traffic import alone_of, arrivals

ROUTERS: Mapping[str, str] = {
    "LiteLLM shuffle": "simple-shuffle",
    "LiteLLM least-busy": "least-busy",
    "LiteLLM latency": "latency-based-routing",
}
"""Names in tables, and the package's."""


def play_router(strategy: str, row: Row, seed: int, rate: float) -> dict[str, float]:
    """Return the figures of an open row with a LiteLLM Router before the fleet."""
    from benchmarks.policy.litellm_router import play  # takes seconds, and is not everywhere

    last = row.warm_up + row.queries
    runs, calls, backends = play(
        strategy, fleet(row.fleet), list(arrivals(row, seed, rate)), seed=seed, until_done=last
    )
    models = [backend.live.model for backend in backends]
    return figures(runs, calls, alone_of(row.fleet), engines=models, first=row.warm_up, last=last)
