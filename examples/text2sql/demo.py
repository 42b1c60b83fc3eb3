"""The demo: the agent under load on four unequal backends, sent directly and then through agentsched.

The backends are fakes on loopback in a process of their own, as fast as two A100, an A6000 and an L40S, with time
running faster than on the wall. Each way starts on fresh ones and gets the same questions at the same times.
Run it with `make demo` or `python -m examples.text2sql.demo`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import httpx2
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentsched import Backend, Scheduler

from . import bird
from .agent import build
from .balance import Balancer, LeastOutstanding, RoundRobin, Rule
from .bird import MeasuredExecutor
from .load import Arrivals, Summary, offer
from .run import Query

MODEL = "scripted"
RESPONDER = "examples.text2sql.script:reply_chess"
TOO_LATE = 0.05
"""Share by which the fakes may lag behind their clock before the figures are in doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How hard the fleet is driven, in model seconds."""

    queries: int
    per_second: float
    slo_s: float
    limit: int
    scale: float
    seed: int


@dataclass(frozen=True, slots=True)
class Served:
    """A fake backend on loopback."""

    name: str
    base_url: str


Connection = contextlib.AbstractAsyncContextManager[tuple[ChatOpenAI, Query]]
"""A model to call while it is open, and what opens a query."""


@dataclass(slots=True)
class Way:
    """One way of getting calls to the backends."""

    name: str
    connect: Callable[[Sequence[Served], Load], Connection]


@contextlib.asynccontextmanager
async def fakes(scale: float) -> AsyncIterator[list[Served]]:
    """Start four fake backends in a process of their own."""
    command = ["-m", "agentsched.testing.server", "--fleet", "hetero1", "--port", "0", "--model", MODEL]
    command += ["--time-scale", str(scale), "--responder", RESPONDER]
    server = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        assert server.stdout
        line = await asyncio.wait_for(server.stdout.readline(), timeout=30)
        if not line:
            raise SystemExit("the fake backends did not start; their message is above")
        yield [Served(found["name"], found["base_url"]) for found in json.loads(line)["backends"]]
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


@contextlib.asynccontextmanager
async def _direct(rule: Rule, served: Sequence[Served]) -> AsyncIterator[tuple[ChatOpenAI, Query]]:
    limits = httpx2.Limits(max_connections=None)
    balancer = Balancer([one.base_url for one in served], rule, httpx2.AsyncHTTPTransport(limits=limits))
    async with httpx2.AsyncClient(transport=balancer) as http:
        base_url = "http://direct.invalid/v1"
        yield (
            ChatOpenAI(model=MODEL, api_key=SecretStr("none"), base_url=base_url, http_async_client=http),
            contextlib.nullcontext,
        )


def round_robin(served: Sequence[Served], _: Load) -> Connection:
    return _direct(RoundRobin(len(served)), served)


def least_outstanding(served: Sequence[Served], _: Load) -> Connection:
    return _direct(LeastOutstanding(len(served)), served)


@contextlib.asynccontextmanager
async def scheduled(served: Sequence[Served], load: Load) -> AsyncIterator[tuple[ChatOpenAI, Query]]:
    backends = [Backend(one.base_url, name=one.name, max_concurrency=load.limit) for one in served]
    async with Scheduler(backends) as scheduler:
        llm = ChatOpenAI(model=MODEL, **scheduler.client_kwargs())
        yield llm, lambda: scheduler.query("text2sql", slo_s=load.slo_s / load.scale)


WAYS = [
    Way("direct, round robin", round_robin),
    Way("direct, least outstanding", least_outstanding),
    Way("agentsched", scheduled),
]


async def run(way: Way, load: Load) -> tuple[Summary, float]:
    """Return what a way comes to, and the share by which the fakes lagged."""
    questions = bird.load()
    executor = MeasuredExecutor(questions)
    arrivals = Arrivals.poisson(questions, count=load.queries, per_second=load.per_second, seed=load.seed)
    async with fakes(load.scale) as served:
        async with way.connect(served, load) as (llm, query):
            agent = build(llm, executor, candidates=2)
            show = Progress(way.name)
            results = await offer(agent, arrivals, executor, query, scale=load.scale, progress=show)
        return Summary.of(way.name, results, slo_s=load.slo_s, scale=load.scale), await lag(served)


async def lag(served: Sequence[Served]) -> float:
    """Return how late the fakes ended their calls, as a share of the calls' time."""
    late = planned = 0.0
    async with httpx2.AsyncClient() as http:
        for one in served:
            times = (await http.get(one.base_url.removesuffix("/v1") + "/fake/lag")).json()
            late += times["late_s"]
            planned += times["planned_s"]
    return late / planned if planned else 0.0


