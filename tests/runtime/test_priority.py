"""Backends that order their own queues: urgent calls overtake there too, and who refuses priorities is sent none."""

import asyncio
import json
import logging
from typing import Any

import httpx2
import pytest

from agentsched import Backend
from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, faults
from agentsched.testing.fleet import FAST
from tests.doubles import MODEL, Rig, Script, begun, outcome, said, upstream, whole

SEATS = 4
ON = {"priority": True}


def queueing(**options: Any) -> FakeFleet:
    """One backend that runs four calls at a time and orders what it keeps waiting."""
    spec = BackendSpec(speed=FAST, max_num_seqs=SEATS, scheduling="priority")
    return FakeFleet([FakeBackend("fake-1", spec=spec, **options)])


def sent(rig: Rig) -> list[int | None]:
    """The priorities that were sent, in order."""
    return [row.body.get("priority") for row in rig.received]


async def say(rig: Rig, priority: int, tokens: int = 3, **fields: Any) -> Any:
    with rig.scheduler.query("q", priority=priority):
        return await rig.say(tokens, **fields)


def view(rig: Rig) -> Any:
    (backend,) = rig.scheduler.snapshot().backends
    return backend


# -- what it is for -----------------------------------------------------------------------------------


def first_token_after(options: dict[str, Any]) -> float:
    """Seconds until an urgent call's first token, behind twenty others of 1.2 s each in the engine's own queue."""
    rig = Rig(fleet=queueing(), limits=options)
    found: list[float] = []

    async def main() -> None:
        others = [rig.begun(200) for _ in range(20)]
        await begun()
        assert rig.in_flight == 20, "nothing waits here"
        at = rig.clock()
        await say(rig, 5)
        first_token_at = rig.received[20].first_token_at
        assert first_token_at is not None
        found.append(first_token_at - at)
        await asyncio.gather(*others)

    rig.run(main)
    return found[0]


def test_an_urgent_call_overtakes_those_that_were_released_before_it() -> None:
    """It waits for one of the four seats, instead of for all that were before it."""
    with_it, without = first_token_after(ON), first_token_after({})
    assert with_it == pytest.approx(1.19, abs=0.01)
    assert without == pytest.approx(5.91, abs=0.01)


def test_equals_stay_in_the_order_in_which_they_were_released() -> None:
    rig, order = Rig(fleet=queueing(), limits=ON), list[str]()

    async def call(name: str, priority: int) -> None:
        await say(rig, priority, 20)
        order.append(name)

    async def main() -> None:
        running = [rig.begun(40) for _ in range(SEATS)]
        await begun()
        names = [f"{name}{number}" for number in range(SEATS) for name in ("low", "high")]
        await asyncio.gather(*(call(name, 1 if "high" in name else -1) for name in names), *running)

    rig.run(main)
    assert order == [f"{name}{number}" for name in ("high", "low") for number in range(SEATS)]


# -- what is sent -------------------------------------------------------------------------------------


def test_ordinary_calls_say_nothing_and_others_are_turned_round() -> None:
    rig = Rig(fleet=queueing(), limits=ON)

    async def main() -> None:
        await rig.say()
        for priority in (0, 7, -3):
            await say(rig, priority)
        await say(rig, 7, extra_body={"priority": 99})
        assert view(rig).priority == "on"

    rig.run(main)
    assert sent(rig) == [None, None, -7, 3, 99]


def test_without_the_option_nothing_is_sent() -> None:
    rig = Rig(fleet=queueing())

    async def main() -> None:
        await say(rig, 7)
        await say(rig, 7, extra_body={"priority": 99})
        assert view(rig).priority == "off"

    rig.run(main)
    assert sent(rig) == [None, 99]


def test_each_backend_is_told_on_its_own() -> None:
    rig = Rig(2, limit=1)
    rig.scheduler.fleet.replace(Backend(rig["fake-1"].base_url, models=[MODEL], name="fake-1", priority=True))

    async def main() -> None:
        await asyncio.gather(*(say(rig, 7, 50) for _ in range(2)))

    rig.run(main)
    assert [[row.body.get("priority") for row in fake.calls] for fake in rig.fleet] == [[-7], [None]]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_the_app_sees_nothing_of_it(stream: bool, api: str) -> None:
    rig, plain = Rig(fleet=queueing(), limits=ON), Rig(fleet=queueing())
    shown: dict[Rig, list[Any]] = {rig: [], plain: []}

    async def ask(rig: Rig) -> None:
        client = rig.client
        make = {
            "chat": lambda: rig.say(5, stream=stream),
            "completions": lambda: client.completions.create(
                model=MODEL, prompt="x", max_tokens=5, stream=stream
            ),
            "responses": lambda: client.responses.create(model=MODEL, input="x", stream=stream),
        }[api]
        with rig.scheduler.query("q", priority=7):
            answer: Any = await make()
        parts = [part async for part in answer] if stream else [answer]
        shown[rig] += [part.model_dump() for part in parts]

    for one in (rig, plain):
        one.run(lambda one=one: ask(one))
    assert shown[rig] == shown[plain]
    assert sent(rig) == [-7]


