"""A fleet that is changed from threads while calls run on several event loops, in real time."""

import asyncio
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import openai
import pytest

from agentsched import Backend, BackendUnavailable, Scheduler
from agentsched.testing import FakeBackend, FakeFleet
from tests.doubles import ASK, MODEL, Script, assert_idle, delta, events, said, upstream
from tests.runtime.test_fleet import answer_to, ask, backend, echoed, read, text_of
from tests.runtime.test_loops import Thread, served, until

SLOW = Script(before=[3_600.0])


@pytest.fixture
def loops() -> Iterator[list[Thread]]:
    made = [Thread() for _ in range(3)]
    yield made
    for loop in made:
        loop.end()


def fleet_of(*names: str) -> list[Backend]:
    return [Backend(f"http://{name}:1/v1", name=name, models=[MODEL], metrics=False) for name in names]


async def chat(scheduler: Scheduler) -> str:
    return text_of(await scheduler.openai().chat.completions.create(**ASK))


def by_host(**scripts: Script) -> Any:
    return lambda request: scripts[request.url.host]


def test_calls_of_all_loops_move_where_one_is_removed(stack: ModuleType, loops: list[Thread]) -> None:
    transport = upstream(stack, by_host(a=SLOW, b=said("hi")))
    scheduler = Scheduler(fleet_of("a"), upstream=transport)
    calls = [loop.begin(chat(scheduler)) for loop in loops for _ in range(4)]
    until(lambda: len(transport.seen.requests) == 12)
    scheduler.fleet.replace(*fleet_of("a"))
    until(lambda: len(transport.seen.requests) == 24)
    assert transport.seen.open == 12
    scheduler.fleet.add(*fleet_of("b"))
    scheduler.fleet.remove("a")
    assert [call.result(5) for call in calls] == ["hi"] * 12
    until(lambda: transport.seen.open == 0)
    scheduler.close()
    assert_idle(scheduler)


def test_draining_on_one_loop_waits_for_calls_of_others(stack: ModuleType, loops: list[Thread]) -> None:
    gate = threading.Event()

    async def opened() -> None:
        while not gate.is_set():
            await asyncio.sleep(0.001)  # the main thread opens it

    script = events(opened, delta("hi", role="assistant"), delta(finish="stop"))
    transport = upstream(stack, by_host(a=script, b=said("b")))
    scheduler = Scheduler(fleet_of("a"), upstream=transport)
    call = loops[0].begin(chat(scheduler))
    until(lambda: transport.seen.open == 1)
    drains = [loop.begin(scheduler.fleet.drain("a")) for loop in loops]
    until(lambda: len(scheduler.fleet._leaving.get("a", ())) == 3)
    scheduler.fleet.add(*fleet_of("b"))
    assert loops[1].run(chat(scheduler)) == "b"
    assert not any(drain.done() for drain in drains)
    gate.set()
    assert call.result(5) == "hi"
    for drain in drains:
        drain.result(5)
    assert scheduler.fleet.names == ("b",)
    scheduler.close()


def test_a_loop_that_closes_while_it_waits_for_a_draining_harms_nobody(
    stack: ModuleType, loops: list[Thread]
) -> None:
    transport = upstream(stack, SLOW)
    scheduler = Scheduler(fleet_of("a", "b"), upstream=transport)
    call = loops[0].begin(chat(scheduler))
    until(lambda: transport.seen.open == 1)
    loops[1].begin(scheduler.fleet.drain("a"))
    until(lambda: "a" in scheduler.fleet._leaving)
    loops[1].close()
    call.cancel()
    until(lambda: scheduler.fleet.names == ("b",))
    assert scheduler.fleet._leaving == {}
    scheduler.close()


def test_calls_of_a_loop_that_has_closed_are_not_moved(stack: ModuleType, loops: list[Thread]) -> None:
    transport = upstream(stack, SLOW)
    scheduler = Scheduler(fleet_of("a", "b"), upstream=transport)
    loops[0].begin(chat(scheduler))
    until(lambda: transport.seen.open == 1)
    loops[0].close()
    scheduler.fleet.remove("a")
    assert scheduler.snapshot().running == scheduler.snapshot().queued == 0
    assert scheduler.snapshot().backends[0].started == 0
    scheduler.close()


def test_a_call_that_waits_for_a_list_of_models_on_a_loop_that_has_closed_asks_nobody(
    stack: ModuleType, loops: list[Thread]
) -> None:
    transport = upstream(stack, SLOW)
    scheduler = Scheduler([Backend("http://a:1/v1", name="a", metrics=False)], upstream=transport)
    loops[0].begin(chat(scheduler))
    until(lambda: scheduler.snapshot().queued == 1)
    loops[0].close()
    scheduler.fleet.add(Backend("http://b:1/v1", name="b", metrics=False))
    assert scheduler.snapshot().queued == 0
    scheduler.fleet.remove("a")
    scheduler.fleet.remove("b")
    scheduler.close()


