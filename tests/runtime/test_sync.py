"""Sync clients: the same calls, limits and errors from any thread, and no way to wait for oneself."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import ModuleType
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

from agentsched import (
    Backend,
    BackendError,
    CallLimitReached,
    Expired,
    Scheduler,
    SchedulerClosed,
    UnknownModel,
    UsageError,
    step,
)
from tests.doubles import ASK, MODEL, Script, delta, event, events, said, upstream, whole

SOON_S = 10.0
"""Real seconds after which a test has hung."""

SLOW = Script(before=[3_600.0])


class Rig:
    """A scheduler in real time over one scripted backend."""

    def __init__(self, stack: ModuleType, *answers: Any, limit: int | None = None, **options: Any) -> None:
        self.transport = upstream(stack, *answers)
        self.seen = self.transport.seen
        backend = Backend("http://b:1/v1", name="b", models=[MODEL], max_concurrency=limit)
        self.scheduler = Scheduler([backend], upstream=self.transport, **options)
        self.client = self.scheduler.openai_sync()

    def say(self, **fields: Any) -> Any:
        return self.client.chat.completions.create(**{**ASK, **fields})

    def idle(self) -> bool:
        return not self.scheduler._driver.engine.requests and self.seen.open == 0


@pytest.fixture
def rig(stack: ModuleType) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def new(*answers: Any, **options: Any) -> Rig:
        made.append(Rig(stack, *answers, **options))
        return made[-1]

    yield new
    for one in made:
        one.scheduler.close()
        assert one.idle()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.001)  # another thread's real progress is waited for


def text_of(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


# -- what an app sees ---------------------------------------------------------------------------------


def test_a_chat(rig: Callable[..., Rig]) -> None:
    one = rig(said("a", "é", "b"))
    answer = one.say()
    assert answer.choices[0].message.content == "aéb"
    assert answer._request_id.startswith("as-")
    assert one.scheduler.explain(answer._request_id).outcome == "completed"
    assert one.seen.bodies[0]["stream"] is True


def test_a_stream(rig: Callable[..., Rig]) -> None:
    one = rig(said("a", "é", "b"))
    assert text_of(one.say(stream=True)) == "aéb"
    raw = one.client.chat.completions.with_raw_response.create(**ASK)
    assert raw.headers["x-agentsched-backend"] == "b"


def test_models_and_other_paths(rig: Callable[..., Rig]) -> None:
    one = rig(whole({"object": "list", "data": []}))
    assert [model.id for model in one.client.models.list()] == [MODEL]
    assert one.scheduler.http_client().get("/files").json() == {"object": "list", "data": []}


def test_a_large_stream_comes_complete(rig: Callable[..., Rig]) -> None:
    pieces = [event(delta(f"{number} ")) for number in range(20_000)]
    one = rig(events(*pieces, delta(finish="stop")))
    assert text_of(one.say(stream=True)).split() == [str(number) for number in range(20_000)]


def test_langchain(rig: Callable[..., Rig]) -> None:
    one = rig(said("a", "b"))
    llm = ChatOpenAI(model=MODEL, **one.scheduler.client_kwargs())
    assert llm.invoke("hi").content == "ab"
    assert "".join(str(chunk.content) for chunk in llm.stream("hi")) == "ab"
    assert [message.content for message in llm.batch(["1", "2", "3"])] == ["ab"] * 3
    assert len(one.seen.requests) == 5


ERRORS: dict[str, tuple[Any, dict[str, Any], type[Exception]]] = {
    "the backend's own": (whole({"error": {"message": "no"}}, status=400), {}, openai.BadRequestError),
    "a broken stream": (events(delta("a"), done=False), {}, BackendError),
    "an unknown model": (said("a"), {"model": "absent"}, UnknownModel),
    "no JSON to send": (said("a"), {"extra_body": {"model": 7}}, UsageError),
}


@pytest.mark.parametrize(("answer", "fields", "kind"), ERRORS.values(), ids=ERRORS)
def test_errors_are_those_of_async_calls(
    rig: Callable[..., Rig], answer: Any, fields: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        rig(answer).say(**fields)
    assert isinstance(caught.value, openai.OpenAIError)


def test_a_stream_that_breaks_says_so_with_what_there_was(rig: Callable[..., Rig]) -> None:
    stream = rig(events(delta("par"), delta("tial"), done=False)).say(stream=True)
    with pytest.raises(BackendError) as caught:
        list(stream)
    assert caught.value.partial_text == "partial"


# -- queries and steps --------------------------------------------------------------------------------


def test_queries_reach_sync_calls_and_threads_that_take_the_context_along(rig: Callable[..., Rig]) -> None:
    one = rig(said("a"))
    known: list[Any] = []
    handle = one.scheduler._driver.engine.handle

    def noted(event: Any) -> Any:
        known.append(getattr(event, "request", None))
        return handle(event)

    one.scheduler._driver.engine.handle = noted  # type: ignore[method-assign]
    with one.scheduler.query("w", tenant="acme", priority=3), step("draft"), ThreadPoolExecutor(2) as pool:
        one.say()
        pool.submit(copy_context().run, one.say).result(SOON_S)
    one.say()
    found = [(r.workflow, r.step, r.tenant, r.priority) for r in known if r is not None]
    assert found == [("w", "draft", "acme", 3)] * 2 + [(None, None, None, 0)]


def test_deadlines_and_limits_hold(rig: Callable[..., Rig]) -> None:
    one = rig(said("a"), SLOW)
    with one.scheduler.query("w", timeout_s=0.2, max_calls=2):
        one.say()
        with pytest.raises(Expired):
            one.say()
        with pytest.raises(CallLimitReached):
            one.say()


# -- threads ------------------------------------------------------------------------------------------


def test_threads_and_loops_share_one_limit(rig: Callable[..., Rig]) -> None:
    one = rig(events(0.01, delta("a"), delta(finish="stop")), limit=2)
    engine, running = one.scheduler._driver.engine, set[int]()
    handle = engine.handle

    def noted(event: Any) -> Any:
        commands = handle(event)
        running.add(len(engine.attempts))
        engine.check()
        return commands

    engine.handle = noted  # type: ignore[method-assign]

    async def asyncs() -> None:
        client = one.scheduler.openai()
        await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(10)))

    with ThreadPoolExecutor(12) as pool:
        sync = [pool.submit(one.say) for _ in range(20)]
        loops = [pool.submit(lambda: asyncio.run(asyncs())) for _ in range(2)]
        for future in (*sync, *loops):
            future.result(SOON_S)
    assert len(one.seen.requests) == 40
    assert running == {0, 1, 2}


def test_one_thread_serves_all_sync_callers_and_ends_with_the_scheduler(rig: Callable[..., Rig]) -> None:
    one = rig(said("a"))

    def io_threads() -> int:
        return sum(thread.name == "agentsched-io" for thread in threading.enumerate())

    assert io_threads() == 0, "it is started by the first call"
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(one.say) for _ in range(20)]:
            future.result(SOON_S)
    assert io_threads() == 1
    one.scheduler.close()
    assert io_threads() == 0


# -- leaving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_stream_that_is_left_frees_its_room(rig: Callable[..., Rig], how: str) -> None:
    one = rig(events(delta("a"), 3_600.0), said("b"), limit=1)
    stream = one.say(stream=True)
    if how == "close":
        next(iter(stream))
        stream.close()
    elif how == "with":
        with stream:
            next(iter(stream))
    else:
        del stream
        gc.collect()
    assert one.say().choices[0].message.content == "b"
    until(lambda: one.seen.open == 0)


def test_a_caller_that_is_interrupted_leaves_nothing(
    rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = rig(SLOW)
    one.scheduler._io.loop  # noqa: B018 - started

    def interrupted(work: Any, **_: Any) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(one.scheduler._io, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        one.say()
    until(one.idle)


def test_closing_ends_the_calls_of_other_threads(rig: Callable[..., Rig]) -> None:
    one = rig(SLOW)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(one.say)
        until(lambda: len(one.seen.requests) == 1)
        one.scheduler.close()
        assert isinstance(future.exception(SOON_S), SchedulerClosed)
    with pytest.raises(SchedulerClosed):
        one.say()


async def test_closing_in_a_loop_is_done_with_await(stack: ModuleType) -> None:
    one = Rig(stack, said("a"))
    await asyncio.to_thread(one.say)
    with pytest.raises(UsageError, match="aclose"):
        one.scheduler.close()
    await one.scheduler.aclose()


def test_a_with_block_closes(stack: ModuleType) -> None:
    one = Rig(stack, said("a"))
    with one.scheduler:
        one.say()
    with pytest.raises(SchedulerClosed):
        one.say()


# -- inside a running loop ----------------------------------------------------------------------------


async def test_a_sync_call_inside_a_loop_is_served(stack: ModuleType) -> None:
    one = Rig(stack, said("a"), limit=1)
    async with one.scheduler:
        assert one.say().choices[0].message.content == "a"
        assert text_of(one.say(stream=True)) == "a"


async def test_its_models_are_asked_for_elsewhere(stack: ModuleType) -> None:
    listed = whole({"data": [{"id": MODEL}]})
    transport = upstream(stack, lambda request: listed if request.method == "GET" else said("a"))
    async with Scheduler([Backend("http://b:1/v1")], upstream=transport) as scheduler:
        answer = scheduler.openai_sync().chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "a"


async def test_one_that_would_wait_for_its_own_loop_is_told(stack: ModuleType) -> None:
    one = Rig(stack, events(delta("a"), 3_600.0), said("b"), limit=1)
    async with one.scheduler:
        stream = await one.scheduler.openai().chat.completions.create(**ASK, stream=True)
        with pytest.raises(UsageError, match="same loop") as caught:
            one.say()
        assert not caught.value.sent
        assert len(one.seen.requests) == 1
        await stream.close()
        assert one.say().choices[0].message.content == "b"


async def test_one_that_waits_for_others_waits(stack: ModuleType) -> None:
    one = Rig(stack, events(0.3, delta("a"), delta(finish="stop")), said("b"), limit=1)
    async with one.scheduler:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(one.say)
            until(lambda: len(one.seen.requests) == 1)
            assert one.say().choices[0].message.content == "b"
            assert other.result(SOON_S).choices[0].message.content == "a"


# -- the end of the process ---------------------------------------------------------------------------

ENDS = {
    "nothing left": "client.chat.completions.create(**ask)",
    "a stream left": "stream = client.chat.completions.create(**ask, stream=True)",
    "a call under way": (
        "threading.Thread(target=lambda: client.chat.completions.create(**slow), daemon=True).start(); "
        "time.sleep(0.2)"  # in a process of its own, until the call is under way
    ),
    "an exception": "client.chat.completions.create(**ask); raise SystemExit(0)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_interpreter_ends_without_waiting_and_without_a_word(end: str) -> None:
    program = f"""
