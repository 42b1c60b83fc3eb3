"""Answers that come whole tell of their backend's load: where its pages do not, that is what corrects the picture."""

import asyncio
import json
import logging
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentsched.engine import Engine
from agentsched.engine.events import Signalled
from agentsched.engine.heard import FRESH_S, LOOK_S
from agentsched.engine.reader import read_journal
from agentsched.policy import Policy
from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, Speed, faults
from tests.doubles import Rig

WHOLE = {"extra_body": {"not_to_be_streamed": True}}
"""Nobody knows what such a field does to a stream, so none is asked for."""

SPEED = Speed(step_s=0.005, prefill_s=0.0005, entry_s=0.001)
"""What is driven out of the memory costs a tenth of a second to read again."""

LIES = {
    "idle": "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0",
    "full": "TEXT named_metrics.kv_cache_usage_perc=1.0, named_metrics.num_requests_waiting=1000000.0",
    "absurd": "TEXT kv_cache_usage_perc=1e308, num_requests_waiting=-1, num_requests_running=1e9",
    "unknown": "TEXT cpu_utilization=0.3, rps_fractional=10.0",
    "broken": 'JSON {"named_metrics": {"kv_cache_usage_perc": ',
}


def rig(*, load_header: bool | str, kv_blocks: int = 100, pages: bool = False, **options: Any) -> Rig:
    """One backend with memory for fourteen or so of the calls that `keep_busy` makes."""
    fake = FakeBackend("fake-1", spec=BackendSpec(speed=SPEED, kv_blocks=kv_blocks), load_header=load_header)
    if not pages:
        fake.fail_page("/metrics", faults.Status(code=404))
        fake.fail_page("/load", faults.Status(code=404))
    return Rig(fleet=FakeFleet([fake]), **options)


async def keep_busy(rig: Rig, seconds: float, *, at_once: int = 40, **fields: Any) -> list[float]:
    """Have so many calls of 100 to 300 tokens in flight; return how long each took."""
    until, took = rig.clock() + seconds, list[float]()

    async def one_after_another(number: int) -> None:
        while rig.clock() < until:
            at = rig.clock()
            await rig.say(100 + 37 * number % 200, **(fields or WHOLE))
            took.append(rig.clock() - at)
            number += 7

    await asyncio.gather(*(one_after_another(number) for number in range(at_once)))
    return took


def row(rig: Rig) -> Any:
    return rig.scheduler._driver.engine.backends["fake-1"]


def ran(rig: Rig, seconds: float) -> list[float]:
    took: list[float] = []

    async def main() -> None:
        took.extend(await keep_busy(rig, seconds))

    rig.run(main)
    return took


def mean(took: list[float]) -> float:
    return sum(took) / len(took)


def p95(took: list[float]) -> float:
    return sorted(took)[int(0.95 * len(took))]


def test_heads_alone_correct_the_picture() -> None:
    """Without any page: what an engine's memory cannot hold waits here, so calls are done sooner."""
    blind, told = rig(load_header=False), rig(load_header=True)
    without, with_it = ran(blind, 80.0), ran(told, 80.0)
    assert (row(blind).heard.signals, row(blind).budget.tokens) == (None, float("inf"))
    assert 2_000 < row(told).budget.tokens < 4_500
    shown = told.scheduler.snapshot().backends[0]
    assert shown.kv_usage == row(told).heard.kv_usage > 0.3
    preempted = [one["fake-1"].live.model.counters.preemptions for one in (blind, told)]
    assert preempted[1] < 0.4 * preempted[0]
    assert mean(with_it) < 0.97 * mean(without)
    assert p95(with_it) < 0.93 * p95(without)