def test_sync_calls_move_too(stack: ModuleType) -> None:
    transport = upstream(stack, by_host(a=SLOW, b=said("hi")))
    scheduler = Scheduler(fleet_of("a"), upstream=transport)
    with ThreadPoolExecutor(4) as threads:
        client = scheduler.openai_sync()
        calls = [threads.submit(lambda: client.chat.completions.create(**ASK)) for _ in range(4)]
        until(lambda: transport.seen.open == 4)
        scheduler.fleet.add(*fleet_of("b"))
        scheduler.fleet.remove("a")
        assert [text_of(call.result(5)) for call in calls] == ["hi"] * 4
    scheduler.close()
    assert_idle(scheduler)


@pytest.mark.parametrize("ends", [True, False], ids=["whole", "failing"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_comes_after_a_call_was_moved_reaches_nobody(
    stack: ModuleType, loops: list[Thread], stream: bool, ends: bool
) -> None:
    """The loop is busy when its call is moved from another thread, and reads on before it hears of that."""
    busy, moved = threading.Event(), threading.Event()

    async def block() -> None:
        busy.set()
        moved.wait(5)

    rest = [delta(finish="stop")] if ends else [ValueError("broken")]
    late = events(block, delta("wrong", role="assistant"), *rest, done=ends)
    transport = upstream(stack, by_host(a=late, b=said("right")))
    scheduler = Scheduler(fleet_of("a", "b"), upstream=transport)

    async def call() -> str:
        answer: Any = await scheduler.openai().chat.completions.create(**{**ASK, "stream": stream})
        return await read(answer) if stream else text_of(answer)

    answer = loops[0].begin(call())
    assert busy.wait(5)
    scheduler.fleet.remove("a")
    moved.set()
    assert answer.result(5) == "right"
    until(lambda: transport.seen.open == 0)
    assert [view.failed for view in scheduler.snapshot().backends] == [0]
    assert scheduler._driver.complaints._failing == set()
    scheduler.close()
    assert_idle(scheduler)


# -- everything at once ------------------------------------------------------------------------------------

THREADS, CALLS = 3, 60


class Caller:
    """Makes calls on a loop of its own, half of them streamed; each must be answered right or end as it may."""

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self.scheduler = scheduler
        self.number = number
        self.answered = self.cut = 0

    async def main(self) -> None:
        client = self.scheduler.openai()
        await asyncio.gather(*(self.call(client, number) for number in range(CALLS)))

    async def call(self, client: openai.AsyncOpenAI, number: int) -> None:
        dice = random.Random(1_000 * self.number + number)
        await asyncio.sleep(dice.uniform(0, 0.5))
        tokens, text, seen = dice.randint(1, 80), f"{self.number}-{number}", ""
        headers, stream = {"x-fake-output-tokens": str(tokens)}, number % 2 == 0
        asked: Any = {**ASK, **ask(text), "extra_headers": headers, "stream": stream}
        try:
            answer = await client.chat.completions.create(**asked)
            if stream:
                async for chunk in answer:
                    seen += chunk.choices[0].delta.content or ""
            else:
                seen = text_of(answer)
            assert seen == answer_to(text, tokens)
            self.answered += 1
        except BackendUnavailable as error:
            assert stream
            assert error.partial_text == seen
            assert answer_to(text, tokens).startswith(seen)
            self.cut += 1


def change(scheduler: Scheduler, fakes: list[FakeBackend], busy: threading.Event) -> int:
    """Change the fleet from this thread until nobody is busy; `fakes[0]` stays."""
    dice, changes, fleet = random.Random(1), 0, scheduler.fleet
    while busy.is_set():
        fake = dice.choice(fakes[1:])
        there = fake.name in fleet.names
        what = dice.choice(["remove", "replace", "drain"]) if there else "add"
        if what == "drain":
            asyncio.run(fleet.drain(fake.name))
        elif what == "remove":
            fleet.remove(fake.name)
        else:
            (fleet.add if what == "add" else fleet.replace)(backend(fake, metrics=False, models=None))
        changes += 1
        with scheduler._driver.lock:
            scheduler._driver.engine.check()
        busy.wait(0)
        threading.Event().wait(0.005)  # else the lock would be asked for without end
    return changes


def test_threads_that_call_and_one_that_changes_the_fleet(stack: ModuleType) -> None:
    """Over loopback: what moves between backends and loops reaches its caller once and whole."""
    fleet = FakeFleet.fast(4, responder=echoed, seats=100)
    with served(fleet):
        fakes = list(fleet)
        scheduler = Scheduler([backend(fake, metrics=False) for fake in fakes[:2]])
        callers = [Caller(scheduler, number) for number in range(THREADS)]
        busy = threading.Event()
        busy.set()
        with ThreadPoolExecutor(THREADS + 1) as threads:
            changing = threads.submit(change, scheduler, fakes, busy)
            calls = [threads.submit(asyncio.run, caller.main()) for caller in callers]
            try:
                for call in calls:
                    call.result(60)
            finally:
                busy.clear()
            assert changing.result(60) > 10
        assert sum(caller.answered + caller.cut for caller in callers) == THREADS * CALLS
        assert sum(caller.answered for caller in callers) > THREADS * CALLS // 2
        scheduler.close()
        assert_idle(scheduler)
