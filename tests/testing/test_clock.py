"""Virtual time: it jumps, it never hangs, and it waits for threads."""

import asyncio
import threading
import time

import anyio
import anyio.to_thread
import pytest

from agentsched.testing import Deadlock, VirtualClock
from agentsched.testing.clock import LIMIT_S


def test_hours_pass_in_no_time_and_timers_fire_exactly_then() -> None:
    clock = VirtualClock()
    fired: list[float] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        for at in (7200.0, 0.25, 86_400.5):
            loop.call_at(at, lambda: fired.append(clock()))
        await asyncio.sleep(3 * 86_400)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        return loop.time()

    begun = time.monotonic()
    assert clock.run(main()) == 3 * 86_400 + 10
    assert fired == [0.25, 7200.0, 86_400.5]
    assert time.monotonic() - begun < 1.0
    assert clock() == clock.time() == 3 * 86_400 + 10


def test_the_clock_goes_on_from_run_to_run() -> None:
    clock = VirtualClock(start=100.0)
    clock.run(asyncio.sleep(5))
    clock.run(asyncio.sleep(5))
    assert clock.time() == 110.0
    assert repr(clock) == "<VirtualClock at 110.000000 s>"


def test_a_deadlock_is_an_error_that_names_who_waits() -> None:
    clock = VirtualClock()

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(stuck(), name="the culprit"))

    with pytest.raises(Deadlock, match=r"the culprit at .*stuck"):
        clock.run(main())


def test_a_timer_that_repeats_for_ever_is_found_out_too() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(LIMIT_S / 10)

    with pytest.raises(Deadlock, match="have passed"):
        VirtualClock().run(main())


def test_executor_jobs_are_waited_for_before_time_jumps() -> None:
    clock = VirtualClock()

    async def main() -> float:
        async with asyncio.timeout(3600):
            await asyncio.to_thread(time.sleep, 0.05)
        return clock()

    assert clock.run(main()) == 0.0


def test_a_job_that_needs_virtual_time_gets_it() -> None:
    clock = VirtualClock()

    async def main() -> str:
        loop = asyncio.get_running_loop()

        def job() -> str:
            return asyncio.run_coroutine_threadsafe(asyncio.sleep(60, "slept"), loop).result(5)

        return await asyncio.to_thread(job)

    begun = time.monotonic()
    assert clock.run(main()) == "slept"
    assert clock() == 60.0
    assert time.monotonic() - begun < 0.9  # the job waits for a lock: no reason to wait for it


@pytest.mark.parametrize("kind", ["anyio", "executor", "thread"])
def test_no_thread_at_work_is_jumped_over_beside_a_ticking_timer(kind: str) -> None:
    clock = VirtualClock()

    def job() -> None:
        time.sleep(0.02)  # a thread that works: virtual time has to wait for it

    async def in_thread() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def body() -> None:
            job()
            loop.call_soon_threadsafe(done.set)

        thread = threading.Thread(target=body)
        thread.start()
        await done.wait()
        thread.join()

    async def main() -> None:
        ticker = asyncio.create_task(tick())
        for _ in range(20):
            at = clock()
            match kind:
                case "anyio":
                    await anyio.to_thread.run_sync(job)
                case "executor":
                    await asyncio.to_thread(job)
                case _:
                    await in_thread()
            assert clock() == at
            await asyncio.sleep(0.25)
        ticker.cancel()

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.001)

    clock.run(main())


def test_a_thread_that_works_for_ever_holds_time_up_only_once() -> None:
    stop = threading.Event()
    # it outlasts what the clock allows one thread
    thread = threading.Thread(target=lambda: time.sleep(0.6) or stop.wait(), daemon=True)
    thread.start()

    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(1)

    begun = time.monotonic()
    VirtualClock(patience_s=0.1).run(main())
    assert time.monotonic() - begun < 10  # not a hundred: a thousand jumps of a tenth each
    stop.set()
    thread.join()


def test_a_foreign_thread_may_still_wake_a_loop_with_nothing_to_do() -> None:
    async def main() -> str:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        timer = threading.Timer(0.05, lambda: loop.call_soon_threadsafe(woken.set))
        timer.start()
        await woken.wait()
        timer.join()
        return "woken"

    assert VirtualClock().run(main()) == "woken"


def test_it_is_a_loop_factory_for_others() -> None:
    clock = VirtualClock()
    with asyncio.Runner(loop_factory=clock.new_loop) as runner:
        runner.run(asyncio.sleep(42))
    assert clock() == 42.0
