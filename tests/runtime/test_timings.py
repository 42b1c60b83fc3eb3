"""A llama.cpp whose usage does not say what was cached, but whose timings do: so it is known what its cache holds."""

import asyncio
from typing import Any

import pytest

from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, Speed
from agentsched.transport import usage
from tests.doubles import MODEL, Rig

SPEED = Speed(step_s=0.02, prefill_s=0.001, entry_s=0.002)
SESSIONS = 40
"""Prompts of 1,500 tokens; two backends hold fifteen of them, beside what runs."""


def rig() -> Rig:
    spec = BackendSpec(speed=SPEED, max_num_seqs=16, kv_blocks=700)
    fakes = [FakeBackend(f"fake-{n}", spec=spec, timings=True, event_tokens=20) for n in (1, 2)]
    return Rig(fleet=FakeFleet(fakes), limit=8, limits={"metrics": False})


def mean_latency_s() -> tuple[float, Rig]:
    """Eight callers go through forty sessions in turn, for five minutes."""
    sessions, took = rig(), list[float]()

    async def caller(number: int) -> None:
        turn = 0
        while sessions.clock() < 300:
            turn += 1
            session = (number * 7 + turn * 13) % SESSIONS
            content = f"session {session} " + f"w{session:03} " * 1_200 + f" {number} {turn}"
            at = sessions.clock()
            await sessions.say(
                20 + (number * 37 + turn * 53) % 60, messages=[{"role": "user", "content": content}]
            )
            took.append(sessions.clock() - at)

    async def main() -> None:
        await asyncio.gather(*(caller(number) for number in range(8)))

    sessions.run(main)
    return sum(took) / len(took), sessions


def row(rig: Rig, name: str = "fake-1") -> Any:
    return rig.scheduler._driver.engine.backends[name]


def test_what_was_driven_out_of_the_cache_is_not_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes that are no longer there pull no calls: they are done a tenth sooner and more, on average."""
    known, told = mean_latency_s()
    assert row(told).prefixes.reports
    count = usage.first_count
    monkeypatch.setattr(
        usage, "first_count", lambda fields, *names: None if "cache_n" in names else count(fields, *names)
    )
    unknown, untold = mean_latency_s()
    assert not row(untold).prefixes.reports
    assert len(row(told).prefixes) < 0.5 * len(row(untold).prefixes)
    assert known < 0.9 * unknown


def test_a_call_says_what_of_it_was_cached_and_shows_the_app_its_times() -> None:
    two, ask = rig(), "the same words again and again " * 50

    async def main() -> None:
        fields: dict[str, Any] = {
            "messages": [{"role": "user", "content": ask}],
            "extra_body": {"stays_whole": 1},
        }
        for _ in range(2):
            answer = await two.client.chat.completions.create(model=MODEL, **fields)
        assert answer.usage.prompt_tokens_details is None
        timings = answer.timings
        assert timings["cache_n"] > 300
        assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
        assert timings["predicted_n"] == answer.usage.completion_tokens
        assert timings["prompt_ms"] > timings["prompt_n"] * 1_000 * SPEED.prefill_s
        assert timings["predicted_ms"] > (timings["predicted_n"] - 1) * 1_000 * SPEED.step_s * 0.9

    two.run(main)
