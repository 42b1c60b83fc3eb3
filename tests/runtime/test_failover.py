"""A backend that fails before the first byte is replaced, once by each other; later it is said what there was."""

import asyncio
from types import ModuleType
from typing import Any

import openai
import pytest

from agentsched import (
    Backend,
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    Expired,
    Scheduler,
)
from agentsched.testing import VirtualClock, faults
from agentsched.testing.faults import Fault
from tests.doubles import ASK, MODEL, Rig, begun, delta, events, outcome, said, upstream

EARLY: dict[str, Fault] = {
    "refuse": faults.Refuse(),
    "500": faults.Status(code=500),
    "502": faults.Status(code=502),
    "429": faults.Status(code=429, retry_after_s=60),
    "503": faults.Status(code=503),
    "401": faults.Status(code=401),
    "404": faults.Status(code=404, message="no such model"),
    "hang": faults.Hang(),
    "stall": faults.Stall(),
    "reset": faults.Cut(),
    "close": faults.Cut(reset=False),
    "early end": faults.EarlyEnd(),
    "in-band error": faults.ErrorEvent(),
    "garbage": faults.Garbage(),
}
"""Before any byte of the answer."""

LATE: dict[str, tuple[Fault, type[BackendError]]] = {
    "stall": (faults.Stall(after_events=5), BackendTimeout),
    "reset": (faults.Cut(after_events=5), BackendUnavailable),
    "close": (faults.Cut(after_events=5, reset=False), BackendUnavailable),
    "early end": (faults.EarlyEnd(after_events=5), BackendProtocolError),
    "in-band error": (faults.ErrorEvent(after_events=5, code=500), BackendError),
    "garbage": (faults.Garbage(after_events=5), BackendProtocolError),
}
"""After the role and four tokens."""

