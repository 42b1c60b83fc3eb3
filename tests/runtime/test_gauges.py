"""Busy backends are looked at, now and then; nothing depends on what they show, or on whether they do."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, Scheduler
from agentsched.engine.commands import LookAt
from agentsched.engine.heard import LOOK_S, SILENT_S
from agentsched.model import Signals
from agentsched.runtime import gauges
from agentsched.sim.backend import BackendModel
from agentsched.testing import FakeBackend, FakeFleet, faults
from agentsched.testing.metrics import page
from tests.doubles import ASK, MODEL, Rig, Script, assert_idle, upstream, whole

SLOW = Script(before=[3_600.0])
SOON_S = 5.0
"""Real seconds after which a test has hung."""


async def keep_busy(rig: Rig, seconds: float, *, at_once: int = 8) -> int:
    """Have so many calls of half a second to one and a half in flight; return how many were answered."""
    until, answered = rig.clock() + seconds, 0
    for fake in rig.fleet:
        fake.event_tokens = 100

    async def one_after_another(number: int) -> None:
        nonlocal answered
        while rig.clock() < until:
            await rig.say(100 + 37 * number % 200)
            answered += 1
            number += 7

    await asyncio.gather(*(one_after_another(number) for number in range(at_once)))
    return answered


def looks(fake: FakeBackend) -> int:
    return fake.polls["/metrics"]


def heard(rig: Rig, name: str = "fake-1") -> Any:
    return rig.scheduler._driver.engine.backends[name].heard


def frozen(fake: FakeBackend, **counts: int) -> faults.Frozen:
    """The page of an idle backend, or with other counts on it, for ever."""
    text = page(BackendModel(fake.spec), model_name=MODEL)
    for name, count in counts.items():
        text = text.replace(f'vllm:{name}{{engine="0",model_name="{MODEL}"}} 0', f"vllm:{name} {count}")
    return faults.Frozen(page=text)


def test_a_busy_backend_is_looked_at_every_five_seconds() -> None:
    rig = Rig(1)

    async def main() -> None:
        await keep_busy(rig, 31)
        assert looks(rig["fake-1"]) in (6, 7)
        signals = heard(rig).signals
        assert (signals.running, signals.waiting) == (8, 0)
        assert 0 < signals.kv_usage < 1
        assert signals.kv_tokens == rig["fake-1"].spec.kv_blocks * rig["fake-1"].spec.block_tokens
        await asyncio.sleep(600)
        assert looks(rig["fake-1"]) in (6, 7), "an idle one is left alone"

    rig.run(main)
    assert rig["fake-1"].polls["/load"] == 0


def test_one_that_does_little_is_left_alone() -> None:
    rig = Rig(1)

    async def main() -> None:
        await keep_busy(rig, 20, at_once=3)

    rig.run(main)
    assert not rig["fake-1"].polls


def test_one_that_is_not_to_be_looked_at_never_is() -> None:
    rig = Rig(1, limits={"metrics": False})

    async def main() -> None:
        await keep_busy(rig, 20)

    rig.run(main)
    assert not rig["fake-1"].polls


def test_each_is_looked_at_on_its_own() -> None:
    rig = Rig(3)
    rig["fake-2"].fail_page("/metrics", faults.Hang())

    async def main() -> None:
        await keep_busy(rig, 13, at_once=24)
        await asyncio.sleep(3)

    rig.run(main)
    assert [looks(fake) for fake in rig.fleet] == [3, 1, 3]
    assert [heard(rig, fake.name).signals is None for fake in rig.fleet] == [False, True, False]


TROUBLES: dict[str, tuple[Callable[[FakeBackend], faults.PageFault], str]] = {
    "missing": (lambda _: faults.Status(code=404), "GET http://fake-1.test/metrics answers HTTP 404"),
    "locked": (lambda _: faults.Status(code=401), "GET http://fake-1.test/metrics answers HTTP 401"),
    "slow": (lambda _: faults.SlowStart(delay_s=30), "GET http://fake-1.test/metrics: no answer within 2 s"),
    "silent": (lambda _: faults.Hang(), "GET http://fake-1.test/metrics: no answer within 2 s"),
    "unknown": (
        lambda _: faults.Frozen(page="python_info 1\n"),
        "GET http://fake-1.test/metrics shows no gauge that is known here",
    ),
    "frozen": (frozen, "it shows the same again and again, whatever runs there"),
}


@pytest.mark.parametrize(("fault", "why"), TROUBLES.values(), ids=TROUBLES)
def test_whatever_it_shows_calls_go_on(
    caplog: pytest.LogCaptureFixture, fault: Callable[[FakeBackend], faults.PageFault], why: str
) -> None:
    calm, rig = Rig(1, limits={"metrics": False}), Rig(1)
    rig["fake-1"].fail_page("/metrics", fault(rig["fake-1"]))
    rig["fake-1"].fail_page("/load", faults.Status(code=404))
    answered: dict[Rig, int] = {}

    def run(rig: Rig) -> None:
        async def main() -> None:
            answered[rig] = await keep_busy(rig, 100)

        rig.run(main)

    run(calm)
    with caplog.at_level(logging.WARNING, "agentsched"):
        run(rig)
    assert answered[rig] == answered[calm]
    (record,) = caplog.records
    known = "fake-1: its load is not known, so only what is sent from here counts: "
    assert record.getMessage().startswith(known)
    assert record.getMessage().removeprefix(known) == why
    assert heard(rig).foreign(rig.clock()) == 0
    if heard(rig).signals is None:
        assert looks(rig["fake-1"]) == 2, "the silent are asked once a minute"
    else:
        assert looks(rig["fake-1"]) > 10


def test_what_stays_the_same_at_a_steady_load_is_nothing_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    """Without a gauge of memory, as of llama.cpp, a backend that is always full does not look any different."""
    rig = Rig(1)
    text = "llamacpp:requests_processing 8\nllamacpp:requests_deferred 0\n"
    rig["fake-1"].fail_page("/metrics", faults.Frozen(page=text))

    async def main() -> None:
        await keep_busy(rig, 60)

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert heard(rig).frozen
    assert caplog.records == []


def test_it_is_told_again_when_it_had_worked_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1)
    fake = rig["fake-1"]

    async def main() -> None:
        for times in (1, 2):
            fake.fail_page("/metrics", faults.Hang())
            await keep_busy(rig, SILENT_S + LOOK_S)
            assert len(caplog.records) == times
            fake.heal()
            await keep_busy(rig, SILENT_S + LOOK_S)
            assert heard(rig).at > rig.clock() - 2 * LOOK_S

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert len(caplog.records) == 2


def test_where_there_are_no_metrics_the_load_is_asked_for() -> None:
    rig = Rig(1)
    rig["fake-1"].fail_page("/metrics", faults.Status(code=404))

    async def main() -> None:
        await keep_busy(rig, 3)

    rig.run(main)
    assert rig["fake-1"].polls == {"/metrics": 1, "/load": 1}
    assert heard(rig).signals == Signals(running=8)


def test_over_real_sockets() -> None:
    fleet = FakeFleet.fast(1)
    spec = fleet["fake-1"].spec

    async def main() -> None:
        async with fleet.serve(time_scale=5):
            backend = Backend(fleet.base_urls[0], models=[MODEL], name="b")
            async with Scheduler([backend]) as scheduler:
                client = scheduler.openai()
                headers = {"x-fake-output-tokens": "200"}
                calls = (client.chat.completions.create(**ASK, extra_headers=headers) for _ in range(6))
                await asyncio.gather(*calls)
                signals = scheduler._driver.engine.backends["b"].heard.signals
                assert signals is not None
                assert signals.kv_tokens == spec.kv_blocks * spec.block_tokens
                assert 0 <= signals.running <= 6

    asyncio.run(main())
    assert looks(fleet["fake-1"]) == 1


# -- one at a time ------------------------------------------------------------------------------------


def begin(scheduler: Scheduler, name: str = "b") -> None:
    """What the engine's command leads to, on this loop."""
    driver = scheduler._driver
    driver.gauges.begin(driver._row(asyncio.get_running_loop()), driver.engine.backends[name].spec)