def test_they_are_heard_as_often_as_pages_would_be_and_a_run_with_them_replays(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    told, heard = rig(load_header=True, journal=journal), list[float]()

    async def main() -> None:
        await keep_busy(told, 31.0)
        await told.scheduler.aclose()

    told.run(main)
    with journal.open(encoding="utf-8") as lines:
        head, recorded = read_journal(lines)
        engine = Engine(list(head.backends), policy=Policy.default(), max_queued=head.max_queued)
        for one in recorded:
            assert engine.handle(one.event) == (one.commands or [])
            if isinstance(one.event, Signalled):
                heard.append(one.event.at)
    assert 5 <= len(heard) <= 7
    assert all(later - earlier >= LOOK_S for earlier, later in pairwise(heard))
    assert engine.backends["fake-1"].budget.tokens == row(told).budget.tokens < float("inf")


def test_the_app_sees_none_of_them_unless_it_asks() -> None:
    told = rig(load_header=True)

    async def main() -> None:
        raw = told.client.chat.completions.with_raw_response
        ask: Any = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], **WHOLE}
        answer = await raw.create(**ask)
        assert "endpoint-load-metrics" not in answer.headers
        answer = await raw.create(**ask, extra_headers={"endpoint-load-metrics-format": "json"})
        form, _, said = answer.headers["endpoint-load-metrics"].partition(" ")
        assert form == "JSON"
        assert json.loads(said)["named_metrics"].keys() == {"kv_cache_usage_perc", "num_requests_waiting"}

    told.run(main)
    assert [one.headers["endpoint-load-metrics-format"] for one in told.received] == ["TEXT", "json"]


def test_one_that_is_not_to_be_asked_is_not() -> None:
    told = rig(load_header=True, limits={"metrics": False})
    ran(told, 20.0)
    assert row(told).heard.signals is None
    assert not any("endpoint-load-metrics-format" in one.headers for one in told.received)


@cache
def answered(lie: bool | str) -> tuple[int, int, Rig]:
    """How many calls of a minute are answered in its first half and in its second, where nothing would hold them up."""
    lying, before = rig(load_header=lie, kv_blocks=8_000), list[int]()

    async def main() -> None:
        asyncio.get_running_loop().call_later(30, lambda: before.append(answers()))
        await keep_busy(lying, 60)

    def answers() -> int:
        return sum(one.outcome == "finished" for one in lying.received)

    lying.run(main)
    return before[0], answers() - before[0], lying


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_whatever_they_say_calls_go_on(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    """A lie costs a part of what is served until it has been told four times, and nothing after that."""
    with caplog.at_level(logging.WARNING, "agentsched"):
        first, second, lying = answered(lie)
    honest_first, honest_second, _ = answered(False)
    assert first > 0.7 * honest_first
    assert second == pytest.approx(honest_second, rel=0.05)
    assert row(lying).budget.tokens == float("inf")
    assert row(lying).heard.foreign(lying.clock()) == 0
    frozen = [record for record in caplog.records if "the same again and again" in record.getMessage()]
    assert len(frozen) == (row(lying).heard.signals is not None)


def test_a_lying_one_is_neither_loved_nor_left_out() -> None:
    """Three equal backends, of which one lies in the heads of its answers: a third of the calls for each."""
    spec = BackendSpec(speed=SPEED)
    for lie in (LIES["idle"], LIES["full"]):
        fakes = [
            FakeBackend(f"fake-{number}", spec=spec, load_header=lie if number == 2 else True)
            for number in (1, 2, 3)
        ]
        three = Rig(fleet=FakeFleet(fakes))

        async def main(three: Rig = three) -> None:
            await keep_busy(three, 60)  # a load that does not change may be true for a while
            before = [fake.log.received for fake in three.fleet]
            await keep_busy(three, 15)
            share = [fake.log.received - then for fake, then in zip(three.fleet, before, strict=True)]
            assert max(share) - min(share) <= 0.1 * sum(share), share

        three.run(main)


def test_where_heads_tell_of_it_the_log_does_not_say_that_nothing_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Pages are asked for by calls that are streamed, heads come with those that are not."""
    told = rig(load_header=True)

    async def main() -> None:
        await keep_busy(told, 10)
        assert row(told).heard.tells(told.clock())
        streams = asyncio.ensure_future(keep_busy(told, 10, at_once=5, max_tokens=300))
        await keep_busy(told, 10)
        await streams
        assert told["fake-1"].polls["/metrics"] == 1
        assert caplog.records == []
        await asyncio.sleep(60)
        await keep_busy(told, FRESH_S, at_once=5, max_tokens=300)
        assert len(caplog.records) == 1, "now nothing tells"

    with caplog.at_level(logging.WARNING, "agentsched"):
        told.run(main)