HASTY: dict[str, Any] = {"timeout": 5.0}


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("fault", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_others_are_tried_once_each(stack: ModuleType, fault: Fault, stream: bool) -> None:
    rig = Rig(3, stack=stack)
    for name in ("fake-1", "fake-2"):
        rig[name].fail(fault)

    async def main() -> None:
        answer = await rig.say(4, stream=stream, **HASTY)
        if stream:
            assert text_of([chunk async for chunk in answer]) != ""
            request_id = answer.response.headers["x-request-id"]
        else:
            assert answer.usage.completion_tokens == 4
            request_id = answer._request_id
        story = rig.scheduler.explain(request_id)
        assert (story.attempts, story.backend, story.outcome) == (3, "fake-3", "completed")

    rig.run(main)
    if not isinstance(fault, faults.Refuse):
        assert [name for name, _ in rig.fleet.calls] == ["fake-1", "fake-2", "fake-3"]


@pytest.mark.parametrize("fault", EARLY.values(), ids=EARLY)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_when_all_have_failed_the_last_ones_word_counts(
    stack: ModuleType, fault: Fault, stream: bool
) -> None:
    rig = Rig(2, stack=stack)
    rig.fleet.fail(fault)

    async def main() -> None:
        error = await outcome(rig.say(stream=stream, **HASTY))
        answered = isinstance(fault, (faults.Status, faults.ErrorEvent))
        assert isinstance(error, openai.APIStatusError if answered else BackendError)
        if isinstance(error, BackendError):
            assert (error.attempts, error.backend) == (2, "fake-2")

    rig.run(main)
    if not isinstance(fault, faults.Refuse):
        assert len(rig.received) == 2


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_call_that_is_wrong_is_wrong_everywhere(stack: ModuleType, status: int) -> None:
    rig = Rig(3, stack=stack)
    rig.fleet.fail(faults.Status(code=status))

    async def main() -> None:
        with pytest.raises(openai.APIStatusError):
            await rig.say()

    rig.run(main)
    assert len(rig.received) == 1


@pytest.mark.parametrize(("fault", "kind"), LATE.values(), ids=LATE)
def test_what_broke_after_the_first_byte_is_said_with_what_there_was(
    stack: ModuleType, fault: Fault, kind: type[BackendError]
) -> None:
    rig = Rig(1, stack=stack)
    rig["fake-1"].fail(fault)

    async def main() -> None:
        stream = await rig.say(50, stream=True, **HASTY)
        chunks: list[Any] = []
        with pytest.raises(kind) as caught:
            async for chunk in stream:
                chunks.append(chunk)  # noqa: PERF401 - what came before the error is wanted
        assert isinstance(caught.value, openai.OpenAIError)
        assert caught.value.partial_text == text_of(chunks) != ""
        assert len(chunks) == 5
        assert (caught.value.backend, caught.value.attempts, caught.value.sent) == ("fake-1", 1, True)
        assert caught.value.request_id == stream.response.headers["x-request-id"]

    rig.run(main)


@pytest.mark.parametrize("fault", [fault for fault, _ in LATE.values()], ids=LATE)
def test_who_asked_for_no_stream_gets_a_new_one_even_then(stack: ModuleType, fault: Fault) -> None:
    rig = Rig(2, stack=stack)
    rig["fake-1"].fail(fault)

    async def main() -> None:
        answer = await rig.say(50, **HASTY)
        assert answer.usage.completion_tokens == 50
        assert rig.scheduler.explain(answer._request_id).attempts == 2

    rig.run(main)


def test_partial_text_of_a_whole_call_is_of_the_last_attempt(stack: ModuleType) -> None:
    clock = VirtualClock()
    broken = [events(delta(text), OSError("gone"), done=False) for text in ("first", "second")]
    backends = [Backend(f"http://{name}:1/v1", models=[MODEL]) for name in "ab"]
    client = Scheduler(backends, upstream=upstream(stack, *broken), clock=clock).openai()

    async def main() -> None:
        with pytest.raises(BackendUnavailable) as caught:
            await client.chat.completions.create(**ASK)
        assert caught.value.partial_text == "second"

    clock.run(main())


def test_an_answer_of_one_backend_is_not_taken_for_the_end_of_another(stack: ModuleType) -> None:
    """The first answers 500, the second cannot be reached: that is what the caller is told."""
    rig = Rig(2, stack=stack)
    rig["fake-1"].fail(faults.Status(code=500))
    rig["fake-2"].fail(faults.Refuse())

    async def main() -> None:
        with pytest.raises(BackendUnavailable):
            await rig.say()

    rig.run(main)


def test_a_backend_that_is_full_is_waited_for_if_it_is_the_only_one_left(stack: ModuleType) -> None:
    rig = Rig(2, limit=1, stack=stack)

    async def main() -> None:
        long = rig.begun(400)
        await begun()
        (busy,) = [fake for fake in rig.fleet if fake.log.in_flight]
        (other,) = [fake for fake in rig.fleet if fake is not busy]
        other.fail(faults.Status(code=500))
        answer = await rig.say()
        story = rig.scheduler.explain(answer._request_id)
        assert (story.attempts, story.backend) == (2, busy.name)
        assert story.queue_s == pytest.approx(2.0, abs=0.1)
        await long

    rig.run(main)


# -- deadlines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_deadline_while_queued(stack: ModuleType, stream: bool) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        running = rig.begun(1_000)
        await begun()
        with rig.scheduler.query("q", timeout_s=2), pytest.raises(Expired, match="while queued") as caught:
            await rig.say(stream=stream)
        assert not caught.value.sent
        assert rig.clock() == pytest.approx(2, abs=0.01)
        assert rig.scheduler.snapshot().queued == 0
        await running

    rig.run(main)
    assert len(rig.received) == 1


@pytest.mark.parametrize("at", [0.5, 2.0])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_deadline_while_running_aborts_upstream(stack: ModuleType, stream: bool, at: float) -> None:
    rig = Rig(1, limit=1, stack=stack)
    rig["fake-1"].fail(faults.SlowStart(delay_s=1.0))

    async def call() -> None:
        answer = await rig.say(1_000, stream=stream)
        assert stream
        async for _ in answer:
            pass

    async def main() -> None:
        with (
            rig.scheduler.query("q", timeout_s=at),
            pytest.raises(Expired, match="running at fake-1") as caught,
        ):
            await call()
        assert caught.value.sent
        assert rig.clock() == pytest.approx(at, abs=0.01)
        await asyncio.sleep(0.001)
        assert rig.in_flight == 0
        assert rig.received[0].outcome in ("fault", "disconnected")
        rig["fake-1"].heal()
        await asyncio.wait_for(rig.say(), 1)  # the room is free

    rig.run(main)


def test_a_deadline_ends_the_search_for_another_backend(stack: ModuleType) -> None:
    rig = Rig(3, stack=stack)
    rig.fleet.fail(faults.Hang())

    async def main() -> None:
        with rig.scheduler.query("q", timeout_s=7), pytest.raises(Expired) as caught:
            await rig.say(timeout=3.0)
        assert caught.value.sent
        assert rig.clock() == pytest.approx(7, abs=0.01)
        story = rig.scheduler.explain(str(caught.value.request_id))
        assert story.attempts == 3

    rig.run(main)


def test_the_earlier_of_timeout_and_deadline_holds(stack: ModuleType) -> None:
    from datetime import UTC, datetime, timedelta

    rig = Rig(1, stack=stack)

    async def main() -> None:
        soon = datetime.now(UTC) + timedelta(seconds=2)
        with rig.scheduler.query("q", timeout_s=60, deadline=soon), pytest.raises(Expired):
            await rig.say(1_000)
        assert rig.clock() == pytest.approx(2, abs=0.5)
        late = datetime.now(UTC) + timedelta(seconds=60)
        with rig.scheduler.query("q", timeout_s=1, deadline=late), pytest.raises(Expired):
            await rig.say(1_000)
        assert rig.clock() == pytest.approx(3, abs=0.5)

    rig.run(main)


# -- what backends serve ------------------------------------------------------------------------------


def test_a_404_for_the_model_teaches_for_half_a_minute(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    rig["fake-1"].fail(faults.Status(code=404, message="The model does not exist"))

    async def main() -> None:
        for _ in range(3):
            await rig.say()
        assert rig["fake-1"].log.received == 1
        rig["fake-1"].heal()
        await asyncio.sleep(31)
        await rig.say()
        assert rig["fake-1"].log.received == 2

    rig.run(main)


def test_servers_are_asked_what_they_serve_at_first_use(stack: ModuleType) -> None:
    rig = Rig(2, listed=True, stack=stack)
    rig["fake-2"].models = ("another",)

    async def main() -> None:
        await asyncio.gather(*(rig.say() for _ in range(5)))
        assert rig["fake-2"].log.received == 0
        assert [fake.polls["/v1/models"] for fake in rig.fleet] == [1, 1]
        await rig.say(model="another")
        with pytest.raises(openai.OpenAIError, match="served are: another, fake-model"):
            await rig.say(model="third")

    rig.run(main)


def test_a_server_that_does_not_say_what_it_serves_is_tried(stack: ModuleType) -> None:
    clock = VirtualClock()
    transport = upstream(stack, lambda request: events(3_600.0) if request.method == "GET" else said("fine"))
    client = Scheduler([Backend("http://a:1/v1")], upstream=transport, clock=clock).openai()

    async def main() -> None:
        answer = await client.chat.completions.create(**{**ASK, "model": "anything"})
        assert answer.choices[0].message.content == "fine"
        assert clock() == pytest.approx(2.0)

    clock.run(main())