def looking(stack: ModuleType, *answers: Any, limit: int | None = None) -> tuple[Scheduler, Any]:
    """A scheduler in real time, and what its backend has seen."""
    transport = upstream(stack, *answers)
    backend = Backend("http://b:1/v1", models=[MODEL], name="b", max_concurrency=limit)
    return Scheduler([backend], upstream=transport), transport.seen


GAUGES = whole(b"vllm:num_requests_running 1\n")


def test_never_two_looks_at_once() -> None:
    rig = Rig(1)
    rig["fake-1"].fail_page("/metrics", faults.SlowStart(delay_s=1))

    async def main() -> None:
        for _ in range(20):
            begin(rig.scheduler, "fake-1")
            await asyncio.sleep(0.05)
        assert looks(rig["fake-1"]) == 1
        await asyncio.sleep(1)
        assert heard(rig).signals is not None
        begin(rig.scheduler, "fake-1")
        await asyncio.sleep(2)
        assert looks(rig["fake-1"]) == 2

    rig.run(main)


def test_a_loop_that_has_stopped_holds_up_no_others_look(
    stack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it comes to hear later is dropped: another loop has looked since."""
    monkeypatch.setattr(gauges, "OVERDUE_S", 0.0)
    entered, leave = threading.Event(), threading.Event()

    async def wait() -> None:
        entered.set()
        leave.wait(SOON_S)  # the loop stands still

    late = whole(b"vllm:num_requests_running 77\n")
    late.before = [wait]
    scheduler, seen = looking(stack, late, GAUGES)

    async def look() -> None:
        begin(scheduler)
        await asyncio.sleep(2 * gauges.AFTER_S)
        while any(row.tasks for row in scheduler._driver._loops.values() if row.loop is here()):
            await asyncio.sleep(0.001)

    here = asyncio.get_running_loop
    stopped = threading.Thread(target=lambda: asyncio.run(look()))
    stopped.start()
    assert entered.wait(SOON_S)
    asyncio.run(look())
    leave.set()
    stopped.join(SOON_S)
    assert len(seen.requests) == 2
    assert scheduler._driver.engine.backends["b"].heard.signals == Signals(running=1)
    assert not scheduler._driver.gauges._looks


# -- loops that end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("after_s", [0.0, 2 * gauges.AFTER_S])
def test_a_look_that_is_cut_short_is_forgotten(
    stack: ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """Before it has begun, and in the middle."""
    monkeypatch.setattr(gauges, "OVERDUE_S", 0.0)
    scheduler, seen = looking(stack, SLOW)

    async def main() -> None:
        begin(scheduler)
        await asyncio.sleep(after_s)

    with caplog.at_level(logging.WARNING):
        for runs in (1, 2, 3):
            asyncio.run(main())
            assert len(seen.requests) == (runs if after_s else 0)
            assert seen.open == 0
    assert caplog.records == []
    assert scheduler._driver.engine.backends["b"].heard.signals is None
    assert_idle(scheduler)


def test_a_run_that_ends_in_the_middle_of_many_calls_leaves_no_look(
    stack: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Its calls are cancelled one by one, those that wait start for a moment, and a look is about to begin."""
    scheduler, seen = looking(stack, SLOW, limit=8)

    async def main() -> None:
        client = scheduler.openai()
        loose.extend(asyncio.ensure_future(client.chat.completions.create(**ASK)) for _ in range(16))
        while len(seen.requests) < 8:
            await asyncio.sleep(0.001)
        begin(scheduler)
        loops.append(asyncio.get_running_loop())

    loose: list[Any] = []
    loops: list[asyncio.AbstractEventLoop] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            asyncio.run(main())
            assert not asyncio.all_tasks(loops.pop())
            seen.requests.clear()
            assert seen.open == 0
    assert caplog.records == []
    assert_idle(scheduler)


def test_a_loop_that_waits_for_its_threads_at_the_end_looks_at_nothing(
    stack: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pools are closed by then, and nothing would close them again."""
    backend = Backend("http://127.0.0.1:9/v1", models=[MODEL], name="b")
    scheduler = Scheduler([backend])

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await scheduler._driver._row(loop).transport(backend)
        begin(scheduler)
        loop.run_in_executor(None, threading.Event().wait, 3 * gauges.AFTER_S)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.records == [], "it would have been refused"


def test_aclose_does_not_wait_for_a_look() -> None:
    rig = Rig(1)
    rig["fake-1"].fail_page("/metrics", faults.Hang())

    async def main() -> None:
        for wait_s in (0.0, 2 * gauges.AFTER_S):
            begin(rig.scheduler, "fake-1")
            await asyncio.sleep(wait_s)
            at = rig.clock()
            await rig.scheduler.aclose()
            assert rig.clock() == at
            await asyncio.sleep(gauges.OVERDUE_S)
        assert looks(rig["fake-1"]) == 1

    rig.run(main)


def test_without_any_open_loop_nobody_is_asked(stack: ModuleType) -> None:
    scheduler, seen = looking(stack, GAUGES)
    scheduler._driver._obey(LookAt("b"))
    asyncio.run(asyncio.sleep(0))
    scheduler._driver._obey(LookAt("b"))
    assert seen.requests == []


# -- what may go wrong here ---------------------------------------------------------------------------


def test_a_task_factory_that_fails_costs_the_look_only(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1)

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        if work.__qualname__.startswith("Gauges."):
            raise RuntimeError("no more tasks")
        return asyncio.Task(work, loop=loop, **options)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        await keep_busy(rig, 3)

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    (record,) = caplog.records
    assert "no more tasks" in record.getMessage()
    assert not rig.fleet["fake-1"].polls
    assert heard(rig).look_at > SILENT_S


def test_a_transport_that_gives_up_by_itself(stack: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    rig = Rig(1, upstream=upstream(stack, Script(before=[give_up]), GAUGES))

    async def main() -> None:
        for running in (None, 1):
            begin(rig.scheduler, "fake-1")
            await asyncio.sleep(1)
            assert getattr(heard(rig).signals, "running", None) == running

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert len(caplog.records) == 1


def test_calls_that_are_cancelled_leave_no_look() -> None:
    rig = Rig(1)
    rig["fake-1"].fail_page("/metrics", faults.Hang())

    async def main() -> None:
        calls = [rig.begun(1_000) for _ in range(8)]
        await asyncio.sleep(1)
        assert looks(rig["fake-1"]) == 1
        for call in calls:
            call.cancel()
        assert all(
            isinstance(one, BaseException) for one in await asyncio.gather(*calls, return_exceptions=True)
        )
        await asyncio.sleep(2)

    rig.run(main)
