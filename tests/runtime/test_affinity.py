"""Calls go where their prompt has been read already, as long as that is worth it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentsched import Policy
from agentsched.engine import replay
from agentsched.engine.backends import backend_row
from agentsched.engine.commands import Start
from agentsched.engine.rows import RequestRow
from agentsched.model import Backend, Job, Request
from agentsched.sim.spec import BackendSpec
from agentsched.testing import FakeBackend, FakeFleet
from tests.doubles import Rig

TOKENS = 4_000


def system(name: str) -> str:
    return f"{name:<16}" + "rule " * (TOKENS * 4 // 5)


def chat(name: str, question: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system(name)}, {"role": "user", "content": question}]


def two_equal(**options: Any) -> Rig:
    spec = BackendSpec()
    fleet = FakeFleet([FakeBackend(f"fake-{number}", spec=spec) for number in (1, 2)])
    return Rig(fleet=fleet, **options)


async def measured(rig: Rig) -> None:
    """Let both be known to be equally fast."""
    await asyncio.gather(*(rig.begun(20, messages=chat(f"warm {i}", "?")) for i in range(2)))
    assert [backend.log.received for backend in rig.fleet] == [1, 1]


async def place(rig: Rig, name: str, question: str, tokens: int = 20, **fields: Any) -> str:
    """Where a call goes."""
    answer = await rig.say(tokens, messages=chat(name, question), **fields)
    return str(rig.scheduler.explain(answer._request_id).backend)


def test_a_prompt_goes_where_its_beginning_has_been_read() -> None:
    rig = two_equal()

    async def main() -> None:
        await measured(rig)
        first = await place(rig, "a", "one?")
        for question in ("two?", "three?", "four?"):
            assert await place(rig, "a", question) == first, "the other one has had fewer calls"
        assert all(row.cached_tokens > 0.9 * TOKENS for row in list(rig[first].calls)[-3:])

    rig.run(main)


def test_an_explanation_says_how_much_was_spared() -> None:
    rig = two_equal()

    async def main() -> None:
        await measured(rig)
        answers = [await rig.say(20, messages=chat("a", question)) for question in ("one?", "two?")]
        first, second = (rig.scheduler.explain(answer._request_id) for answer in answers)
        assert first.cached_tokens is None
        assert second.cached_tokens == pytest.approx(TOKENS, rel=0.1)
        (other,) = {"fake-1", "fake-2"} - {str(second.backend)}
        spared_s = second.expected_cost_s[other] - second.expected_cost_s[str(second.backend)]
        assert spared_s == pytest.approx(second.cached_tokens * BackendSpec().speed.prefill_s, rel=0.5)

    rig.run(main)


def test_it_goes_elsewhere_if_that_is_quicker() -> None:
    rig = two_equal()

    async def main() -> None:
        await measured(rig)
        home = await place(rig, "a", "one?")
        busy = [rig.begun(400, messages=chat("a", f"{i}?")) for i in range(4)]
        await asyncio.sleep(0.5)
        assert rig[home].log.in_flight == 4, "what is read once is cheap to have there again"
        busy += [rig.begun(400, messages=chat("a", f"{i}?")) for i in range(4, 60)]
        await asyncio.sleep(5)
        away = sum(backend.log.in_flight for backend in rig.fleet if backend.name != home)
        assert 10 <= away <= 40
        assert rig[home].log.in_flight == 60 - away
        await asyncio.gather(*busy)

    rig.run(main)


def test_each_agent_has_its_place() -> None:
    """Four agents at a time: each prompt is read once, and both backends have their share."""
    rig = two_equal()

    async def agent(name: str) -> set[str]:
        return {await place(rig, name, f"{turn}?") for turn in range(5)}

    async def main() -> None:
        await measured(rig)
        places = await asyncio.gather(*map(agent, "abcd"))
        assert [len(seen) for seen in places] == [1, 1, 1, 1]
        assert set().union(*places) == {"fake-1", "fake-2"}

    rig.run(main)


def test_another_tool_is_another_prompt() -> None:
    rig = two_equal()
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]

    async def spared(**fields: Any) -> int | None:
        answer = await rig.say(20, messages=chat("a", "?"), **fields)
        return rig.scheduler.explain(answer._request_id).cached_tokens

    async def main() -> None:
        await measured(rig)
        assert await spared() is None
        assert await spared(tools=tools) is None
        for again in ({}, {"tools": tools}):
            assert (await spared(**again) or 0) > 0.9 * TOKENS

    rig.run(main)


def test_a_journal_leads_to_the_same_places(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rig = two_equal(journal=path)
    places: list[str] = []

    async def main() -> None:
        await measured(rig)
        places.extend([await place(rig, name, "?") for name in "abab"])
        await rig.scheduler.aclose()

    rig.run(main)
    with path.open(encoding="utf-8") as lines:
        commands = [command for _, found in replay(lines, Policy.default()) for command in found]
    assert [command.backend for command in commands if isinstance(command, Start)][2:] == places


@pytest.mark.parametrize("tokens", [0, 1, 2, 300])
def test_no_more_is_spared_than_there_is(tokens: int) -> None:
    """A journal may say anything."""
    row = backend_row(Backend("http://a:1/v1"), 0)
    request = Request(id="r", model="m", input_tokens=tokens, marks=(1, 2, 3))
    call = RequestRow(request, Job(request, 0.0, 10.0, tokens), (0, 0.0, 0))
    row.prefixes.read(request.marks)
    cached, needed = row.needs(call)
    assert cached == max(tokens - 1, 0)
    assert needed == tokens - cached + 10.0
