"""However a stream is left, its room is freed; a slow reader slows its own answer and nothing else."""

import asyncio
import gc
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, Expired, Scheduler
from agentsched.runtime.attempt import READER_S
from agentsched.runtime.loops import GRACE_S
from agentsched.runtime.spool import MAX_UNREAD_BYTES, Spool
from agentsched.testing import VirtualClock, faults
from agentsched.transport import stack as stacks
from tests.doubles import (
    ASK,
    MODEL,
    Rig,
    assert_quiet,
    begun,
    collected,
    counts,
    delta,
    event,
    events,
    outcome,
    settled,
    upstream,
)

LONG = 10_000
"""Tokens of an answer that nobody waits for the end of: 50 s."""

PIECE = event(delta("x" * 10_000))
COUNT = 400
"""Pieces of 4 MB in all."""


def idle(rig: Rig) -> bool:
    return not rig.scheduler._driver.engine.attempts and rig.in_flight == 0


# -- leaving ------------------------------------------------------------------------------------------


def test_break_inside_a_with_block(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        async with await rig.say(LONG, stream=True) as stream:
            async for _ in stream:
                break
        await settled()
        assert idle(rig)
        await rig.say(1)
        assert rig.clock() < 1

    rig.run(main)


def test_a_bare_break_frees_when_the_stream_is_let_go(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        stream = await rig.say(LONG, stream=True)
        async for _ in stream:
            break
        del stream
        await collected()
        assert idle(rig)

    rig.run(main)


@pytest.mark.parametrize("read", [0, 3])
def test_closing_it(stack: ModuleType, read: int) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        stream = await rig.say(LONG, stream=True)
        for _ in range(read):
            await anext(stream)
        await stream.close()
        await settled()
        assert idle(rig)
        await stream.close()

    rig.run(main)


def test_an_error_inside_the_loop(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def consume() -> None:
        async for _ in await rig.say(LONG, stream=True):
            raise LookupError("mine")

    async def main() -> None:
        with pytest.raises(LookupError):
            await consume()
        await collected()
        assert idle(rig)

    rig.run(main)


def test_never_iterated_and_dropped(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        stream = await rig.say(LONG, stream=True)
        assert not idle(rig)
        del stream
        await collected()
        assert idle(rig)

    rig.run(main)


def test_never_iterated_in_a_cycle_of_references(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        gc.disable()
        try:
            loop: list[Any] = [await rig.say(LONG, stream=True)]
            loop.append(loop)
            del loop
            await settled()
            assert not idle(rig)
        finally:
            gc.enable()
        await collected()
        assert idle(rig)

    rig.run(main)


def test_never_iterated_and_kept_is_done_when_the_backend_is(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        stream = await rig.say(200, stream=True)
        await rig.say(1)
        assert rig.clock() == pytest.approx(1.0, abs=0.1)
        assert len([chunk async for chunk in stream]) > 200

    rig.run(main)


def test_never_iterated_and_kept_ends_with_its_deadline(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)
    rig["fake-1"].fail(faults.Stall(after_events=3), nth=1)

    async def main() -> None:
        with rig.scheduler.query("q", timeout_s=5):
            stream = await rig.say(LONG, stream=True)
        await rig.say(1)
        assert rig.clock() == pytest.approx(5, abs=0.1)
        with pytest.raises(Expired):
            [chunk async for chunk in stream]

    rig.run(main)


def test_left_in_the_middle_of_a_read(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)
    rig["fake-1"].fail(faults.Stall(after_events=3))

    async def main() -> None:
        stream = await rig.say(LONG, stream=True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                async for _ in stream:
                    pass
        await settled()
        assert idle(rig)

    rig.run(main)


def test_left_in_the_middle_of_a_read_by_who_keeps_the_response(stack: ModuleType) -> None:
    """A bare HTTP client does not close what it was cancelled reading."""
    rig = Rig(1, limit=1, stack=stack)
    rig["fake-1"].fail(faults.Stall(after_events=3))

    async def main() -> None:
        async with rig.scheduler.http_async_client() as http:
            request = http.build_request("POST", "/chat/completions", json={**ASK, "stream": True})
            response = await http.send(request, stream=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    async for _ in response.aiter_raw():
                        pass
            await settled()
            assert idle(rig)
            await response.aclose()

    rig.run(main)


# -- the terminal event frees the room ----------------------------------------------------------------


def test_room_is_free_at_the_terminal_event_although_nobody_has_read(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        stream = await rig.say(20, stream=True)
        at = rig.clock()
        waiting = rig.begun(1)
        await waiting
        assert rig.clock() - at < 0.2
        story = rig.scheduler.explain(stream.response.headers["x-request-id"])
        assert story.outcome == "completed"
        await asyncio.sleep(100)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "stop"

    rig.run(main)


def test_room_is_free_at_the_terminal_event_although_the_connection_stays(stack: ModuleType) -> None:
    clock = VirtualClock()
    lingering = events(delta("a"), delta(finish="stop"))
    lingering.pieces = [*lingering.pieces, 3_600.0]
    scheduler = Scheduler(
        [Backend("http://b:1/v1", models=[MODEL], max_concurrency=1)],
        upstream=upstream(stack, lingering),
        clock=clock,
    )

    async def main() -> None:
        client = scheduler.openai()
        for _ in range(5):
            await client.chat.completions.create(**ASK)
        assert clock() < 0.01
        await assert_quiet(scheduler)

    clock.run(main())


# -- after the finish reason ---------------------------------------------------------------------------


class Lingering:
    """A backend that has said its finish reason and then goes on in some way instead of ending."""

    def __init__(self, stack: ModuleType, *after: Any, finish: bool = True) -> None:
        script = events(delta("a"), *([delta(finish="stop")] if finish else []), done=False)
        script.pieces = [*script.pieces, *after]
        self.clock = VirtualClock()
        self.transport = upstream(stack, script)
        self.scheduler = Scheduler(
            [Backend("http://b:1/v1", models=[MODEL], max_concurrency=1)],
            upstream=self.transport,
            clock=self.clock,
        )
        self.client = self.scheduler.openai()

    def run(self, main: Any) -> None:
        async def quietly() -> None:
            await main()
            await assert_quiet(self.scheduler)
            assert self.transport.seen.open == 0
            assert self.scheduler.snapshot().backends[0].failed == 0

        self.clock.run(quietly())


NEVER = 1e6
PINGS = [step for _ in range(1_000) for step in (1.0, b": ping\n\n")]


@pytest.mark.parametrize("after", [[NEVER], PINGS], ids=["silence", "comments"])
def test_an_answer_is_complete_a_little_after_its_finish_reason(stack: ModuleType, after: list[Any]) -> None:
    backend = Lingering(stack, *after)

    async def main() -> None:
        answer = await backend.client.chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "a"
        assert backend.clock() == pytest.approx(GRACE_S)
        stream = await backend.client.chat.completions.create(**ASK, stream=True)
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["a", None]
        assert backend.clock() == pytest.approx(2 * GRACE_S)

    backend.run(main)


def test_usage_that_comes_late_still_counts(stack: ModuleType) -> None:
    backend = Lingering(stack, GRACE_S - 1, event(counts(3, 2)), NEVER)

    async def main() -> None:
        answer = await backend.client.chat.completions.create(**ASK)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert backend.clock() == pytest.approx(GRACE_S)

    backend.run(main)


def test_text_that_goes_on_after_a_finish_reason_is_not_cut(stack: ModuleType) -> None:
    more = [step for _ in range(20) for step in (1.0, event(delta("b", finish="stop")))]
    backend = Lingering(stack, *more, b"data: [DONE]\n\n")

    async def main() -> None:
        answer = await backend.client.chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "a" + 20 * "b"

    backend.run(main)


@pytest.mark.parametrize("pause_s", [0.2, GRACE_S + 1])
def test_a_finish_reason_that_was_none_ends_nothing_later(stack: ModuleType, pause_s: float) -> None:
    """The text that follows takes it back, and with it the time that was set for the end."""
    count = round(2 * GRACE_S / pause_s) + 1
    first = [event(delta("b", finish="stop")), 0.1, event(delta("b"))]
    more = [step for _ in range(count) for step in (pause_s, event(delta("b")))]
    end = [event(delta(finish="stop")), b"data: [DONE]\n\n"]
    backend = Lingering(stack, *first, *more, *end, finish=False)

    async def main() -> None:
        for stream in (False, True):
            answer = await backend.client.chat.completions.create(**ASK, stream=stream)
            if stream:
                text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
            else:
                text = answer.choices[0].message.content
            assert text == "a" + (count + 2) * "b"

    backend.run(main)


def test_where_every_event_has_a_finish_reason_none_ends_anything(stack: ModuleType) -> None:
    events_ = [step for _ in range(3) for step in (GRACE_S + 1, event(delta("b", finish="stop")))]
    first = [event(delta("b", finish="stop"))] * 2
    backend = Lingering(stack, *first, *events_, b"data: [DONE]\n\n", finish=False)

    async def main() -> None:
        answer = await backend.client.chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "a" + 5 * "b"

    backend.run(main)


@pytest.mark.parametrize("nothing", [{}, {"choices": [], "usage": {"completion_tokens": 1}}])
def test_events_that_say_nothing_do_not_put_the_end_off(stack: ModuleType, nothing: Any) -> None:
    after = [step for _ in range(100) for step in (1.0, event(nothing))]
    backend = Lingering(stack, *after)

    async def main() -> None:
        await backend.client.chat.completions.create(**ASK)
        assert backend.clock() == pytest.approx(GRACE_S)

    backend.run(main)


def test_several_answers_end_too_when_all_have_their_finish_reasons(stack: ModuleType) -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    backend = Lingering(stack, event(second), NEVER)

    async def main() -> None:
        stream = await backend.client.chat.completions.create(**ASK, n=2, stream=True)
        assert len([chunk async for chunk in stream]) == 3
        assert backend.clock() == pytest.approx(GRACE_S)

    backend.run(main)


@pytest.mark.parametrize("reason", ["", "null"])
def test_a_finish_reason_that_is_none_cuts_nothing(stack: ModuleType, reason: str) -> None:
    more = [step for _ in range(20) for step in (1.0, event(delta("b", finish=reason)))]
    backend = Lingering(stack, *more, event(delta(finish="stop")), b"data: [DONE]\n\n", finish=False)

    async def main() -> None:
        answer = await backend.client.chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "a" + 20 * "b"
        assert answer.choices[0].finish_reason == "stop"

    backend.run(main)


def test_the_end_of_one_of_several_answers_is_not_the_end(stack: ModuleType) -> None:
    second = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    backend = Lingering(stack, 10 * GRACE_S, event(second), b"data: [DONE]\n\n")

    async def main() -> None:
        stream = await backend.client.chat.completions.create(**ASK, n=2, stream=True)
        said = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices]
        assert said == ["a", None, "b"]

    backend.run(main)


def test_time_that_the_reader_takes_is_not_the_backends(stack: ModuleType) -> None:
    large = delta("x" * 2 * MAX_UNREAD_BYTES, finish="stop")
    usage = [GRACE_S - 1, event(counts(3, 2)), NEVER]
    backend = Lingering(stack, event(large), *usage, finish=False)

    async def main() -> None:
        stream = await backend.client.chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}
        )
        await asyncio.sleep(3.5 * GRACE_S)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert backend.clock() == pytest.approx(3.5 * GRACE_S + GRACE_S)

    backend.run(main)


def test_leaving_while_the_rest_is_waited_for(stack: ModuleType) -> None:
    backend = Lingering(stack, NEVER)

    async def main() -> None:
        call = asyncio.ensure_future(backend.client.chat.completions.create(**ASK))
        await asyncio.sleep(1)
        call.cancel()
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], asyncio.CancelledError)
        await asyncio.sleep(2 * GRACE_S)
        assert not backend.scheduler._driver._row(asyncio.get_running_loop()).ending

    backend.run(main)


# -- slow readers -------------------------------------------------------------------------------------


class Flood:
    """A backend that says 4 MB as fast as it is read."""

    def __init__(self, stack: ModuleType, *, limit: int | None = 1) -> None:
        script = events(
            delta("a"), *[step for _ in range(COUNT) for step in (0.0, PIECE)], delta(finish="stop")
        )
        self.clock = VirtualClock()
        self.transport = upstream(stack, script, events(delta("short"), delta(finish="stop")))
        self.seen = self.transport.seen
        self.scheduler = Scheduler(
            [Backend("http://b:1/v1", models=[MODEL], max_concurrency=limit)],
            upstream=self.transport,
            clock=self.clock,
        )
        self.client = self.scheduler.openai()

    async def stream(self) -> Any:
        return await self.client.chat.completions.create(**ASK, stream=True)

    @property
    def running(self) -> int:
        return len(self.scheduler._driver.engine.attempts)

    def run(self, main: Any) -> None:
        async def quietly() -> None:
            await main()
            await assert_quiet(self.scheduler)
            assert self.seen.open == 0

        self.clock.run(quietly())


def test_a_reader_that_does_not_read_holds_the_backend_back(stack: ModuleType) -> None:
    flood = Flood(stack)

    async def main() -> None:
        stream = await flood.stream()
        await asyncio.sleep(10)
        most = MAX_UNREAD_BYTES // len(PIECE) + 3
        assert flood.seen.sent <= most
        assert flood.running == 1
        chunks = [chunk async for chunk in stream]
        assert len(chunks) == COUNT + 2
        assert flood.running == 0
        decode = flood.scheduler.snapshot().backends[0].decode_s_per_token
        assert decode is None, "10 s of waiting say nothing of the backend"

    flood.run(main)


def test_a_quick_reader_is_learned_from(stack: ModuleType) -> None:
    flood = Flood(stack)
    slow = events(delta("a"), *[step for _ in range(10) for step in (0.5, delta("b"))], delta(finish="stop"))
    flood.transport = upstream(stack, slow)
    scheduler = Scheduler(
        [Backend("http://b:1/v1", models=[MODEL])], upstream=flood.transport, clock=flood.clock
    )

    async def main() -> None:
        stream = await scheduler.openai().chat.completions.create(**ASK, stream=True)
        assert len([chunk async for chunk in stream]) == 12
        assert scheduler.snapshot().backends[0].decode_s_per_token == pytest.approx(0.5)

    flood.clock.run(main())


def test_a_reader_that_has_gone_is_given_up_after_a_minute(stack: ModuleType) -> None:
    flood = Flood(stack)

    async def main() -> None:
        stream = await flood.stream()
        at = flood.clock()
        await flood.client.chat.completions.create(**ASK)
        assert flood.clock() - at == pytest.approx(READER_S, abs=0.1)
        story = flood.scheduler.explain(stream.response.headers["x-request-id"])
        assert story.outcome == "cancelled"
        assert story.entries[-1].facts["reason"] == "the reader stopped reading"
        got: list[Any] = []
        with pytest.raises(Expired, match="reading") as caught:
            async for chunk in stream:
                got.append(chunk)  # noqa: PERF401 - what came before the error is wanted
        assert caught.value.sent
        assert 0 < len(got) < COUNT

    flood.run(main)
    assert READER_S == 60


def test_a_reader_that_reads_a_little_now_and_then_has_not_gone(stack: ModuleType) -> None:
    flood = Flood(stack)

    async def main() -> None:
        stream = await flood.stream()
        await asyncio.sleep(1)
        big = b"".join(event(delta("y" * 10_000)) for _ in range(60))
        flood.scheduler._driver._attempts  # noqa: B018 - the attempt waits for room
        (call,) = flood.scheduler._driver._calls.values()
        call.spool.put(big)  # as one read of the connection may bring
        for _ in range(10):
            await anext(stream)
            await asyncio.sleep(0.75 * READER_S)
            assert flood.running == 1
        await stream.close()

    flood.run(main)


def test_slow_readers_do_not_hold_up_others(stack: ModuleType) -> None:
    flood = Flood(stack, limit=None)

    async def main() -> None:
        stream = await flood.stream()
        await asyncio.sleep(1)
        at = flood.clock()
        await flood.client.chat.completions.create(**ASK)
        assert flood.clock() - at < 0.01
        await stream.close()

    flood.run(main)


def test_who_asked_for_no_stream_is_no_slow_reader(stack: ModuleType) -> None:
    flood = Flood(stack)

    async def main() -> None:
        answer = await flood.client.chat.completions.create(**ASK)
        assert len(str(answer.choices[0].message.content)) == COUNT * 10_000 + 1

    flood.run(main)


# -- the spool ----------------------------------------------------------------------------------------


def test_a_spool_gives_what_was_put_then_the_end() -> None:
    async def main() -> None:
        spool = Spool()
        spool.put(b"a")
        spool.put(b"")
        spool.put(b"b")
        spool.close()
        spool.put(b"late")
        spool.close(LookupError())
        assert spool.complete
        assert [await spool.read() for _ in range(4)] == [b"a", b"b", None, None]

    asyncio.run(main())


def test_a_spool_gives_what_was_put_then_the_error() -> None:
    async def main() -> None:
        spool = Spool()
        spool.put(b"a")
        spool.close(LookupError("x"))
        assert not spool.complete
        assert await spool.read() == b"a"
        for _ in range(2):
            with pytest.raises(LookupError):
                await spool.read()

    asyncio.run(main())


def test_a_writer_waits_for_the_reader_or_the_end() -> None:
    async def main() -> None:
        spool = Spool()
        spool.put(b"x" * MAX_UNREAD_BYTES)
        assert not spool.full
        spool.put(b"y")
        assert spool.full
        waiting = asyncio.ensure_future(spool.room())
        await settled()
        assert not waiting.done()
        await spool.read()
        await asyncio.wait_for(waiting, 1)
        spool.put(b"x" * MAX_UNREAD_BYTES)
        waiting = asyncio.ensure_future(spool.room())
        await begun()
        spool.close()
        await asyncio.wait_for(waiting, 1)

    asyncio.run(main())


def test_a_reader_waits_for_the_writer() -> None:
    async def main() -> None:
        spool = Spool()
        waiting = asyncio.ensure_future(spool.read())
        await settled()
        spool.put(b"a")
        assert await asyncio.wait_for(waiting, 1) == b"a"
        waiting = asyncio.ensure_future(spool.read())
        await settled()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        spool.put(b"b")
        spool.close()
        assert spool.take() == b"b"
        assert await spool.read() is None

    asyncio.run(main())


@pytest.mark.parametrize("while_reading", [False, True])
def test_a_stream_that_another_task_closes_does_not_end_as_if_it_were_complete(
    stack: ModuleType, while_reading: bool
) -> None:
    rig = Rig(1, stack=stack)

    async def main() -> None:
        stream = await rig.say(1_000, stream=True)
        reading = aiter(stream.response.aiter_bytes())
        await anext(reading)
        if while_reading:
            more = asyncio.ensure_future(outcome(anext(reading)))
            await settled()
        await stream.response.stream._stream.aclose()
        await settled()
        found = await (more if while_reading else outcome(anext(reading)))
        while isinstance(found, bytes):
            found = await outcome(anext(reading))
        assert isinstance(found, stacks.default_stack().StreamClosed)
        await stream.close()

    rig.run(main)


def test_two_tasks_cannot_read_one_stream(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)

    async def main() -> None:
        stream = await rig.say(1_000, stream=True)
        inner = stream.response.stream._stream
        tasks = [asyncio.ensure_future(outcome(read_out(inner))) for _ in range(2)]
        await asyncio.sleep(0.1)
        assert [task.done() for task in tasks] == [False, True]
        assert "another task is reading this answer" in str(tasks[1].result())
        tasks[0].cancel()
        await stream.close()

    async def read_out(inner: Any) -> None:
        async for _ in inner:
            pass

    rig.run(main)
