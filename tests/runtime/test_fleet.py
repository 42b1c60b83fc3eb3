"""A fleet that changes under its calls: none is lost, all are answered right, and all room is freed."""

import asyncio
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from agentsched import (
    Backend,
    BackendUnavailable,
    Fleet,
    FleetEmpty,
    Policy,
    Scheduler,
    SchedulerClosed,
    UnknownModel,
    UsageError,
)
from agentsched.engine.difference import first_difference
from agentsched.testing import FakeBackend, FakeFleet, FakeRequest, Reply, faults
from tests.doubles import (
    ASK,
    MODEL,
    Rig,
    Script,
    assert_idle,
    assert_quiet,
    begun,
    delta,
    events,
    outcome,
    said,
    settled,
    upstream,
)

CALLS, CHANGES, FAKES = 300, 20, 6

LONG = 400
"""Tokens of an answer that takes 2 s."""


def echoed(request: FakeRequest) -> Reply:
    """Answer with the prompt, again and again, in as many tokens as the caller says."""
    tokens = int(request.headers.get("x-fake-output-tokens", 8))
    return Reply(answer_to(request.messages[0]["content"], tokens), tokens=tokens)


def answer_to(text: str, tokens: int) -> str:
    return (f"{text}. " * tokens)[: 4 * tokens]


def backend(fake: FakeBackend, **facts: Any) -> Backend:
    return Backend(fake.base_url, **{"name": fake.name, "models": fake.models, **facts})


def ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content


async def read(stream: Any) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


# -- many calls, many changes ------------------------------------------------------------------------------


class Changes:
    """Random changes of a rig's fleet that leave at least one backend for calls."""

    def __init__(self, rig: Rig, dice: random.Random) -> None:
        self.rig = rig
        self.fleet = rig.scheduler.fleet
        self.dice = dice
        self.draining: dict[str, asyncio.Task[None]] = {}
        self.made: list[str] = []

    def limit(self) -> dict[str, Any]:
        return {"max_concurrency": self.dice.choice([2, 4, 8, None])}

    def make(self) -> None:
        there = self.fleet.names
        draining = [name for name, task in self.draining.items() if name in there and not task.done()]
        taking = [name for name in there if name not in draining]
        free = [fake for fake in self.rig.fleet if fake.name not in there]
        possible = ["add"] * bool(free) + ["remove", "drain"] * (len(taking) > 1) + ["replace"]
        possible += ["remove draining"] * bool(draining)
        what = self.dice.choice(possible)
        self.made.append(what)
        if what == "add":
            self.fleet.add(backend(self.dice.choice(free), **self.limit()))
        elif what == "replace":
            self.fleet.replace(backend(self.rig[self.dice.choice(taking)], **self.limit()))
        elif what == "drain":
            name = self.dice.choice(taking)
            self.draining[name] = asyncio.ensure_future(self.fleet.drain(name))
        else:
            self.fleet.remove(self.dice.choice(draining if what == "remove draining" else taking))
        self.rig.scheduler._driver.engine.check()


@pytest.mark.parametrize("seed", range(6))
def test_300_calls_over_20_changes_are_all_answered_right(seed: int) -> None:
    """Those that run where a backend is taken away go on elsewhere, seen or unseen."""
    dice = random.Random(seed)
    rig = Rig(fleet=FakeFleet.fast(FAKES, responder=echoed, seats=1_000), limit=4)
    changes = Changes(rig, dice)

    async def call(number: int) -> None:
        await asyncio.sleep(dice.uniform(0, 4))
        tokens, stream = dice.randint(1, 60), number % 4 == 0
        text = f"call {number}"
        answer = await rig.say(tokens, stream=stream, **ask(text))
        assert (await read(answer) if stream else text_of(answer)) == answer_to(text, tokens)

    async def change() -> None:
        for _ in range(CHANGES):
            await asyncio.sleep(dice.uniform(0.1, 0.3))
            changes.make()

    async def main() -> None:
        for fake in list(rig.fleet)[2:]:
            changes.fleet.remove(fake.name)
        await asyncio.gather(change(), *map(call, range(CALLS)))
        await asyncio.gather(*changes.draining.values())
        snapshot = rig.scheduler.snapshot()
        assert [view.name for view in snapshot.backends] == list(changes.fleet.names)
        assert not any(view.draining for view in snapshot.backends)

    rig.run(main)
    assert len(changes.made) == CHANGES
    assert sum(fake.log.disconnects for fake in rig.fleet) > 0


