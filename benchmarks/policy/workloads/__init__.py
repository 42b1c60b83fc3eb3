"""Workloads: endless streams of queries, each made from measured lengths and structure."""

from collections.abc import Callable, Iterator, Mapping
from random import Random

from agentsched.sim.plan import Plan
from benchmarks.policy.workloads.chat import chat
from benchmarks.policy.workloads.mixed import mixed, tenants
from benchmarks.policy.workloads.rag import rag
from benchmarks.policy.workloads.react import react
from benchmarks.policy.workloads.research import research
from benchmarks.policy.workloads.rsl_sql import rsl_sql
from benchmarks.policy.workloads.summarisation import summarisation
from benchmarks.policy.workloads.swe import swe
from benchmarks.policy.workloads.text2sql import text2sql
from benchmarks.policy.workloads.tot import tot

WORKLOADS: Mapping[str, Callable[[Random], Iterator[Plan]]] = {
    "text2sql": text2sql,
    "rsl_sql": rsl_sql,
    "rag": rag,
    "research": research,
    "react": react,
    "tot": tot,
    "swe": swe,
    "chat": chat,
    "summarisation": summarisation,
    "mixed": mixed,
    "tenants": tenants,
}