import threading, time
from agentsched import Backend, Scheduler
from agentsched.testing import FakeFleet
fleet = FakeFleet.fast(1)
scheduler = Scheduler([Backend(fleet.base_urls[0])], upstream=fleet.transport())
client = scheduler.openai_sync()
ask = {{"model": "fake-model", "messages": [{{"role": "user", "content": "hi"}}]}}
slow = {{**ask, "extra_headers": {{"x-fake-output-tokens": "100000"}}}}
{end}
"""
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


# -- forks --------------------------------------------------------------------------------------------

FORK = """
import asyncio, os, threading, time
from agentsched import Backend, Scheduler
from agentsched.testing import FakeFleet
fleet = FakeFleet.fast(1)
{setup}
scheduler = Scheduler([Backend(url, max_concurrency=1) for url in urls], **options)
client = scheduler.openai_sync()
ask = {{"model": "fake-model", "messages": [{{"role": "user", "content": "hi"}}]}}
slow = {{**ask, "extra_headers": {{"x-fake-output-tokens": "60"}}}}
ids = []

def call(**fields):
    ids.append(client.chat.completions.create(**fields)._request_id)

threads = [threading.Thread(target=call, kwargs=slow) for _ in range(3)]
for thread in threads:
    thread.start()
while scheduler.snapshot().running == 0:
    time.sleep(0.001)  # another thread's real progress is waited for
