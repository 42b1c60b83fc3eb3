"""A few small rows with everybody in them, whose figures are known exactly: any change of behaviour shows.

Everybody has the first of their dials, not the best: behind narrow limits every order has something to order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.peers import PEERS
from benchmarks.policy.pool import Figures
from benchmarks.policy.row import CORE_WORKLOADS, Row
from benchmarks.policy.task import Task, tasks_at
from benchmarks.policy.tuned import rate_of, tuned

FILE = Path(__file__).with_name("smoke.json")
SEED = 1
ROWS = tuple(
    Row(workload=workload, fleet=fleet, load=load, warm_up=10, queries=30)
    for workload, fleet, load in zip(
        CORE_WORKLOADS, ("hetero1", "hetero2", "hetero1", "hetero1"), (0.85, 1.3, 0.3, 0.85), strict=True
    )
)


def tasks() -> list[Task]:
    """Return what is played."""
    found: list[Task] = []
    for row in ROWS:
        kept = tuned(row.site)
        settings = [(contender.name, contender.dials[0]) for contender in (*PEERS, DEFAULT)]
        settings += [(name, kept.ceiling(name, row.load)["p95_s"]) for name in kept.ceilings]
        found += tasks_at(row, rate_of(row), settings, (SEED,))
    return found


def play() -> dict[str, Figures]:
    """Return the figures of each task, by row and contender."""
    return {f"{task.row.name}: {task.contender}": task.play() for task in tasks()}


def known() -> Mapping[str, Figures]:
    """Return the figures as they were recorded."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def record() -> None:
    """Record the figures anew."""
    FILE.write_text(json.dumps(play(), indent=1) + "\n", encoding="utf-8")
