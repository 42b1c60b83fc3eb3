"""What may happen in the middle of a decision or an action, and loses nobody's call all the same."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, BackendProtocolError, BackendUnavailable, Policy, Scheduler, UsageError
from agentsched.model import BackendLoad, Job
from agentsched.testing import FakeBackend, FakeFleet, FakeRequest, Reply, VirtualClock
from tests.doubles import ASK, MODEL, Rig, Script, assert_quiet, begun, outcome, said, upstream, whole


@contextmanager
def collecting_by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Cycle:
    """Holds something in a cycle of references, so that only the collector frees it."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.me = self


async def abandoned(scheduler: Scheduler) -> None:
    async with scheduler.query("abandoned"):
        await asyncio.Event().wait()


@pytest.mark.parametrize("nth", [1, 2, 3, 6])
def test_the_collector_may_close_a_query_in_the_middle_of_a_decision(nth: int) -> None:
    """Six calls are started by one decision; in the middle of it the collector closes a query."""
    asked = 0

    def cost(_job: Job, _load: BackendLoad) -> float:
        nonlocal asked
        asked += 1
        if asked == nth:
            gc.collect()  # what the interpreter does by itself now and then
        return 1.0

    rig = Rig(1, listed=True, policy=Policy(cost=cost))

    async def main() -> None:
        calls = [rig.begun() for _ in range(6)]
        left = abandoned(rig.scheduler)
        left.send(None)
        Cycle(left)
        del left
        assert rig.scheduler.snapshot().queries == 1
        answers = await asyncio.wait_for(asyncio.gather(*calls), 100)
        assert len(answers) == 6
        assert rig.scheduler.snapshot().queries == 0

    with collecting_by_hand():
        rig.run(main)
    assert asked >= 6


def test_a_policy_may_look_back_but_not_call_back() -> None:
    seen: list[Any] = []

    def cost(_job: Job, _load: BackendLoad) -> float:
        with rig.scheduler.query("inner"):
            seen.append(rig.scheduler.snapshot().running)
        call = rig.client.chat.completions.create(**ASK)
        try:
            call.send(None)
        except BaseException as error:
            seen.append(error)
        call.close()
        return 1.0

    rig = Rig(1, limit=2, policy=Policy(cost=cost))

    async def main() -> None:
        await asyncio.gather(*(rig.begun() for _ in range(5)))
        assert rig.scheduler.snapshot().queries == 0

    rig.run(main)
    refused = [error for error in seen if isinstance(error, UsageError)]
    assert "policy cannot make calls" in str(refused[0])


class Odd(BaseException):
    """What test frameworks end tests with."""


@pytest.mark.parametrize("stream", [False, True])
def test_a_transport_may_raise_anything(stack: ModuleType, stream: bool) -> None:
    async def boom() -> None:
        raise Odd("unexpected prompt")

    clock = VirtualClock()
    transport = upstream(stack, Script(before=[boom]), said("a"))
    backend = Backend("http://b:1/v1", models=[MODEL], max_concurrency=1)
    scheduler = Scheduler([backend], upstream=transport, clock=clock)

    async def main() -> None:
        client = scheduler.openai()
        error = await outcome(client.chat.completions.create(**ASK, stream=stream))
        assert isinstance(error, BackendProtocolError)
        assert "unexpected prompt" in str(error)
        assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "a"
        await assert_quiet(scheduler)

    clock.run(main())


def test_a_fakes_responder_that_fails_the_test_says_why() -> None:
    def responder(_request: FakeRequest) -> Reply:
        pytest.fail("unexpected prompt")

    rig = Rig(fleet=FakeFleet([FakeBackend("fake-1", responder=responder)]))

    async def main() -> None:
        assert "unexpected prompt" in str(await outcome(rig.say()))

    rig.run(main)


