"""The demo: its balancers balance, its arrivals repeat, and the whole of it runs."""

import asyncio
import contextlib
import re

import httpx2
import pytest
from examples.text2sql import bird, demo, script
from examples.text2sql.agent import build
from examples.text2sql.balance import Balancer, LeastOutstanding, RoundRobin, Rule
from examples.text2sql.load import Arrivals, Summary, offer
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import SecretStr

from agentsched import Backend, Scheduler
from agentsched.testing import FakeFleet, VirtualClock

MESSAGES = [{"role": "user", "content": "hello"}]


def direct(fleet: FakeFleet, rule: Rule) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=Balancer(fleet.base_urls, rule, fleet.transport("httpx2")))


def test_round_robin_gives_each_backend_its_turn() -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(3)

    async def main() -> None:
        async with direct(fleet, RoundRobin(3)) as http:
            client = AsyncOpenAI(api_key="none", base_url="http://direct.invalid/v1", http_client=http)
            for _ in range(9):
                await client.chat.completions.create(model="fake-model", messages=MESSAGES)

    clock.run(main())
    assert [fake.log.received for fake in fleet] == [3, 3, 3]


def test_least_outstanding_avoids_a_backend_that_does_not_answer() -> None:
    rule = LeastOutstanding(3)
    assert [rule.pick([2, 0, 1]) for _ in range(3)] == [1, 1, 1]
    assert sorted(rule.pick([1, 1, 1]) for _ in range(3)) == [0, 1, 2]


def test_a_call_is_outstanding_until_its_stream_is_closed() -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(2)

    async def main() -> list[int]:
        balancer = Balancer(fleet.base_urls, LeastOutstanding(2), fleet.transport("httpx2"))
        async with httpx2.AsyncClient(transport=balancer) as http:
            client = AsyncOpenAI(api_key="none", base_url="http://direct.invalid/v1", http_client=http)
            stream = await client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
            counts = [sum(balancer.outstanding)]
            async with stream:
                async for _ in stream:
                    break
            return [*counts, sum(balancer.outstanding)]

    assert clock.run(main()) == [1, 0]


def test_arrivals_are_the_same_for_the_same_seed() -> None:
    questions = bird.load()
    one, same, other = (
        Arrivals.poisson(questions, count=20, per_second=0.5, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other
    assert 20 < sum(one.gaps_s) < 80


@pytest.mark.parametrize("scheduled", [False, True])
def test_all_questions_that_arrive_are_answered(scheduled: bool) -> None:
    clock = VirtualClock()
    fleet = FakeFleet.gpus("hetero1", models=(demo.MODEL,), responder=script.reply_chess)
    questions = bird.load()
    executor = bird.MeasuredExecutor(questions)
    arrivals = Arrivals.poisson(questions, count=8, per_second=0.5, seed=3)
    seen: list[int] = []

    async def main() -> Summary:
        scheduler = Scheduler(
            [Backend(fake.base_url, max_concurrency=4) for fake in fleet],
            upstream=fleet.transport(),
            clock=clock,
        )
        async with scheduler, direct(fleet, RoundRobin(4)) as http:
            if scheduled:
                llm = ChatOpenAI(model=demo.MODEL, **scheduler.client_kwargs())
            else:
                key, url = SecretStr("none"), "http://direct.invalid/v1"
                llm = ChatOpenAI(model=demo.MODEL, api_key=key, base_url=url, http_async_client=http)
            results = await offer(
                build(llm, executor),
                arrivals,
                executor,
                contextlib.nullcontext,
                scale=1.0,
                progress=lambda done, _: seen.append(done),
            )
        return Summary.of("way", results, slo_s=60.0, scale=1.0)

    summary = clock.run(main())
    assert seen == list(range(1, 9))
    assert (summary.done, summary.lost) == (8, 0)
    assert 0 < summary.mean_s <= summary.p95_s <= summary.p99_s
    assert sum(fake.log.received for fake in fleet) >= summary.calls >= 8 * 3


def test_a_lost_query_is_counted_and_not_averaged() -> None:
    clock = VirtualClock()
    questions = bird.load()
    executor = bird.MeasuredExecutor(questions)
    arrivals = Arrivals.poisson(questions, count=3, per_second=1.0, seed=0)

    async def main() -> Summary:
        async with Scheduler(
            [Backend("http://nowhere.invalid/v1", models=[demo.MODEL])], clock=clock
        ) as scheduler:
            await scheduler.aclose()
            llm = ChatOpenAI(model=demo.MODEL, **scheduler.client_kwargs())
            results = await offer(
                build(llm, executor),
                arrivals,
                executor,
                contextlib.nullcontext,
                scale=1.0,
                progress=lambda *_: None,
            )
        return Summary.of("way", results, slo_s=60.0, scale=1.0)

    summary = clock.run(main())
    assert (summary.done, summary.lost, summary.within_slo) == (0, 3, 0.0)


async def test_the_demo_runs(capsys: pytest.CaptureFixture[str]) -> None:
    load = demo.parse(["--queries", "4", "--rate", "2", "--time-scale", "40"])
    assert await asyncio.wait_for(demo.demo(load), timeout=100) == 0
    printed = capsys.readouterr().out
    for way in demo.WAYS:
        assert re.search(rf"^{way.name} +4 +\d+ +0 ", printed, re.MULTILINE), printed


def test_the_table_lays_the_ways_side_by_side() -> None:
    summary = Summary(
        name="way", done=9, calls=30, lost=1, mean_s=10.04, p95_s=20.0, p99_s=30.0, within_slo=0.456
    )
    lines = demo.table([summary, summary]).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["way", "9", "30", "1", "10.0", "20.0", "30.0", "46%"]


@pytest.mark.parametrize(("late", "told"), [(0.049, False), (0.051, True)])
async def test_figures_of_fakes_that_lagged_are_called_in_question(
    late: float, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(way: demo.Way, _load: demo.Load) -> tuple[Summary, float]:
        summary = Summary(
            name=way.name, done=1, calls=4, lost=0, mean_s=1.0, p95_s=1.0, p99_s=1.0, within_slo=1.0
        )
        return summary, late if way is demo.WAYS[0] else 0.0

    monkeypatch.setattr(demo, "run", run)
    assert await demo.demo(demo.parse([])) == 0
    assert ("The fakes lagged 5% behind their clock" in capsys.readouterr().out) == told


async def test_a_lost_call_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(way: demo.Way, _load: demo.Load) -> tuple[Summary, float]:
        summary = Summary(
            name=way.name, done=1, calls=4, lost=1, mean_s=1.0, p95_s=1.0, p99_s=1.0, within_slo=1.0
        )
        return summary, 0.0

    monkeypatch.setattr(demo, "run", run)
    assert await demo.demo(demo.parse([])) == 1
