"""Cases of streams, cancellation and observability; 71 is in `tests/runtime/test_loops.py`."""

import asyncio
from typing import Any

import httpx2
import pytest

from agentsched import (
    Backend,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    Expired,
    Limits,
    Scheduler,
)
from agentsched.testing import FakeFleet, faults
from tests.doubles import (
    ASK,
    MODEL,
    Rig,
    assert_idle,
    begun,
    collected,
    counts,
    delta,
    events,
    outcome,
    said,
    settled,
    upstream,
)

LONG = 10_000
FIRST_IN_2_S = {"limits": Limits(first_token_s=2)}


async def read_all(rig: Rig, *, stream: bool) -> None:
    answer = await rig.say(stream=stream)
    if stream:
        async for _ in answer:
            pass


@pytest.mark.parametrize("how", ["raise", "aclose", "drop", "never iterated"])
def test_case_46_a_stream_that_is_left_holds_nothing(how: str) -> None:
    """46: the consumer raises, closes, drops or never iterates: the next call starts at once."""
    rig = Rig(1, limit=1)

    async def leave() -> None:
        stream = await rig.say(LONG, stream=True)
        if how == "never iterated":
            return
        async for _ in stream:
            if how == "raise":
                raise LookupError("the consumer's own")
            if how == "aclose":
                await stream.close()
            break

    async def main() -> None:
        await asyncio.gather(leave(), return_exceptions=True)
        await collected()
        at = rig.clock()
        await rig.say(1)
        assert rig.clock() - at < 0.1

    rig.run(main)
    assert rig.received[0].outcome == "disconnected"


def test_case_46_a_stream_never_started_ends_with_its_deadline() -> None:
    """46: kept and never read, against a backend that stalls: its deadline frees the room."""
    rig = Rig(1, limit=1)
    rig["fake-1"].fail(faults.Stall(after_events=2), nth=1)

    async def main() -> None:
        with rig.scheduler.query("q", timeout_s=10):
            kept = await rig.say(LONG, stream=True)
        await rig.say(1)
        assert rig.clock() == pytest.approx(10, abs=0.1)
        with pytest.raises(Expired):
            [chunk async for chunk in kept]

    rig.run(main)


def test_case_47_cancelled_in_the_middle_the_next_call_runs_within_100_ms() -> None:
    """47: limit 1; the task that reads a stream is cancelled; the next call is not turned away."""
    rig = Rig(1, limit=1)

    async def read() -> None:
        async for _ in await rig.say(LONG, stream=True):
            pass

    async def main() -> None:
        for _ in range(20):
            task = asyncio.ensure_future(read())
            await asyncio.sleep(0.5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            at = rig.clock()
            await rig.say(1)
            assert rig.clock() - at < 0.1

    rig.run(main)
    assert rig["fake-1"].log.disconnects == 20


def test_case_49_a_hundred_and_twenty_cancels_exhaust_nothing() -> None:
    """49: over real connections of HTTP/1.1, 120 streams are cancelled; then calls pass as before."""
    fleet = FakeFleet.fast(1, seats=500)
    backend = fleet["fake-1"]

    async def main() -> None:
        async with fleet.serve(time_scale=10):
            scheduler = Scheduler([Backend(backend.base_url, models=[MODEL], max_concurrency=40)])
            client = scheduler.openai()

            async def read() -> None:
                headers = {"x-fake-output-tokens": "100000"}
                stream = await client.chat.completions.create(**ASK, stream=True, extra_headers=headers)
                async for _ in stream:
                    pass

            for _ in range(3):
                tasks = [asyncio.ensure_future(read()) for _ in range(40)]
                while backend.log.in_flight < 40:
                    await asyncio.sleep(0.002)
                await asyncio.sleep(0.02)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await settled()
                assert_idle(scheduler)
                async with asyncio.timeout(2):
                    while backend.log.in_flight:
                        await asyncio.sleep(0.002)
            assert backend.log.disconnects == 120
            async with asyncio.timeout(2):
                answers = await asyncio.gather(
                    *(client.chat.completions.create(**ASK, max_tokens=3) for _ in range(40))
                )
            assert all(answer.choices[0].message.content for answer in answers)
            await scheduler.aclose()

    asyncio.run(main())


def test_case_104_time_in_the_queue_is_not_time_at_the_model() -> None:
    """104: eight seconds in the queue and two at the model, in the story of a streamed call."""
    rig = Rig(1, limit=1)

    async def main() -> None:
        first = rig.begun(1_600)
        await begun()
        stream: Any = await rig.say(400, stream=True)
        assert [chunk async for chunk in stream]
        story = rig.scheduler.explain(stream.response.headers["x-request-id"])
        assert story.queue_s == pytest.approx(8.0, abs=0.1)
        assert (story.first_token_s or 0) + (story.decode_s or 0) == pytest.approx(2.0, abs=0.1)
        await first

    rig.run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_case_40_a_first_token_later_than_its_limit_moves_the_call(stream: bool) -> None:
    """The call runs elsewhere at once, and the room it had is free."""
    rig = Rig(2, limit=1, upstream=upstream(httpx2, events(3_600.0), said("quick")), limits=FIRST_IN_2_S)

    async def main() -> None:
        answer = await rig.say(stream=stream)
        if stream:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
        else:
            text = answer.choices[0].message.content
        assert text == "quick"
        assert rig.clock() == pytest.approx(2.0)

    rig.run(main)


def test_case_41_a_cut_in_the_middle_keeps_what_was_said() -> None:
    cut = events(*[delta(f"{i} ") for i in range(10)], httpx2.ReadError("peer closed"))
    rig = Rig(1, upstream=upstream(httpx2, cut))

    async def main() -> None:
        for stream in (False, True):
            found = await outcome(read_all(rig, stream=stream))
            assert isinstance(found, BackendUnavailable)
            assert found.partial_text == "0 1 2 3 4 5 6 7 8 9 "
            assert found.backend == "fake-1"
            assert found.sent

    rig.run(main)


@pytest.mark.parametrize("bad", [b"data: {oops\n\n", b"data: 7\n\n", b"data: \xff\xfe\n\n"])
def test_case_43_a_malformed_event_fails_the_stream(bad: bytes) -> None:
    """Our choice: an answer with a hole in it is none. Lines that are no event of ours do not count as one."""
    rig = Rig(1, upstream=upstream(httpx2, events(delta("a"), bad, delta("b"), delta(finish="stop"))))

    async def main() -> None:
        for stream in (False, True):
            found = await outcome(read_all(rig, stream=stream))
            assert isinstance(found, BackendProtocolError)
            assert found.partial_text == "a"

    rig.run(main)


def test_case_44_a_stall_ends_with_the_idle_limit() -> None:
    """Of a caller who streams, with what came; of one who does not, elsewhere."""
    stall = events(delta("a"), 30.0, delta("b"), delta(finish="stop"), counts())
    limits = {"limits": Limits(idle_s=5)}
    streaming = Rig(1, upstream=upstream(httpx2, stall), limits=limits)

    async def streams() -> None:
        found = await outcome(read_all(streaming, stream=True))
        assert isinstance(found, BackendTimeout)
        assert found.partial_text == "a"
        assert streaming.clock() == pytest.approx(5.0)

    streaming.run(streams)
    whole = Rig(2, upstream=upstream(httpx2, stall, said("quick")), limits=limits)

    async def waits() -> None:
        assert (await whole.say()).choices[0].message.content == "quick"
        assert whole.clock() == pytest.approx(5.0)

    whole.run(waits)