def test_a_transport_that_cancels_itself_has_failed(stack: ModuleType) -> None:
    """It awaits, say, a token's refresh that somebody else has cancelled."""
    clock = VirtualClock()

    async def refresh() -> None:
        shared = asyncio.get_running_loop().create_future()
        shared.cancel()
        await shared

    transport = upstream(stack, Script(before=[refresh]))
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=transport, clock=clock)

    async def main() -> None:
        error = await outcome(scheduler.openai().chat.completions.create(**ASK))
        assert isinstance(error, BackendUnavailable)
        assert len(transport.seen.requests) == 1
        await assert_quiet(scheduler)

    clock.run(main())


def plain(loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop)


def broken(_loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
    raise TypeError("no tasks today")


def test_a_task_factory_need_not_know_contexts() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(plain)
        await asyncio.gather(*(rig.begun() for _ in range(3)))

    rig.run(main)


def test_a_task_factory_that_fails_fails_calls_one_by_one() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        calls = [rig.begun(20) for _ in range(3)]
        await begun()
        loop = asyncio.get_running_loop()
        loop.set_task_factory(broken)
        waiter = loop.create_future()
        loop.call_later(1, waiter.set_result, None)
        await waiter
        loop.set_task_factory(None)
        first, *others = await asyncio.gather(*map(outcome, calls))
        assert first.choices[0].message.content
        assert all("no tasks today" in str(other) for other in others)

    rig.run(main)


def test_closing_that_is_cancelled_can_be_done_again(stack: ModuleType) -> None:
    clock = VirtualClock()
    transport = upstream(stack, Script(pieces=[3_600.0]))
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=transport, clock=clock)
    closed: list[bool] = []

    async def main() -> None:
        call = asyncio.ensure_future(scheduler.openai().chat.completions.create(**ASK))
        await begun()
        row = scheduler._driver._row(asyncio.get_running_loop())
        close = row.aclose

        async def watched() -> None:
            await close()
            closed.append(True)

        row.aclose = watched  # type: ignore[method-assign]
        first = asyncio.ensure_future(scheduler.aclose())
        await asyncio.sleep(0)
        first.cancel()
        await scheduler.aclose()
        assert closed
        await outcome(call)

    clock.run(main())


class Refused(BaseException):
    """What a policy under test may raise."""


def test_a_decision_that_is_broken_off_keeps_what_was_decided() -> None:
    asked = 0

    def cost(_job: Job, _load: BackendLoad) -> float:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise Refused
        return 1.0

    rig = Rig(1, listed=True, policy=Policy(cost=cost))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        calls = [rig.begun() for _ in range(3)]
        assert len(await asyncio.wait_for(asyncio.gather(*calls), 100)) == 3

    rig.run(main)


async def cancelled() -> None:
    shared = asyncio.get_running_loop().create_future()
    shared.cancel()
    await shared


async def odd() -> None:
    raise Odd


@pytest.mark.parametrize("step", [cancelled, odd, OSError("refused"), RuntimeError("odd")], ids=repr)
def test_a_question_that_fails_in_any_way_is_answered(stack: ModuleType, step: Any) -> None:
    """Its backend is tried with any model, and asked again later."""
    clock = VirtualClock()
    questions = 0

    def answer(request: Any) -> Script:
        nonlocal questions
        if request.method == "POST":
            return said("a")
        questions += 1
        return Script(before=[step])

    transport = upstream(stack, answer)
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=transport, clock=clock)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        client = scheduler.openai()
        for _ in range(10):
            assert (await client.chat.completions.create(**ASK)).choices[0].message.content == "a"
            await asyncio.sleep(1)
        await assert_quiet(scheduler)

    clock.run(main())
    assert questions == 2


def test_a_task_factory_that_fails_answers_questions_too(stack: ModuleType) -> None:
    rig = Rig(1, listed=True)
    fails = [True]

    def once(loop: asyncio.AbstractEventLoop, work: Any) -> asyncio.Task[Any]:
        if fails and work.__name__ == "list":
            fails.clear()
            raise TypeError("no tasks today")
        return asyncio.Task(work, loop=loop)

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(once)
        assert (await rig.say()).choices[0].message.content
        assert not fails

    rig.run(main)