# -- refusals -----------------------------------------------------------------------------------------


def test_a_refusal_is_remembered_told_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(fleet=queueing(refuse_priority=True), limits=ON)

    async def main() -> None:
        answer = await say(rig, 7)
        assert answer.choices[0].message.content
        await say(rig, 7)
        await say(rig, -7)
        assert sent(rig) == [-7, None, None, None]
        assert view(rig).priority == "refused"
        assert (view(rig).failed, view(rig).started) == (0, 3)
        assert "takes no priorities" in str(rig.scheduler.snapshot())
        story = rig.scheduler.explain(answer._request_id)
        assert [entry.what for entry in story.entries].count("started") == 1

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "fake-1: it takes no priorities, so it is sent none any more: "
        "HTTP 400: Got priority -7 but Priority scheduling is not enabled."
    ]


def test_calls_that_are_refused_together_are_one_refusal(caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: Any) -> Script:
        if "priority" not in json.loads(request.content):
            return said("fine")
        refusal = whole({"error": {"message": "no priority, please"}}, status=400)
        refusal.before = [1.0]
        return refusal

    transport = upstream(httpx2, answer)
    rig = Rig(1, limits=ON | {"metrics": False}, upstream=transport)

    async def main() -> None:
        answers = await asyncio.gather(*(say(rig, 7) for _ in range(5)))
        assert [answer.choices[0].message.content for answer in answers] == ["fine"] * 5
        assert len(transport.seen.requests) == 10

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("how", ["replaced", "removed", "drained"])
def test_it_is_forgotten_with_the_backend(how: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(fleet=queueing(refuse_priority=True), limits=ON)
    again = Backend(rig["fake-1"].base_url, name="fake-1", models=[MODEL], priority=True)

    async def main() -> None:
        fleet = rig.scheduler.fleet
        await say(rig, 7)
        assert view(rig).priority == "refused"
        if how == "replaced":
            fleet.replace(again)
        elif how == "removed":
            fleet.remove("fake-1")
            fleet.add(again)
        else:
            await fleet.drain("fake-1")
            fleet.add(again)
        assert view(rig).priority == "on"
        await say(rig, 7)

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert sent(rig) == [-7, None, -7, None]
    assert len(caplog.records) == 2


def test_what_a_backend_refused_that_was_replaced_meanwhile_says_nothing_of_the_new_one() -> None:
    rig = Rig(fleet=queueing(refuse_priority=True), limits=ON)
    again = Backend(rig["fake-1"].base_url, name="fake-1", models=[MODEL], priority=True)
    rig["fake-1"].fail(faults.SlowStart(delay_s=1), nth=2)

    async def main() -> None:
        call = asyncio.ensure_future(say(rig, 7, stream=True))
        await begun()
        assert sent(rig) == [-7, None]
        rig["fake-1"].refuse_priority = False
        rig.scheduler.fleet.replace(again)
        async for _ in await call:
            pass
        assert view(rig).priority == "on"

    rig.run(main)
    assert sent(rig) == [-7, None, -7]


def test_an_unrelated_refusal_reaches_the_caller_and_changes_nothing() -> None:
    rig = Rig(fleet=queueing(), limits=ON)

    async def main() -> None:
        for message in ("max_tokens is too large", "the input was {'priority': -7, 'max_tokens': 10**9}"):
            rig["fake-1"].fail(faults.Status(code=400, message=message))
            error = await outcome(say(rig, 7))
            assert (error.status_code, message in str(error)) == (400, True)
            rig["fake-1"].heal()
        assert view(rig).priority == "on"
        await say(rig, 7)

    rig.run(main)
    assert sent(rig) == [-7, -7, None, -7]


def test_a_call_that_is_cancelled_between_the_two_leaves_nothing() -> None:
    rig = Rig(fleet=queueing(refuse_priority=True), limits=ON)
    rig["fake-1"].fail(faults.Hang(), nth=2)

    async def main() -> None:
        call = asyncio.ensure_future(say(rig, 7))
        await begun()
        assert rig.in_flight == 1
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert rig.in_flight == 0

    rig.run(main)
    assert sent(rig) == [-7, None]
