"""A row of the bench: which traffic meets which fleet, at what load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

CLOSED = "closed"
"""Arrivals of a closed loop: a query arrives when one is over."""

TAIL = 1.0
"""Most queries that still arrive behind those that count and before these are over, as a share of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scenario but for its seed.

    Attributes:
        workload, fleet, arrivals: names: see `WORKLOADS`, `FLEETS`, `ARRIVALS`.
        load: arrivals a second as a share of the row's load 1.0; queries in the system for `closed` arrivals.
        slo_scale: what a query wishes for, in multiples of its unloaded critical path.
        warm_up, queries: how many queries come before those that count, and how many count.
    """

    workload: str
    fleet: str
    load: float
    arrivals: str = "poisson"
    slo_scale: float = 4.0
    warm_up: int = 100
    queries: int = 500

    @property
    def name(self) -> str:
        """How it is called in tables."""
        parts = [self.workload, self.fleet, f"load {self.load:g}"]
        if self.arrivals != "poisson":
            parts[-1:] = [
                f"{self.load:g} in a closed loop"
                if self.arrivals == CLOSED
                else f"{parts[-1]}, {self.arrivals}"
            ]
        if self.queries != 500:
            parts.append(f"{self.queries} queries")
        if self.slo_scale != 4.0:
            parts.append(f"SLO x{self.slo_scale:g}")
        return " / ".join(parts)

    @property
    def site(self) -> tuple[str, str]:
        """Workload and fleet: what a load and a dial are measured for."""
        return self.workload, self.fleet

    @property
    def arriving(self) -> int:
        """How many queries arrive at most."""
        return self.warm_up + self.queries + int(self.queries * TAIL)


CORE_WORKLOADS = ("text2sql", "rag", "research", "mixed")
CORE_FLEETS = ("hetero1", "hetero2")
CORE_LOADS = (0.3, 0.85, 1.3)
CORE_SEEDS = 5


def rows(workloads: Iterable[str], fleets: Iterable[str], loads: Iterable[float]) -> tuple[Row, ...]:
    """Return a row for every combination."""
    return tuple(
        Row(workload=workload, fleet=fleet, load=load)
        for workload, fleet, load in product(workloads, fleets, loads)
    )


CORE = rows(CORE_WORKLOADS, CORE_FLEETS, CORE_LOADS)
SWEEP = rows(CORE_WORKLOADS, CORE_FLEETS, (0.3, 0.5, 0.7, 0.85, 1.0, 1.15, 1.3))
"""What the plots of latency against rate show."""
ROUTED = tuple(
    Row(workload=workload, fleet="hetero1", load=0.85, warm_up=30, queries=150)
    for workload in ("rag", "mixed")
)
"""Rows on which the LiteLLM Router plays too: it takes a hundred times as long as a policy."""
ROUTED_SEEDS = 3
FULL = (
    *rows(("chat", "summarisation", "rsl_sql", "react", "tot", "swe"), ("hetero1",), CORE_LOADS),
    *rows(("chat", "summarisation", "mixed"), ("tight",), (0.3, 0.85)),
    *rows(("text2sql", "mixed"), ("homo", "pair", "fleet64"), (0.85,)),
    *(
        Row(workload=workload, fleet="hetero1", load=0.85, arrivals=arrivals)
        for workload in CORE_WORKLOADS
        for arrivals in ("bursts", "azure-conv", "azure-code", "servegen")
    ),
    *(
        Row(workload=workload, fleet="hetero1", load=in_system, arrivals=CLOSED, warm_up=max(100, in_system))
        for workload in ("rag", "research", "mixed")
        for in_system in (6, 30, 100, 300)
    ),
    *(
        Row(workload=workload, fleet="hetero1", load=0.85, slo_scale=scale)
        for workload in ("text2sql", "mixed")
        for scale in (2.0, 3.0, 6.0, 8.0)
    ),
)