# -- adding ------------------------------------------------------------------------------------------------


def test_calls_that_wait_go_to_one_that_is_added(stack: ModuleType) -> None:
    rig = Rig(2, limit=1, stack=stack)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        fleet.remove("fake-2")
        tasks = [rig.begun(100) for _ in range(6)]
        await begun()
        assert rig.scheduler.snapshot().queued == 5
        fleet.add(backend(rig["fake-2"]))
        assert fleet.names == ("fake-1", "fake-2")
        assert rig.scheduler.snapshot().queued == 0
        await asyncio.gather(*tasks)

    rig.run(main)
    assert [fake.log.received for fake in rig.fleet] == [1, 5]


def test_one_without_models_is_asked_what_it_serves(stack: ModuleType) -> None:
    fakes = [FakeBackend("a"), FakeBackend("b", models=["other"])]
    rig = Rig(fleet=FakeFleet(fakes), stack=stack, listed=True)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        fleet.remove("b")
        await rig.say()
        assert isinstance(await outcome(rig.say(model="other")), UnknownModel)
        fleet.add(backend(fakes[1], models=None))
        assert (await rig.say(model="other")).model == "other"
        assert {model.id for model in (await rig.client.models.list()).data} == {MODEL, "other"}
        fleet.remove("b")
        assert [model.id for model in (await rig.client.models.list()).data] == [MODEL]
        error = await outcome(rig.say(model="other"))
        assert isinstance(error, UnknownModel)
        assert "served are: fake-model" in str(error)

    rig.run(main)


def test_outside_of_any_loop(stack: ModuleType) -> None:
    rig = Rig(3, limit=1, stack=stack, listed=True)
    fleet = rig.scheduler.fleet
    fleet.remove("fake-1")
    fleet.remove("fake-2")
    fleet.replace(backend(rig["fake-3"], models=None))
    fleet.add(backend(rig["fake-1"], models=None))
    assert fleet.names == ("fake-3", "fake-1")
    assert repr(fleet) == "<Fleet fake-3, fake-1>"

    async def main() -> None:
        await asyncio.gather(rig.say(), rig.say())

    rig.run(main)
    assert len(rig.received) == 2
    assert rig["fake-2"].log.received == 0


# -- draining ----------------------------------------------------------------------------------------------


