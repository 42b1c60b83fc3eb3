"""Several tenants on one fleet: of different workloads, or of one with very different demands."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from random import Random

from agentsched.sim.plan import Plan
from benchmarks.policy.draws import Odds
from benchmarks.policy.workloads.chat import chat
from benchmarks.policy.workloads.rag import rag
from benchmarks.policy.workloads.react import react
from benchmarks.policy.workloads.summarisation import summarisation
from benchmarks.policy.workloads.text2sql import text2sql

Workload = Callable[[Random], Iterator[Plan]]

MIX: Mapping[str, tuple[Workload, float]] = {
    "text2sql": (text2sql, 1.0),
    "rag": (rag, 2.0),
    "react": (react, 5.0),
    "chat": (chat, 5.0),
    "summarisation": (summarisation, 3.0),
}
"""Weights with which each tenant brings about as much work as any other.

A query is worth about 5.0, 2.3, 0.7, 1.0 and 1.5 s of an A100 as in `agentsched.sim.gpus`, if batches hold eight
and what was in earlier prompts is still cached.
"""

TENANTS: Mapping[str, tuple[Workload, float]] = {
    "bulk": (text2sql, 6.0),
    "small-1": (text2sql, 1.0),
    "small-2": (text2sql, 1.0),
    "small-3": (text2sql, 1.0),
}
"""One tenant asks twice as much as all others together."""


def mixed(dice: Random) -> Iterator[Plan]:
    """Take the next query from a tenant of `MIX`, whose name is its workload's."""
    return _of(MIX, dice)


def tenants(dice: Random) -> Iterator[Plan]:
    """Take the next query from a tenant of `TENANTS`."""
    return _of(TENANTS, dice)


def _of(mix: Mapping[str, tuple[Workload, float]], dice: Random) -> Iterator[Plan]:
    streams = [(name, workload(Random(dice.getrandbits(64)))) for name, (workload, _) in mix.items()]
    odds = Odds(weight for _, weight in mix.values())
    while True:
        name, stream = streams[odds.draw(dice)]
        yield replace(next(stream), tenant=name)
