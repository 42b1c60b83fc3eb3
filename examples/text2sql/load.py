"""Put the agent under load: questions arrive whether or not earlier ones are answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from .bird import BirdQuestion
from .executor import Executor
from .run import Agent, Query, Result, ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Questions and when they come, in model seconds: Poisson, the same for the same seed."""

    questions: Sequence[BirdQuestion]
    gaps_s: Sequence[float]

    @classmethod
    def poisson(
        cls, questions: Sequence[BirdQuestion], *, count: int, per_second: float, seed: int
    ) -> Arrivals:
        dice = random.Random(seed)
        return cls(
            questions=dice.sample(list(questions), count),
            gaps_s=[dice.expovariate(per_second) for _ in range(count)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a run came to, in model seconds."""

    name: str
    done: int
    calls: int
    lost: int
    mean_s: float
    p95_s: float
    p99_s: float
    within_slo: float

    @classmethod
    def of(cls, name: str, results: Sequence[Result], *, slo_s: float, scale: float) -> Summary:
        seconds = sorted(result.seconds * scale for result in results if result.answer)
        return cls(
            name=name,
            done=len(seconds),
            calls=sum(result.calls for result in results),
            lost=sum(result.error is not None for result in results),
            mean_s=fmean(seconds) if seconds else float("nan"),
            p95_s=_quantile(seconds, 0.95),
            p99_s=_quantile(seconds, 0.99),
            within_slo=sum(taken <= slo_s for taken in seconds) / len(results),
        )


async def offer(
    agent: Agent,
    arrivals: Arrivals,
    executor: Executor,
    query: Query,
    *,
    scale: float,
    progress: Callable[[int, int], None],
) -> list[Result]:
    """Let the questions arrive, `scale` model seconds to one of the loop, and wait for all answers."""
    results: list[Result] = []
    count = len(arrivals.questions)

    async def one(question: BirdQuestion) -> None:
        results.append(await ask(agent, question, executor, query))
        progress(len(results), count)

    loop = asyncio.get_running_loop()
    due = loop.time()
    async with asyncio.TaskGroup() as group:
        for question, gap_s in zip(arrivals.questions, arrivals.gaps_s, strict=True):
            group.create_task(one(question))
            due += gap_s / scale
            await asyncio.sleep(due - loop.time())
    return results


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