def test_draining_waits_for_what_runs_and_lets_nothing_in(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        streams = [await rig.say(LONG, stream=True) for _ in range(4)]
        draining = asyncio.ensure_future(fleet.drain("fake-1"))
        await settled()
        view = rig.scheduler.snapshot().backends[0]
        assert view.draining
        assert str(view).startswith("fake-1 (draining): 2 running")
        assert not draining.done()
        await asyncio.gather(*(rig.say() for _ in range(10)))
        assert fleet.names == ("fake-1", "fake-2")
        assert not draining.done()
        texts = [await read(stream) for stream in streams]
        assert all(len(text) == 4 * LONG for text in texts)
        await draining
        assert fleet.names == ("fake-2",)
        received = [row for row in rig["fake-1"].calls if row.outcome == "finished"]
        assert len(received) == 2
        await rig.say()

    rig.run(main)
    assert rig["fake-1"].log.received == 2
    assert rig["fake-1"].log.disconnects == 0


def test_an_explanation_says_that_the_backend_drained(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)

    async def main() -> None:
        task = rig.begun(LONG)
        await begun()
        await rig.scheduler.fleet.drain("fake-1")
        answer = await task
        assert "backend drains (backend=fake-1)" in str(rig.scheduler.explain(answer._request_id))

    rig.run(main)


def test_several_wait_for_the_same_one_and_one_may_give_up(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        task = rig.begun(LONG)
        await begun()
        waiting = [asyncio.ensure_future(fleet.drain("fake-1")) for _ in range(3)]
        await settled()
        waiting[0].cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await fleet.drain("fake-1")
        assert fleet.names == ("fake-1", "fake-2"), "it goes on draining"
        assert len(fleet._leaving["fake-1"]) == 2
        await task
        await asyncio.gather(*waiting[1:])
        assert fleet.names == ("fake-2",)
        assert fleet._leaving == {}

    rig.run(main)


@pytest.mark.parametrize("how", ["remove", "replace", "close"])
def test_what_ends_a_draining_lets_those_go_on_who_wait_for_it(how: str) -> None:
    rig = Rig(2)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        task = rig.begun(LONG)
        await begun()
        draining = asyncio.ensure_future(fleet.drain("fake-1"))
        await settled()
        if how == "close":
            await rig.scheduler.aclose()
            assert isinstance(await outcome(task), SchedulerClosed)
        elif how == "remove":
            fleet.remove("fake-1")
        else:
            fleet.replace(backend(rig["fake-1"]))
        await draining
        if how != "close":
            await task

    rig.run(main)


def test_one_that_does_nothing_is_gone_at_once() -> None:
    rig = Rig(2)

    async def main() -> None:
        await rig.scheduler.fleet.drain("fake-1")
        assert rig.scheduler.fleet.names == ("fake-2",)

    rig.run(main)


# -- removing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_has_seen_moves_without_a_word(stack: ModuleType, stream: bool) -> None:
    rig = Rig(fleet=FakeFleet.fast(2, responder=echoed), stack=stack)
    rig["fake-1"].fail(faults.SlowStart(delay_s=5))

    async def main() -> None:
        task = rig.begun(50, stream=stream, **ask("x"))
        await asyncio.sleep(1)
        assert rig["fake-1"].log.in_flight == 1
        rig.scheduler.fleet.remove("fake-1")
        answer = await task
        text = await read(answer) if stream else text_of(answer)
        assert text == answer_to("x", 50)
        assert rig.clock() < 2
        assert rig["fake-1"].log.in_flight == 0
        (told,) = rig.scheduler._driver.engine.stories._ended.values()
        assert [what for _, what, _ in told].count("started") == 2

    rig.run(main)


def test_half_an_answer_of_which_nobody_saw_anything_moves_too(stack: ModuleType) -> None:
    """Answers are streamed from backends also for callers who wait for the whole."""
    rig = Rig(fleet=FakeFleet.fast(2, responder=echoed), stack=stack)

    async def main() -> None:
        task = rig.begun(LONG, **ask("x"))
        await asyncio.sleep(1)
        assert rig.scheduler.snapshot().calls[0].output_tokens > 0
        rig.scheduler.fleet.remove("fake-1")
        answer = await task
        assert text_of(answer) == answer_to("x", LONG)
        assert answer.usage.completion_tokens == LONG
        explained = rig.scheduler.explain(answer._request_id)
        assert (explained.backend, explained.attempts) == ("fake-2", 2)
        assert "attempt failed (backend=fake-1, why=removed from the fleet)" in str(explained)

    rig.run(main)


def test_a_stream_that_was_seen_ends_with_what_had_come(stack: ModuleType) -> None:
    rig = Rig(fleet=FakeFleet.fast(2, responder=echoed), stack=stack)

    async def main() -> None:
        stream = await rig.say(LONG, stream=True, logprobs=True, **ask("x"))  # which none can go on with
        other = await rig.say(LONG, stream=True, **ask("y"))
        await asyncio.sleep(1)
        rig.scheduler.fleet.remove("fake-1")
        seen = ""
        with pytest.raises(BackendUnavailable) as caught:
            async for chunk in stream:
                seen += chunk.choices[0].delta.content or ""
        error = caught.value
        assert isinstance(error, openai.OpenAIError)
        assert str(error).startswith(
            "fake-1: removed from the fleet: the caller had seen a part of the answer"
        )
        assert (error.backend, error.attempts, error.sent) == ("fake-1", 1, True)
        assert error.partial_text == seen
        assert 100 < len(seen) < 4 * LONG
        assert answer_to("x", LONG).startswith(seen)
        assert await read(other) == answer_to("y", LONG)
        view = rig.scheduler.snapshot().backends[0]
        assert (view.name, view.failed) == ("fake-2", 0)

    rig.run(main)


def test_a_call_for_which_nobody_is_left_says_so(stack: ModuleType) -> None:
    fakes = [FakeBackend("a", responder=echoed), FakeBackend("b", models=["other"])]
    rig = Rig(fleet=FakeFleet(fakes), limit=1, stack=stack)

    async def main() -> None:
        running, waiting = rig.begun(LONG, **ask("x")), rig.begun()
        await asyncio.sleep(1)
        rig.scheduler.fleet.remove("a")
        moved, rejected = await outcome(running), await outcome(waiting)
        assert isinstance(moved, BackendUnavailable)
        assert moved.sent
        assert moved.partial_text
        assert answer_to("x", LONG).startswith(moved.partial_text)
        assert isinstance(rejected, UnknownModel)
        assert not rejected.sent

    rig.run(main)


def test_a_call_whose_answer_has_ended_is_not_harmed(stack: ModuleType) -> None:
    """It still has to be read."""
    rig = Rig(fleet=FakeFleet.fast(2, responder=echoed), stack=stack)

    async def main() -> None:
        stream = await rig.say(20, stream=True, **ask("x"))
        await asyncio.sleep(1)
        rig.scheduler.fleet.remove("fake-1")
        assert await read(stream) == answer_to("x", 20)

    rig.run(main)


def test_a_moved_call_that_waits_is_as_any_that_waits(stack: ModuleType) -> None:
    """Its deadline holds, it can be cancelled, and it says that it was sent."""
    rig = Rig(2, limit=1, stack=stack)

    async def main() -> None:
        async with rig.scheduler.query("q", timeout_s=2):
            expires = rig.begun(LONG * 10)
            await begun()
        other = rig.begun(LONG * 10)
        await begun()
        rig.scheduler.fleet.remove("fake-1")
        assert rig.scheduler.snapshot().queued == 1
        error = await outcome(expires)
        assert "the deadline passed while queued" in str(error)
        assert error.sent
        other.cancel()
        await settled()

    rig.run(main)


# -- the last one ------------------------------------------------------------------------------------------


def test_an_empty_fleet_takes_no_calls_and_says_so(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        running, waiting = rig.begun(LONG), rig.begun()
        await asyncio.sleep(0.5)
        fleet.remove("fake-1")
        assert isinstance(await outcome(running), BackendUnavailable)
        for error in (
            await outcome(waiting),
            await outcome(rig.say()),
            await outcome(rig.client.models.list()),
        ):
            assert isinstance(error, FleetEmpty)
            assert isinstance(error, openai.OpenAIError)
            assert not error.sent
            assert "scheduler.fleet.add" in str(error)
        assert fleet.names == ()
        assert repr(fleet) == "<Fleet empty>"
        assert str(rig.scheduler.snapshot()) == "0 queued, 0 running, 0 queries"
        fleet.add(backend(rig["fake-1"]))
        await rig.say()

    rig.run(main)


# -- replacing ---------------------------------------------------------------------------------------------


def test_the_only_one_is_replaced_and_nobody_is_turned_away(stack: ModuleType) -> None:
    rig = Rig(fleet=FakeFleet.fast(1, responder=echoed), limit=1, stack=stack)

    async def main() -> None:
        tasks = [rig.begun(100, **ask(f"x{number}")) for number in range(5)]
        await asyncio.sleep(0.3)
        rig.scheduler.fleet.replace(backend(rig["fake-1"], max_concurrency=5))
        assert rig.scheduler.snapshot().running == 5
        texts = [text_of(answer) for answer in await asyncio.gather(*tasks)]
        assert texts == [answer_to(f"x{number}", 100) for number in range(5)]

    rig.run(main)
    asked_whether_it_can = 2
    assert rig["fake-1"].log.received == 6 + asked_whether_it_can


async def test_a_new_key_and_a_new_name_of_the_model_count_at_once(stack: ModuleType) -> None:
    transport = upstream(stack, said("hi"))
    first = Backend("http://b:1/v1", name="b", models={MODEL: "one"}, api_key="first")
    second = Backend("http://b:1/v1", name="b", models={MODEL: "two"}, api_key="second")
    third = Backend("http://c:1/v1", name="b", models={MODEL: "two"}, api_key="second")
    async with Scheduler([first], upstream=transport) as scheduler:
        client = scheduler.openai()
        for then in (second, third, None):
            await client.chat.completions.create(**ASK)
            if then is not None:
                scheduler.fleet.replace(then)
    sent = [(request.url.host, request.headers["authorization"]) for request in transport.seen.requests]
    assert sent == [("b", "Bearer first"), ("b", "Bearer second"), ("c", "Bearer second")]
    assert [request.headers["host"] for request in transport.seen.requests] == ["b:1", "b:1", "c:1"]
    assert [body["model"] for body in transport.seen.bodies] == ["one", "two", "two"]


def test_a_late_answer_of_the_other_one_says_nothing(stack: ModuleType) -> None:
    """It was asked for its models, and for its load, and left before it answered."""
    fakes = [FakeBackend("a", base_url="http://old.test/v1"), FakeBackend("b", base_url="http://new.test/v1")]
    rig = Rig(fleet=FakeFleet(fakes), stack=stack, listed=True)
    fleet = rig.scheduler.fleet
    rig["a"].fail_page("/v1/models", faults.SlowStart(delay_s=1))

    async def main() -> None:
        fleet.remove("b")
        task = rig.begun()
        await asyncio.sleep(0.2)
        fleet.replace(Backend("http://new.test/v1", name="a", models=["other"]))
        assert isinstance(await outcome(task), UnknownModel)
        await asyncio.sleep(2)
        assert rig.scheduler.snapshot().backends[0].models == ("other",)

    rig.run(main)
    driver = rig.scheduler._driver
    assert not any(row.asking or row.looks for row in driver._loops.values())


def test_a_backend_that_is_looked_at_may_leave(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    rig["fake-1"].fail_page("/metrics", faults.SlowStart(delay_s=1))

    async def main() -> None:
        tasks = [rig.begun(LONG) for _ in range(12)]
        await asyncio.sleep(0.5)
        assert rig["fake-1"].polls["/metrics"] == 1
        rig.scheduler.fleet.replace(backend(rig["fake-1"]))
        await settled()
        assert rig.scheduler._driver.gauges._looks == {}
        await asyncio.gather(*tasks)

    rig.run(main)


# -- what it must not break --------------------------------------------------------------------------------


def test_a_journal_of_a_fleet_that_changes_happens_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rig = Rig(3, limit=1, journal=path)
    fleet = rig.scheduler.fleet

    async def main() -> None:
        tasks = [rig.begun(100) for _ in range(9)]
        await begun()
        fleet.remove("fake-1")
        draining = asyncio.ensure_future(fleet.drain("fake-2"))
        await asyncio.sleep(0.2)
        fleet.add(backend(rig["fake-1"], api_key="sk-secret"))
        fleet.replace(backend(rig["fake-3"]))
        await asyncio.gather(draining, *tasks)
        await rig.scheduler.aclose()

    rig.run(main)
    text = path.read_text()
    assert "fake-1.test" not in text
    assert "sk-secret" not in text
    assert text.count("BackendJoined") == 1
    assert text.count("BackendLeft") == 3
    assert first_difference(text.splitlines(keepends=True), Policy.default()) is None


def test_a_policy_cannot_change_the_fleet() -> None:
    errors: list[Exception] = []

    def cost(*_: Any) -> float:
        for change in (
            lambda: fleet.remove("fake-1"),
            lambda: fleet.add(Backend("http://z/v1")),
            lambda: fleet.replace(backend(rig["fake-1"])),
        ):
            try:
                change()
            except UsageError as error:
                errors.append(error)
        return 1.0

    rig = Rig(2, policy=Policy(cost=cost))
    fleet: Fleet = rig.scheduler.fleet

    async def main() -> None:
        await rig.say()

    rig.run(main)
    assert fleet.names == ("fake-1", "fake-2")
    assert errors
    assert all("a policy cannot change the fleet" in str(error) for error in errors)


def test_an_empty_fleet_does_not_keep_the_scheduler_from_closing() -> None:
    rig = Rig(1)

    async def main() -> None:
        rig.scheduler.fleet.remove("fake-1")
        await rig.scheduler.aclose()
        for change in (
            lambda: rig.scheduler.fleet.add(backend(rig["fake-1"])),
            lambda: rig.scheduler.fleet.remove("fake-1"),
            lambda: rig.scheduler.fleet.replace(backend(rig["fake-1"])),
        ):
            with pytest.raises(SchedulerClosed, match="the scheduler is closed"):
                change()
        with pytest.raises(SchedulerClosed):
            await rig.scheduler.fleet.drain("fake-1")
        assert isinstance(await outcome(rig.say()), SchedulerClosed)

    rig.run(main)


BAD: dict[str, tuple[Any, str]] = {
    "an address": (lambda f: f.add("http://gpu-c:8000/v1"), r"fleet.add takes a Backend, such as Backend\("),
    "nothing": (lambda f: f.replace(None), "fleet.replace takes a Backend, .*, not NoneType"),
    "its name": (lambda f: f.add(Backend("http://z/v1", name="fake-1")), "the name 'fake-1' already"),
    "its address": (
        lambda f: f.add(Backend("http://fake-1.test/v1", name="z")),
        "the base_url 'http://fake-1.test/v1' already .fake-1.: remove that one first",
    ),
    "no name": (lambda f: f.remove("z"), "the fleet has no backend 'z'; it has fake-1, fake-2"),
    "a new name": (lambda f: f.replace(Backend("http://z/v1")), "the fleet has no backend 'z'"),
    "another's address": (
        lambda f: f.replace(Backend("http://fake-2.test/v1", name="fake-1")),
        "the base_url 'http://fake-2.test/v1' already .fake-2.",
    ),
    "a backend": (lambda f: f.remove(Backend("http://z/v1")), "a backend's name is text, .*, not Backend"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_is_one_error_and_changes_nothing(change: Any, message: str) -> None:
    rig = Rig(2)
    with pytest.raises(UsageError, match=message) as caught:
        change(rig.scheduler.fleet)
    assert not caught.value.sent
    assert rig.scheduler.fleet.names == ("fake-1", "fake-2")


@pytest.mark.parametrize("name", ["z", None, 7])
async def test_only_what_is_there_drains(name: Any) -> None:
    async with Scheduler([Backend("http://a:1/v1")]) as scheduler:
        with pytest.raises(
            UsageError, match=r"the fleet has no backend 'z'; it has a:1|a backend's name is text"
        ):
            await scheduler.fleet.drain(name)
        assert scheduler.fleet._leaving == {}
        await assert_quiet(scheduler)


# -- connections -------------------------------------------------------------------------------------------


class Door:
    """A server that answers every call on a connection that it keeps; it counts those that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.calls = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        body = (
            b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
        )
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        try:
            while (line := await reader.readline()) and line:
                length = 0
                while (line := await reader.readline()).strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                await reader.readexactly(length)
                self.calls += 1
                writer.write(head + body)
                await writer.drain()
        finally:
            self.open -= 1
            writer.close()

    async def closed(self) -> None:
        async with asyncio.timeout(5):
            while self.open:
                await asyncio.sleep(0)


@pytest.mark.parametrize("how", ["remove", "drain", "replace"])
async def test_connections_to_one_that_is_gone_are_closed(stack: ModuleType, how: str) -> None:
    """Over real sockets: those to others stay open."""
    doors = [Door(), Door()]
    servers = [await asyncio.start_server(door.serve, "127.0.0.1", 0) for door in doors]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1" for server in servers]
    one, two = (
        Backend(url, name=name, models=[MODEL], metrics=False)
        for url, name in zip(urls, ("one", "two"), strict=True)
    )
    async with servers[0], servers[1], Scheduler([one, two]) as scheduler:
        client = scheduler.openai()
        await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(6)))
        assert all(door.open for door in doors)
        if how == "remove":
            scheduler.fleet.remove("one")
        elif how == "drain":
            await scheduler.fleet.drain("one")
        else:
            scheduler.fleet.replace(one)
        await doors[0].closed()
        assert doors[1].open
        await client.chat.completions.create(**ASK)
        await settled()
        assert_idle(scheduler)
    await doors[1].closed()


async def test_a_connection_that_is_in_use_is_closed_with_its_call(stack: ModuleType) -> None:
    transport = upstream(stack, Script(before=[3_600.0]), events(delta("x"), 3_600.0), said("hi"))
    backends = [Backend(f"http://{name}:1/v1", name=name, models=[MODEL], metrics=False) for name in "abc"]
    async with Scheduler(backends, upstream=transport) as scheduler:
        client = scheduler.openai()
        tasks = [asyncio.ensure_future(client.chat.completions.create(**ASK)) for _ in range(2)]
        await settled(50)
        while transport.seen.open < 2:
            await asyncio.sleep(0)
        scheduler.fleet.remove("a")
        scheduler.fleet.remove("b")
        for answer in await asyncio.gather(*tasks):
            assert text_of(answer) == "hi"
        assert transport.seen.open == 0
        await assert_quiet(scheduler)
