"""A fleet that changes in virtual time, and does the same as one that changes under the runtime."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from agentsched import Backend, Policy, Scheduler, UsageError
from agentsched.engine import Journal, replay
from agentsched.engine.commands import Resolve, Start
from agentsched.model import Outcome, Request
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer, TimedServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from agentsched.testing import FakeBackend, FakeFleet, VirtualClock
from agentsched.testing.tokens import count, render_chat
from agentsched.transport.partial import Way
from tests.doubles import MODEL, assert_quiet, outcome

NAMES = "abcdef"
SEEDS = range(20)


def backend(name: str, limit: int | None = 1) -> Backend:
    return Backend(f"http://{name}.test/v1", name=name, models=[MODEL], max_concurrency=limit)


class Run:
    """A loop over backends that take one call at a time, for as long as it says; it remembers what happened."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.started: list[tuple[float, str, str]] = []
        self.ended: dict[str, tuple[float, Outcome]] = {}
        fleet = [(backend(name), TimedServer()) for name in names]
        self.loop = Loop(fleet, policy=Policy.fcfs(), on_start=self.on_start, on_end=self.on_end, **options)

    def on_start(self, now: float, start: Start) -> None:
        self.started.append((now, start.request_id, start.backend))

    def on_end(self, now: float, end: Resolve) -> None:
        assert end.request_id not in self.ended
        self.ended[end.request_id] = now, end.outcome

    def submit(self, at: float, request_id: str, service_s: float) -> None:
        node = Node(input_tokens=10, output_tokens=1, service_s=service_s)
        request = Request(id=request_id, model=MODEL, input_tokens=10)
        self.loop.at(at, lambda _: self.loop.submit(request, node))


def test_one_that_joins_takes_what_waits() -> None:
    run = Run("a")
    for number in range(3):
        run.submit(0.0, f"r{number}", 10.0)
    run.loop.at(4.0, lambda _: run.loop.join(backend("b"), TimedServer()))
    run.loop.run()
    assert run.started == [(0.0, "r0", "a"), (4.0, "r1", "b"), (10.0, "r2", "a")]
    assert {request_id: at for request_id, (at, _) in run.ended.items()} == {
        "r0": 10.0,
        "r1": 14.0,
        "r2": 20.0,
    }


@pytest.mark.parametrize("drain", [True, False])
def test_one_that_leaves_ends_its_calls_or_hands_them_on(drain: bool) -> None:
    run = Run("a", "b")
    run.submit(0.0, "r0", 10.0)
    run.submit(4.5, "r1", 1.0)
    run.loop.at(4.0, lambda _: run.loop.leave("a", drain=drain))
    run.loop.run()
    assert ((4.0, "r0", "b") in run.started) is not drain
    assert run.ended["r0"] == ((10.0 if drain else 14.0), Outcome.COMPLETED)
    assert run.ended["r1"][0] == (5.5 if drain else 15.0)
    assert list(run.loop.engine.backends) == ["b"]


def test_one_that_comes_back_is_a_new_one() -> None:
    run = Run("a")
    run.submit(0.0, "r0", 10.0)
    run.submit(5.0, "r1", 2.0)
    run.loop.at(4.0, lambda _: run.loop.leave("a", drain=False))
    run.loop.at(4.5, lambda _: run.loop.join(backend("a"), TimedServer()))
    run.loop.run()
    assert run.ended == {"r0": (4.0, Outcome.FAILED), "r1": (7.0, Outcome.COMPLETED)}


def test_what_cannot_be_changes_nothing() -> None:
    run = Run("a")
    with pytest.raises(UsageError, match="the name 'a' already"):
        run.loop.join(backend("a"), TimedServer())
    with pytest.raises(UsageError, match="the fleet has no backend 'z'"):
        run.loop.leave("z")
    run.submit(0.0, "r0", 1.0)
    run.loop.run()
    assert run.ended["r0"] == (1.0, Outcome.COMPLETED)


def test_it_is_recorded() -> None:
    lines: list[str] = []
    journal = Journal(lines.append, [backend("a")], policy=Policy.fcfs(), max_queued=10**9)
    run = Run("a", journal=journal)
    for number in range(5):
        run.submit(number / 2, f"r{number}", 3.0)
    run.loop.at(2.0, lambda _: run.loop.join(backend("b"), TimedServer()))
    run.loop.at(4.0, lambda _: run.loop.leave("a", drain=False))
    run.loop.run()
    starts = [command for _, commands in replay(lines, Policy.fcfs()) for command in commands]
    assert [start.backend for start in starts if isinstance(start, Start)] == [at for _, _, at in run.started]