child = os.fork()
if child == 0:
    held = scheduler.snapshot()
    assert (held.running, held.queued) == (0, 0), held
    call(**ask)

    async def main():
        return await scheduler.openai().chat.completions.create(**ask)

    ids.append(asyncio.run(main())._request_id)
    scheduler._driver.engine.check()
    print("child", *ids, flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
for thread in threads:
    thread.join()
scheduler._driver.engine.check()
print("parent", *ids, flush=True)
scheduler.close()
assert status == 0
"""

SERVED = """
from concurrent.futures import Future
urls, options = [], {}
server = fleet.serve()
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(server.start(), loop).result()
urls = fleet.base_urls
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("setup", [SERVED], ids=["over sockets"])
def test_a_fork_with_work_in_flight(setup: str) -> None:
    """The parent's calls go on, and the child begins with nothing."""
    run = subprocess.run(
        [sys.executable, "-c", FORK.format(setup=setup)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    child, parent = (line.split()[1:] for line in run.stdout.splitlines())
    assert (len(child), len(parent)) == (2, 3)
    assert not {one.rsplit("-", 1)[0] for one in child} & {one.rsplit("-", 1)[0] for one in parent}


# -- after the end ------------------------------------------------------------------------------------


def io_threads() -> int:
    return sum(thread.name == "agentsched-io" for thread in threading.enumerate())


def test_a_closed_scheduler_starts_no_thread_again(stack: ModuleType) -> None:
    before = io_threads()
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=upstream(stack, said("hi")))
    client = scheduler.openai_sync()
    scheduler.close()
    for ask in (lambda: client.chat.completions.create(**ASK), client.models.list):
        with pytest.raises(SchedulerClosed):
            ask()
    assert io_threads() == before


def test_a_forgotten_scheduler_leaves_no_thread_and_clients_outlive_their_scheduler(
    stack: ModuleType,
) -> None:
    before = io_threads()
    backends = [Backend("http://b:1/v1", models=[MODEL])]
    client = Scheduler(backends, upstream=upstream(stack, said("hi"))).openai_sync()
    for _ in range(2):
        gc.collect()
        assert client.chat.completions.create(**ASK).choices[0].message.content == "hi"
    assert io_threads() == before + 1
    del client
    gc.collect()
    until(lambda: io_threads() == before)


def test_models_asked_for_while_it_closes(stack: ModuleType) -> None:
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=upstream(stack, SLOW))
    client = scheduler.openai_sync()
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(client.models.list)
        until(lambda: scheduler._driver._loops != {})
        time.sleep(0.05)  # it is on its way over the wire, which has no end of its own
        scheduler.close()
        assert isinstance(asked.exception(SOON_S), SchedulerClosed)


def test_a_sync_call_in_a_loop_waits_for_room_that_others_hold(stack: ModuleType) -> None:
    """The blocked loop has a call as well, but at another backend."""
    released = threading.Event()

    async def release() -> None:
        while not released.is_set():
            await asyncio.sleep(0.001)

    held = Script(before=[release], headers=said("hi").headers, pieces=said("hi").pieces)
    backends = [Backend(f"http://{name}:1/v1", models=[name], max_concurrency=1) for name in ("a", "b")]
    scheduler = Scheduler(backends, upstream=upstream(stack, held))

    def ask(model: str) -> str:
        answer = scheduler.openai_sync().chat.completions.create(**{**ASK, "model": model})
        return str(answer.choices[0].message.content)

    async def main() -> None:
        ours = asyncio.create_task(scheduler.openai().chat.completions.create(**{**ASK, "model": "a"}))
        other = pool.submit(ask, "b")
        while scheduler.snapshot().running < 2:
            await asyncio.sleep(0.001)
        threading.Timer(0.4, released.set).start()  # later than the first looks at whether it waits in vain
        assert ask("b") == "hi"
        await ours
        assert other.result(SOON_S) == "hi"

    with ThreadPoolExecutor() as pool:
        asyncio.run(main())
    scheduler.close()
