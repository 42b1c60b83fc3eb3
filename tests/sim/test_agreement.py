"""The same scenario through the simulator and through the runtime starts the same calls, there, then."""

import asyncio
import random
from dataclasses import dataclass

import pytest
from openai import OpenAIError

from agentsched import Backend, Policy, Scheduler
from agentsched.engine.commands import Start
from agentsched.model import FailureKind, Request
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BreakingServer, FailingServer, Server
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from agentsched.testing import FakeBackend, FakeFleet, VirtualClock, faults
from agentsched.testing.tokens import count, render_chat
from agentsched.transport.partial import Way
from tests.doubles import MODEL

SEEDS = range(25)
Started = tuple[float, str, int]
"""When, where, which call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One call of a scenario."""

    at: float
    text: str
    output_tokens: int
    priority: int
    cancel_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Calls, a fleet, and which attempts at each backend fail, or break off after so many tokens."""

    calls: list[Asked]
    fleet: dict[str, tuple[BackendSpec, int]]
    failing: dict[str, tuple[int, ...]]
    breaking: dict[str, dict[int, int]]


def scenario(seed: int) -> Scenario:
    dice = random.Random(seed)
    fleet: dict[str, tuple[BackendSpec, int]] = {}
    for name in ("a", "b", "c"):
        speed = Speed(prefill_s=dice.uniform(1e-4, 1e-3), step_s=dice.uniform(0.01, 0.05), entry_s=0.002)
        spec = BackendSpec(speed=speed, prefix_cache=False, kv_blocks=dice.choice([60, 8192]))
        fleet[name] = (spec, dice.randint(1, 3))
    now, calls = 0.0, list[Asked]()
    for number in range(30):
        now += dice.expovariate(4.0)
        leaves = now + dice.expovariate(1.0) if dice.random() < 0.2 else None
        text = f"{number} " + "word " * dice.randint(1, 60)
        calls.append(
            Asked(
                at=now,
                text=text,
                output_tokens=dice.randint(1, 250),
                priority=dice.choice([0, 0, 1]),
                cancel_at=leaves,
            )
        )
    failing = {name: tuple(n for n in range(1, 20) if dice.random() < 0.1) for name in fleet}
    breaking = {
        name: {
            n: dice.randint(1, 100) for n in range(1, 20) if n not in failing[name] and dice.random() < 0.1
        }
        for name in fleet
    }
    return Scenario(calls=calls, fleet=fleet, failing=failing, breaking=breaking)


def backends(asked: Scenario) -> list[Backend]:
    return [
        Backend(f"http://{name}.test/v1", name=name, models=[MODEL], max_concurrency=limit)
        for name, (_, limit) in asked.fleet.items()
    ]


def messages(call: Asked) -> list[dict[str, str]]:
    return [{"role": "user", "content": call.text}]


def simulated(asked: Scenario) -> list[Started]:
    started: list[Started] = []

    def on_start(now: float, start: Start) -> None:
        started.append((now, start.backend, int(start.request_id)))

    def server(name: str, spec: BackendSpec) -> Server:
        failing, breaking = asked.failing[name], asked.breaking[name]
        whole = [
            number for number in range(1, 1_000) if number not in failing
        ]  # those that get through to it
        inner = BreakingServer(spec, lambda n: breaking.get(whole[n - 1]))
        return FailingServer(inner, lambda n: FailureKind.ERROR if n in failing else None)

    servers = [server(name, spec) for name, (spec, _) in asked.fleet.items()]
    loop = Loop(list(zip(backends(asked), servers, strict=True)), policy=Policy.fcfs(), on_start=on_start)
    for number, call in enumerate(asked.calls):
        true = count(render_chat(messages(call), generate=True))
        node = Node(input_tokens=true, output_tokens=call.output_tokens)
        request = Request(
            id=str(number),
            model=MODEL,
            input_tokens=len(call.text) // 4,
            workflow="q",
            priority=call.priority,
        )
        loop.at(call.at, lambda _, request=request, node=node: loop.submit(request, node))
        if call.cancel_at is not None:
            loop.at(call.cancel_at, lambda _, number=number: loop.cancel(str(number)))
    loop.run()
    assert not loop.engine.requests
    return started


def ran(asked: Scenario) -> list[Started]:
    fakes = [
        FakeBackend(name, base_url=f"http://{name}.test/v1", spec=spec)
        for name, (spec, _) in asked.fleet.items()
    ]
    for fake in fakes:
        if asked.failing[fake.name]:
            fake.fail(faults.Status(code=500), nth=asked.failing[fake.name])
        for number, kept in asked.breaking[fake.name].items():
            fake.fail(faults.Cut(after_events=1 + kept), nth=number)
    clock, fleet = VirtualClock(), FakeFleet(fakes)
    scheduler = Scheduler(backends(asked), policy=Policy.fcfs(), upstream=fleet.transport(), clock=clock)
    client = scheduler.openai()
    client._platform = "Linux"

    async def make(call: Asked) -> None:
        await asyncio.sleep(call.at)
        async with scheduler.query("q", priority=call.priority):
            try:
                await client.chat.completions.create(
                    model=MODEL,
                    messages=messages(call),  # type: ignore[arg-type]
                    extra_headers={"x-fake-output-tokens": str(call.output_tokens)},
                )
            except OpenAIError:
                pass

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(make(call)) for call in asked.calls]
        for task, call in zip(tasks, asked.calls, strict=True):
            if call.cancel_at is not None:
                loop.call_at(call.cancel_at, task.cancel)
        await asyncio.wait(tasks)

    clock.run(main())
    rows = [(row.at, name, int(row.body["messages"][0]["content"].split()[0])) for name, row in fleet.calls]
    return sorted(rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_calls_start_there_and_then(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(*_: object) -> Way:
        return Way.MESSAGE

    monkeypatch.setattr("agentsched.runtime.abilities.way_of", known)  # the loop's backends are never asked
    asked = scenario(seed)
    expected, found = ran(asked), sorted(simulated(asked))
    assert [(backend, call) for _, backend, call in found] == [
        (backend, call) for _, backend, call in expected
    ]
    assert [at for at, _, _ in found] == pytest.approx([at for at, _, _ in expected], abs=1e-9)


def test_the_scenarios_have_everything_in_them() -> None:
    failed = broken = cancelled = retried = waited = 0
    for seed in SEEDS:
        asked = scenario(seed)
        started = simulated(asked)
        calls = [call for _, _, call in started]
        retried += len(calls) - len(set(calls))
        waited += sum(at > asked.calls[call].at + 1e-9 for at, _, call in started)
        failed += sum(map(len, asked.failing.values()))
        broken += sum(map(len, asked.breaking.values()))
        cancelled += sum(call.cancel_at is not None for call in asked.calls)
    assert min(failed, broken, cancelled, retried, waited) > 30