# -- agreement with the runtime ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happens to the fleet."""

    at: float
    what: str
    name: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call."""

    at: float
    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Calls, backends, and what becomes of those; `a` and `b` are there from the start."""

    calls: list[Asked]
    specs: dict[str, BackendSpec]
    changes: list[Change]


def scenario(seed: int) -> Scenario:
    dice = random.Random(seed)
    specs: dict[str, BackendSpec] = {}
    for name in NAMES:
        speed = Speed(prefill_s=dice.uniform(1e-4, 1e-3), step_s=dice.uniform(0.01, 0.05), entry_s=0.002)
        specs[name] = BackendSpec(speed=speed, prefix_cache=False)
    now, calls = 0.0, list[Asked]()
    for number in range(40):
        now += dice.expovariate(4.0)
        text = f"{number} " + "word " * dice.randint(1, 60)
        calls.append(Asked(at=now, text=text, output_tokens=dice.randint(1, 200)))
    changes: list[Change] = []
    there, fresh, at = ["a", "b"], list("cdef"), 0.0
    while fresh or len(there) > 1:
        at += dice.uniform(0.3, 1.5)
        if fresh and (len(there) == 1 or dice.random() < 0.6):
            there.append(fresh.pop(0))
            what, name = "join", there[-1]
        else:
            name = there.pop(dice.randrange(len(there)))
            what = dice.choice(["drain", "remove"])
        changes.append(Change(at=at, what=what, name=name, limit=dice.randint(1, 3)))
    return Scenario(calls=calls, specs=specs, changes=changes)


def messages(call: Asked) -> list[dict[str, str]]:
    return [{"role": "user", "content": call.text}]


Started = tuple[float, str, int]
"""When, where, which call."""


def simulated(asked: Scenario) -> list[Started]:
    started: list[Started] = []

    def on_start(now: float, start: Start) -> None:
        started.append((now, start.backend, int(start.request_id)))

    servers = {name: BatchServer(spec) for name, spec in asked.specs.items()}
    fleet = [(backend(name, 2), servers[name]) for name in "ab"]
    loop = Loop(fleet, policy=Policy.fcfs(), on_start=on_start)

    def change(one: Change) -> None:
        if one.what == "join":
            loop.join(backend(one.name, one.limit), servers[one.name])
        else:
            loop.leave(one.name, drain=one.what == "drain")
        loop.engine.check()

    for number, call in enumerate(asked.calls):
        true = count(render_chat(messages(call), generate=True))
        node = Node(input_tokens=true, output_tokens=call.output_tokens)
        request = Request(id=str(number), model=MODEL, input_tokens=len(call.text) // 4, workflow="q")
        loop.at(call.at, lambda _, request=request, node=node: loop.submit(request, node))
    for one in asked.changes:
        loop.at(one.at, lambda _, one=one: change(one))
    loop.run()
    assert not loop.engine.requests
    return started


def ran(asked: Scenario) -> list[Started]:
    fleet = FakeFleet([FakeBackend(name, spec=spec) for name, spec in asked.specs.items()])
    clock = VirtualClock()
    scheduler = Scheduler(
        [backend(name, 2) for name in "ab"], policy=Policy.fcfs(), upstream=fleet.transport(), clock=clock
    )
    client = scheduler.openai()
    client._platform = "Linux"

    async def make(call: Asked) -> None:
        await asyncio.sleep(call.at)
        async with scheduler.query("q"):
            await client.chat.completions.create(
                model=MODEL,
                messages=messages(call),  # type: ignore[arg-type]
                extra_headers={"x-fake-output-tokens": str(call.output_tokens)},
            )

    async def change(one: Change) -> None:
        await asyncio.sleep(one.at)
        if one.what == "join":
            scheduler.fleet.add(backend(one.name, one.limit))
        elif one.what == "drain":
            await scheduler.fleet.drain(one.name)
        else:
            scheduler.fleet.remove(one.name)

    async def main() -> None:
        works = [*map(make, asked.calls), *map(change, asked.changes)]
        assert set(await asyncio.gather(*map(outcome, works))) == {None}
        await assert_quiet(scheduler)

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
    assert [start[1:] for start in found] == [start[1:] for start in expected]
    assert [at for at, _, _ in found] == pytest.approx([at for at, _, _ in expected], abs=1e-9)


def test_the_scenarios_have_everything_in_them() -> None:
    moved, places, kinds = 0, set[str](), list[str]()
    for seed in SEEDS:
        asked = scenario(seed)
        started = simulated(asked)
        moved += len(started) - len(asked.calls)
        places |= {name for _, name, _ in started}
        kinds += [one.what for one in asked.changes]
    assert moved > 30
    assert places == set(NAMES)
    assert min(map(kinds.count, ("join", "drain", "remove"))) > 20