def test_a_cancelled_look_at_the_models_leaves_the_engines_own_question_alone(stack: ModuleType) -> None:
    listed = whole({"data": [{"id": MODEL}]})
    listed.before = [1.0]
    clock = VirtualClock()
    transport = upstream(stack, lambda request: listed if request.method == "GET" else said("a"))
    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=transport, clock=clock)

    async def main() -> None:
        client = scheduler.openai()
        call = asyncio.ensure_future(client.chat.completions.create(**ASK))
        await begun()
        for _ in range(5):
            look = asyncio.ensure_future(client.models.list())
            await asyncio.sleep(0.01)
            look.cancel()
            await asyncio.sleep(0.1)
        await call
        await assert_quiet(scheduler)

    clock.run(main())
    assert sum(request.method == "GET" for request in transport.seen.requests) == 1 + 5


def test_a_thread_without_a_loop_may_find_that_one_has_ended(stack: ModuleType) -> None:
    """What that loop had asked is asked again on a loop that is open."""
    listed = whole({"data": [{"id": MODEL}]})
    slow = Script(before=[3_600.0])
    questions: list[Any] = []

    def answer(request: Any) -> Script:
        if request.method == "POST":
            return said("a")
        questions.append(request)
        return slow if len(questions) == 1 else listed

    scheduler = Scheduler([Backend("http://b:1/v1")], upstream=upstream(stack, answer))
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    thread = threading.Thread(target=second.run_forever, daemon=True)

    async def ask() -> Any:
        return await scheduler.openai().chat.completions.create(**ASK)

    async def begin() -> None:
        task = asyncio.ensure_future(ask())
        await asyncio.sleep(0.05)
        task._log_destroy_pending = False  # type: ignore[attr-defined] - that it is lost is the point

    first.run_until_complete(begin())
    thread.start()
    waiting = asyncio.run_coroutine_threadsafe(ask(), second)
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    for task in asyncio.all_tasks(first):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    first.close()
    with scheduler.query("in a plain thread"):
        pass
    assert waiting.result(10).choices[0].message.content == "a"
    asyncio.run_coroutine_threadsafe(scheduler.aclose(), second).result(10)
    second.call_soon_threadsafe(second.stop)
    thread.join(10)
    second.close()


@pytest.mark.parametrize("how", ["cancel the question", "end the loop"])
def test_a_question_that_is_cut_short_is_asked_again(stack: ModuleType, how: str) -> None:
    """Else "it could not say" would be believed, and calls sent to servers that answer with another model."""
    listed = whole({"data": [{"id": "other"}]})
    listed.before = [0.1]
    mine = whole({"data": [{"id": MODEL}]})
    mine.before = [0.1]

    def answer(request: Any) -> Script:
        if request.method == "GET":
            return mine if request.url.host == "b" else listed
        return said(request.url.host)

    transport = upstream(stack, answer)
    fleet = [Backend("http://a:1/v1"), Backend("http://b:1/v1")]
    scheduler = Scheduler(fleet, upstream=transport)

    async def cut() -> None:
        models = asyncio.ensure_future(scheduler.openai().chat.completions.create(**ASK))
        await asyncio.sleep(0.05)
        if how == "cancel the question":
            for task in list(scheduler._driver._row(asyncio.get_running_loop()).tasks):
                task.cancel()
            assert (await models).choices[0].message.content == "b"
        else:
            models.cancel()

    async def ask() -> None:
        client = scheduler.openai()
        answers = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(4)))
        assert {answer.choices[0].message.content for answer in answers} == {"b"}
        await scheduler.aclose()

    asyncio.run(cut())
    asyncio.run(ask())
