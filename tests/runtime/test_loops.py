"""One scheduler, many event loops: one after the other, in threads, closed under its calls, ended from elsewhere."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, BackendError, Scheduler, SchedulerClosed
from agentsched.runtime import driver as driver_module
from agentsched.testing import FakeFleet
from tests.doubles import (
    ASK,
    MODEL,
    Rig,
    Script,
    assert_idle,
    begun,
    events,
    outcome,
    said,
    settled,
    upstream,
)

SOON_S = 5.0
"""Real seconds after which a test has hung."""


class Thread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.begin(work).result(SOON_S)

    def stop(self) -> None:
        """Stop the loop as it is: nothing is cancelled."""
        if self.loop.is_running():
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON_S)

    def close(self) -> None:
        """Stop and close the loop: nothing is cancelled."""
        self.stop()
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined] - that they are lost is the point
        self.loop.close()

    def end(self) -> None:
        """End it in due form, as `asyncio.run` does."""
        if not self.loop.is_closed():
            self.stop()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(settled())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()


@pytest.fixture
def threads() -> Iterator[Callable[[], Thread]]:
    made: list[Thread] = []

    def new() -> Thread:
        made.append(Thread())
        return made[-1]

    yield new
    for thread in made:
        thread.end()


def shared(stack: ModuleType, *answers: Any, limit: int = 1) -> tuple[Scheduler, Any]:
    """A scheduler in real time over a scripted backend that all loops may use."""
    transport = upstream(stack, *answers)
    backend = Backend("http://b:1/v1", models=[MODEL], max_concurrency=limit)
    return Scheduler([backend], upstream=transport), transport.seen


async def ask(scheduler: Scheduler, **fields: Any) -> Any:
    client = scheduler.openai()
    return await client.chat.completions.create(**{**ASK, **fields})


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)  # another thread's real progress is waited for


SLOW = Script(before=[3_600.0])
QUICK = said("done")


# -- one after the other ------------------------------------------------------------------------------


@contextmanager
def served(fleet: FakeFleet) -> Iterator[list[str]]:
    """The fleet on loopback, served by a thread of its own."""
    server = Thread()
    doors = fleet.serve(time_scale=20)
    server.run(doors.start())
    try:
        yield fleet.base_urls
    finally:
        server.run(doors.stop())
        server.end()


def test_case_71_three_runs_in_one_process(stack: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """71: `asyncio.run` three times with one scheduler: all pass, and nothing is left open or complained of."""
    fleet = FakeFleet.fast(2)
    with served(fleet) as urls, caplog.at_level(logging.WARNING):
        scheduler = Scheduler([Backend(url, models=[MODEL]) for url in urls])

        async def main() -> None:
            client = scheduler.openai()
            answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(4)))
            assert all(answer.choices[0].message.content for answer in answers)
            stream = await client.chat.completions.create(**ASK, stream=True)
            assert [chunk async for chunk in stream]

        for _ in range(3):
            asyncio.run(main())
            assert_idle(scheduler)
            assert len(scheduler._driver._loops) == 1, "rows of closed loops are not kept"
        assert all(backend.log.in_flight == 0 for backend in fleet)
    assert caplog.records == []


def test_a_run_that_ends_with_calls_in_flight_leaves_nothing(
    stack: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, seen = shared(stack, events({"choices": [{"delta": {"content": "a"}}]}, 3_600.0))

    async def main() -> None:
        kept.append(await ask(scheduler, stream=True))
        loose.append(asyncio.ensure_future(ask(scheduler)))
        await asyncio.sleep(0.01)

    kept: list[Any] = []
    loose: list[Any] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            asyncio.run(main())
            assert_idle(scheduler)
            assert seen.open == 0
    assert caplog.records == []


def test_idle_connections_are_given_up_before_servers_give_them_up(stack: ModuleType) -> None:
    """Uvicorn, and with it vLLM, closes them after 5 s: a call that met one just then would fail for nothing."""

    async def main() -> None:
        backend = Backend("http://b:1/v1", models=[MODEL])
        scheduler = Scheduler([backend])
        row = scheduler._driver._row(asyncio.get_running_loop())
        assert (await row.transport(backend))._pool._keepalive_expiry < 5.0
        await scheduler.aclose()

    asyncio.run(main())


# -- at the same time ---------------------------------------------------------------------------------


def test_four_loops_share_one_slot(stack: ModuleType) -> None:
    scheduler, seen = shared(stack, *[said("one", "two")] * 1)
    each = 25

    async def main() -> int:
        client = scheduler.openai()
        answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(each)))
        return sum(answer.choices[0].message.content == "onetwo" for answer in answers)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asyncio.run(main()), range(4)))
    assert found == [each] * 4
    assert len(seen.requests) == 4 * each
    assert scheduler.snapshot().backends[0].started == 4 * each
    assert_idle(scheduler)


def test_four_loops_never_exceed_the_limit_of_a_fleet(stack: ModuleType) -> None:
    fleet = FakeFleet.fast(2)
    backends = [Backend(fake.base_url, models=fake.models, max_concurrency=2) for fake in fleet]
    scheduler = Scheduler(backends, upstream=fleet.transport(stack.__name__))  # type: ignore[call-overload]

    async def main(number: int) -> None:
        client = scheduler.openai()

        async def one(index: int) -> None:
            call = client.chat.completions.create(
                **ASK, stream=True, extra_headers={"x-fake-output-tokens": "2"}
            )
            if index % 5 == number:
                task = asyncio.ensure_future(call)
                await asyncio.sleep(0.005)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                assert [chunk async for chunk in await call]

        await asyncio.gather(*map(one, range(10)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: asyncio.run(main(number)), range(4)))
    assert all(0 < backend.log.peak_in_flight <= 2 for backend in fleet)
    assert all(backend.log.in_flight == 0 for backend in fleet)
    assert_idle(scheduler)


def test_a_timer_of_one_loop_serves_the_others(stack: ModuleType, threads: Callable[[], Thread]) -> None:
    """A deadline passes on a loop whose own timers were set before the call was there."""
    scheduler, _ = shared(stack, SLOW)

    async def late() -> Any:
        with scheduler.query("q", timeout_s=0.05):
            return await outcome(ask(scheduler))

    one, two = threads(), threads()
    running = one.begin(outcome(ask(scheduler)))
    until(lambda: scheduler.snapshot().running == 1)
    assert type(two.run(late())).__name__ == "Expired"
    two.run(scheduler.aclose())
    assert isinstance(running.result(SOON_S), SchedulerClosed)


def test_cells_of_a_notebook_share_one_loop_that_stands_still_between_them(stack: ModuleType) -> None:
    """A task of one cell goes on in the next, as does a stream; nothing is lost while the loop stands still."""
    slow = Script(before=[0.05], headers=QUICK.headers, pieces=QUICK.pieces)
    scheduler, seen = shared(stack, slow, QUICK, limit=2)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        begun = loop.create_task(ask(scheduler))
        stream = loop.run_until_complete(ask(scheduler, stream=True))
        time.sleep(0.1)  # the user reads, and no cell runs

        async def read() -> str:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert loop.run_until_complete(read()) == "done"
        assert scheduler.openai_sync().chat.completions.create(**ASK).choices[0].message.content == "done"
        assert loop.run_until_complete(begun).choices[0].message.content == "done"
        loop.run_until_complete(scheduler.aclose())
    assert seen.open == 0
    assert_idle(scheduler)


# -- a loop that closes under its calls ---------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("queued_too", [0, 3])
def test_a_closed_loop_holds_no_room_from_newcomers(
    stack: ModuleType, threads: Callable[[], Thread], queued_too: int
) -> None:
    scheduler, _ = shared(stack, SLOW, QUICK)
    dead = threads()
    for _ in range(1 + queued_too):
        dead.begin(ask(scheduler))
    until(lambda: scheduler.snapshot().queued == queued_too and scheduler.snapshot().running == 1)
    dead.close()
    answer = threads().run(ask(scheduler))
    assert answer.choices[0].message.content == "done"
    assert_idle(scheduler)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("queued_too", [0, 3])
def test_a_closed_loop_holds_no_room_from_those_who_wait(
    stack: ModuleType, threads: Callable[[], Thread], monkeypatch: pytest.MonkeyPatch, queued_too: int
) -> None:
    """Nobody comes and nothing happens any more: the loops that still live look by themselves."""
    monkeypatch.setattr(driver_module, "WATCH_S", 0.05)
    scheduler, _ = shared(stack, SLOW, QUICK)
    dead, live = threads(), threads()
    for _ in range(1 + queued_too):
        dead.begin(ask(scheduler))
    until(lambda: scheduler.snapshot().queued == queued_too and scheduler.snapshot().running == 1)
    waiting = [live.begin(ask(scheduler)) for _ in range(2)]
    until(lambda: scheduler.snapshot().queued == queued_too + 2)
    dead.close()
    for call in waiting:
        assert call.result(SOON_S).choices[0].message.content == "done"
    assert_idle(scheduler)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_call_whose_loop_closed_in_the_queue_is_not_sent(
    stack: ModuleType, threads: Callable[[], Thread]
) -> None:
    released = threading.Event()

    async def release() -> None:
        while not released.is_set():
            await asyncio.sleep(0.001)

    held = Script(before=[release], headers=QUICK.headers, pieces=QUICK.pieces)
    scheduler, seen = shared(stack, held, QUICK)
    live, dead = threads(), threads()
    running = live.begin(ask(scheduler))
    until(lambda: scheduler.snapshot().running == 1)
    dead.begin(ask(scheduler))
    until(lambda: scheduler.snapshot().queued == 1)
    last = live.begin(ask(scheduler))
    until(lambda: scheduler.snapshot().queued == 2)
    dead.close()
    released.set()
    running.result(SOON_S)
    last.result(SOON_S)
    assert len(seen.requests) == 2
    assert_idle(scheduler)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_stream_collected_after_its_loop_has_closed(
    stack: ModuleType, threads: Callable[[], Thread]
) -> None:
    scheduler, _ = shared(stack, events({"choices": [{"delta": {"content": "a"}}]}, 3_600.0), QUICK)
    dead, live = threads(), threads()
    kept = [dead.run(ask(scheduler, stream=True))]
    dead.close()
    kept.clear()
    assert live.run(ask(scheduler)).choices[0].message.content == "done"
    assert_idle(scheduler)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_loop_that_closed_while_it_asked_for_models_does_not_hold_up_others(
    stack: ModuleType, threads: Callable[[], Thread]
) -> None:
    transport = upstream(stack, SLOW, QUICK)
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=transport)
    dead = threads()
    dead.begin(ask(scheduler))
    until(lambda: len(transport.seen.requests) == 1)
    dead.close()
    assert threads().run(ask(scheduler)).choices[0].message.content == "done"


def test_a_loop_that_stopped_while_it_asked_for_models_does_not_hold_up_others(
    stack: ModuleType, threads: Callable[[], Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "WATCH_S", 0.05)
    monkeypatch.setattr(driver_module, "OVERDUE_S", 0.2)
    transport = upstream(stack, SLOW, QUICK)
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=transport)
    stopped = threads()
    first = stopped.begin(ask(scheduler))
    until(lambda: len(transport.seen.requests) == 1)
    stopped.stop()
    assert threads().run(ask(scheduler)).choices[0].message.content == "done"
    first.cancel()


# -- the end ------------------------------------------------------------------------------------------


def test_aclose_ends_what_runs_and_what_waits(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        tasks = [rig.begun(1_000), rig.begun(1_000), rig.begun(1_000)]
        stream_task = None
        await begun()
        await rig.scheduler.aclose()
        assert rig.in_flight == 0, "connections have closed when it returns"
        found = [await outcome(task) for task in tasks]
        assert all(isinstance(one, SchedulerClosed) for one in found)
        assert sorted(one.sent for one in found) == [False, False, True]
        assert stream_task is None
        await rig.scheduler.aclose()

    rig.run(main)


def test_aclose_ends_a_stream_in_the_middle(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)

    async def main() -> None:
        stream = await rig.say(1_000, stream=True)
        await anext(stream)
        await rig.scheduler.aclose()
        with pytest.raises(SchedulerClosed) as caught:
            [chunk async for chunk in stream]
        assert caught.value.sent

    rig.run(main)


def test_aclose_does_not_wait_for_lists_of_models(stack: ModuleType) -> None:
    clock_free = upstream(stack, SLOW)
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=clock_free)

    async def main() -> None:
        task = asyncio.ensure_future(outcome(ask(scheduler)))
        while not clock_free.seen.requests:
            await asyncio.sleep(0.001)
        at = time.monotonic()
        await scheduler.aclose()
        assert time.monotonic() - at < 0.5
        assert isinstance(await task, SchedulerClosed)
        assert clock_free.seen.open == 0

    asyncio.run(main())


def test_aclose_at_once_after_the_first_call_began(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack, listed=True)

    async def main() -> None:
        task = asyncio.ensure_future(outcome(rig.say()))
        while not rig.scheduler._driver._calls:
            await asyncio.sleep(0)
        await rig.scheduler.aclose()
        assert isinstance(await task, SchedulerClosed)

    rig.run(main)


def test_aclose_from_another_loop(stack: ModuleType, threads: Callable[[], Thread]) -> None:
    scheduler, seen = shared(stack, SLOW)
    one, two, third = threads(), threads(), threads()
    calls = [one.begin(outcome(ask(scheduler))), two.begin(outcome(ask(scheduler)))]
    calls += [one.begin(outcome(ask(scheduler, stream=True)))]
    until(lambda: scheduler.snapshot().running == 1 and scheduler.snapshot().queued == 2)
    third.run(scheduler.aclose())
    assert seen.open == 0
    found = [call.result(SOON_S) for call in calls]
    assert all(isinstance(one, SchedulerClosed) for one in found)
    assert sorted(one.sent for one in found) == [False, False, True]
    third.run(scheduler.aclose())
    assert_idle(scheduler)


def test_two_loops_close_it_at_once(stack: ModuleType, threads: Callable[[], Thread]) -> None:
    scheduler, _ = shared(stack, SLOW)
    one, two = threads(), threads()
    call = one.begin(outcome(ask(scheduler)))
    until(lambda: scheduler.snapshot().running == 1)
    for closing in [one.begin(scheduler.aclose()), two.begin(scheduler.aclose())]:
        closing.result(SOON_S)
    assert isinstance(call.result(SOON_S), SchedulerClosed)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ["stop", "close"])
def test_aclose_does_not_wait_for_a_loop_that_has_stopped(
    stack: ModuleType, threads: Callable[[], Thread], how: str
) -> None:
    scheduler, _ = shared(stack, SLOW)
    one, two = threads(), threads()
    one.begin(outcome(ask(scheduler)))
    until(lambda: scheduler.snapshot().running == 1)
    getattr(one, how)()
    two.run(scheduler.aclose())
    assert scheduler.snapshot().running == 0


def test_aclose_does_not_wait_for_a_loop_that_stops_meanwhile(
    stack: ModuleType, threads: Callable[[], Thread]
) -> None:
    scheduler, _ = shared(stack, SLOW)
    busy, other = threads(), threads()
    busy.begin(outcome(ask(scheduler)))
    until(lambda: scheduler.snapshot().running == 1)
    entered = threading.Event()

    async def block() -> None:
        entered.set()
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is busy while the other one asks it to close
        asyncio.get_running_loop().stop()

    busy.begin(block())
    entered.wait(SOON_S)
    other.run(scheduler.aclose())
    until(lambda: not busy.loop.is_running())


def test_a_loop_may_end_while_another_closes_the_scheduler(stack: ModuleType) -> None:
    """`asyncio.run` of one thread ends at any point of the other's `aclose`."""
    for delay in (0.0, 0.001, 0.005):
        scheduler, _ = shared(stack, SLOW)
        ready = threading.Event()

        async def work(
            scheduler: Scheduler = scheduler, delay: float = delay, ready: threading.Event = ready
        ) -> None:
            task = asyncio.ensure_future(ask(scheduler))
            while not scheduler.snapshot().running:
                await asyncio.sleep(0.001)
            ready.set()
            await asyncio.sleep(delay)
            task.cancel()

        thread = threading.Thread(target=lambda work=work: asyncio.run(work()))
        thread.start()
        ready.wait(SOON_S)
        asyncio.run(asyncio.wait_for(scheduler.aclose(), SOON_S))
        thread.join(SOON_S)
        assert not thread.is_alive()
        assert_idle(scheduler)


def test_a_scheduler_is_an_async_context_manager(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)

    async def main() -> None:
        async with rig.scheduler as entered:
            assert entered is rig.scheduler
            await rig.say()
        assert isinstance(await outcome(rig.say()), SchedulerClosed)

    rig.run(main)


def test_a_backend_that_cannot_be_reached_over_real_sockets(stack: ModuleType) -> None:
    scheduler = Scheduler([Backend("http://127.0.0.1:9/v1", models=[MODEL])])

    async def main() -> None:
        found = await outcome(ask(scheduler))
        assert isinstance(found, BackendError)
        assert not found.sent
        await scheduler.aclose()

    asyncio.run(main())