class Progress:
    """A line that counts up; one line per tenth where nobody watches."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._live = sys.stdout.isatty()
        self._shown = -1

    def __call__(self, done: int, of: int) -> None:
        step = done if self._live else done * 10 // of
        if step == self._shown:
            return
        self._shown = step
        bar = "#" * (done * 30 // of)
        end = "\r" if self._live and done < of else "\n"
        print(f"  {self._name:<26} [{bar:<30}] {done:>3}/{of}", end=end, flush=True)


def table(summaries: Sequence[Summary]) -> str:
    """Lay the ways side by side."""
    head = f"{'':<26}{'queries':>8}{'calls':>7}{'lost':>6}{'mean s':>9}{'P95 s':>8}{'P99 s':>8}{'in SLO':>9}"
    rows = [
        f"{s.name:<26}{s.done:>8}{s.calls:>7}{s.lost:>6}{s.mean_s:>9.1f}{s.p95_s:>8.1f}{s.p99_s:>8.1f}"
        f"{s.within_slo:>9.0%}"
        for s in summaries
    ]
    return "\n".join([head, *rows])


def parse(arguments: Sequence[str] | None) -> Load:
    parser = argparse.ArgumentParser(prog="python -m examples.text2sql.demo", description=__doc__)
    parser.add_argument("--queries", type=int, default=100, help="questions asked")
    parser.add_argument("--rate", type=float, default=0.35, help="questions per model second")
    parser.add_argument("--slo", type=float, default=30.0, help="model seconds wished for per question")
    parser.add_argument("--limit", type=int, default=16, help="calls at once per backend, when scheduled")
    parser.add_argument("--time-scale", type=float, default=12.0, help="model seconds per second")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    options = parser.parse_args(arguments)
    if min(options.queries, options.rate, options.slo, options.limit, options.time_scale) <= 0:
        parser.error("all numbers must be above 0")
    return Load(
        queries=options.queries,
        per_second=options.rate,
        slo_s=options.slo,
        limit=options.limit,
        scale=options.time_scale,
        seed=options.seed,
    )


async def demo(load: Load) -> int:
    start = time.monotonic()
    print(
        f"Text-to-SQL agent, {load.queries} BIRD questions, {load.per_second:g} a second, on 2 x A100 + A6000 + L40S"
        f" (fakes; 1 s here is {load.scale:g} s there). SLO {load.slo_s:g} s. Seed {load.seed}.\n"
    )
    summaries: list[Summary] = []
    worst = 0.0
    for way in WAYS:
        summary, late = await run(way, load)
        summaries.append(summary)
        worst = max(worst, late)
    best, ours = min(summaries[:-1], key=lambda summary: summary.p95_s), summaries[-1]
    print(f"\n{table(summaries)}\n")
    print(
        f"against {best.name}: mean x{best.mean_s / ours.mean_s:.2f}, P95 x{best.p95_s / ours.p95_s:.2f} better; "
        f"{ours.lost} calls lost. Took {time.monotonic() - start:.0f} s."
    )
    if worst > TOO_LATE:
        print(
            f"The fakes lagged {worst:.0%} behind their clock: this machine was too busy for these figures."
        )
    return int(any(summary.lost for summary in summaries))


def main(arguments: Sequence[str] | None = None) -> int:
    return asyncio.run(demo(parse(arguments)))


if __name__ == "__main__":
    sys.exit(main())
