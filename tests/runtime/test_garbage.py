"""What a call held goes when it ends, without waiting for the garbage collector: prompts and answers are large."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from types import ModuleType

import pytest
from openai import APIError, OpenAIError

from agentsched import Backend, BackendProtocolError, BackendUnavailable, Scheduler
from agentsched.runtime.attempt import Attempt
from agentsched.runtime.call import Call
from agentsched.testing import faults
from agentsched.transport.eventstream import EventStream
from agentsched.transport.exchange import Exchange
from tests.doubles import ASK, MODEL, Rig, Script, after_turns, delta, events, said, settled, upstream
from tests.runtime.test_cancel import not_streamable, streamed, whole

OURS = (Attempt, Call, EventStream, Exchange)


@pytest.fixture
def alive() -> Iterator[Callable[[], list[str]]]:
    """What was made since and lives, as nothing is collected."""
    gc.collect()
    earlier = {id(found) for found in gc.get_objects() if isinstance(found, OURS)}

    def made() -> list[str]:
        found = [each for each in gc.get_objects() if isinstance(each, OURS)]
        return [type(each).__name__ for each in found if id(each) not in earlier]

    gc.disable()
    yield made
    gc.enable()


async def failing_over(rig: Rig) -> None:
    rig["fake-1"].fail(faults.Cut(after_events=2))
    await rig.say(4)


async def failing(rig: Rig) -> None:
    for fake in rig.fleet:
        fake.fail(faults.Cut(after_events=2))
    try:
        await rig.say(4)
    except OpenAIError as error:
        assert not isinstance(error, APIError)


async def refused(rig: Rig) -> None:
    for fake in rig.fleet:
        fake.fail(faults.Status(code=400))
    try:
        await rig.say(4)
    except APIError:
        pass


async def left(rig: Rig) -> None:
    task = rig.begun(1_000)
    assert await after_turns(task, 40)


async def going_on(rig: Rig) -> None:
    rig["fake-1"].fail(faults.Cut(after_events=20))
    await rig.say(40)


async def going_on_streamed(rig: Rig) -> None:
    rig["fake-1"].fail(faults.Cut(after_events=20))
    async for _ in await rig.say(40, stream=True):
        pass


async def not_going_on(rig: Rig) -> None:
    rig["fake-2"].goes_on = "refuses"
    with suppress(BackendUnavailable):
        await going_on_streamed(rig)


CALLS = (
    *(whole, streamed, not_streamable, failing_over, failing, refused, left),
    *(going_on, going_on_streamed, not_going_on),
)


@pytest.mark.parametrize("call", CALLS)
def test_an_ended_call_leaves_nothing_to_the_collector(
    stack: ModuleType, call: Callable[[Rig], Awaitable[None]], alive: Callable[[], list[str]]
) -> None:
    rig = Rig(2, stack=stack)

    async def main() -> None:
        for _ in range(2):
            rig.fleet.heal()
            await call(rig)
            await settled()
            assert alive() == []

    rig.run(main)


SYNC: dict[str, tuple[Script, bool]] = {
    "whole": (said("a"), False),
    "streamed": (said("a"), True),
    "failing": (events(delta("a"), done=False), False),
    "failing streamed": (events(delta("a"), done=False), True),
}


@pytest.mark.parametrize(("answer", "stream"), SYNC.values(), ids=SYNC)
def test_an_ended_sync_call_leaves_nothing_either(
    stack: ModuleType, answer: Script, stream: bool, alive: Callable[[], list[str]]
) -> None:
    backend = Backend("http://b:1/v1", models=[MODEL])
    with Scheduler([backend], upstream=upstream(stack, answer)) as scheduler:
        client = scheduler.openai_sync()
        for _ in range(3):
            with suppress(BackendUnavailable, BackendProtocolError):
                answered = client.chat.completions.create(**ASK, stream=stream)
                list(answered)
                del answered
            scheduler.snapshot()
    assert alive() == []
