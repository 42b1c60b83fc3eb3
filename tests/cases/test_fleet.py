"""Cases of routing over unequal, dishonest or mortal backends: what went wrong in other tools is right here."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from agentsched import Policy
from agentsched.engine.commands import Abort, Forget, Start
from agentsched.model import Signals
from agentsched.sim.backend import BackendModel
from agentsched.testing import FakeBackend, faults
from agentsched.testing.metrics import page
from agentsched.transport.ability import BEGUN
from tests.doubles import MODEL, Rig
from tests.engine.bench import Bench, fleet


def shows(fake: FakeBackend, running: int = 0) -> faults.Frozen:
    """The page of a backend that does nothing, or that runs so many calls, for ever."""
    text = page(BackendModel(fake.spec), model_name=MODEL)
    return faults.Frozen(page=text.replace("} 0\n", f"}} {running}\n", 1))


def received(rig: Rig) -> list[int]:
    return [fake.log.received for fake in rig.fleet]


def looks(rig: Rig) -> list[int]:
    return [fake.polls["/metrics"] for fake in rig.fleet]


def heard(rig: Rig, name: str) -> Any:
    return rig.scheduler._driver.engine.backends[name].heard


async def together(rig: Rig, calls: int) -> None:
    answers = await asyncio.gather(*(rig.say(100) for _ in range(calls)))
    assert len(answers) == calls


async def keep_busy(rig: Rig, seconds: float, *, at_once: int) -> None:
    """Have so many calls of half a second to one and a half in flight."""
    until = rig.clock() + seconds
    for fake in rig.fleet:
        fake.event_tokens = 100

    async def one_after_another(number: int) -> None:
        while rig.clock() < until:
            await rig.say(100 + 37 * number % 200)
            number += 7

    await asyncio.gather(*(one_after_another(number) for number in range(at_once)))


def test_case_85_counts_never_fall_below_what_runs() -> None:
    """85: ends that come twice, late or not at all must not make a backend look emptier than empty."""
    bench = Bench(*fleet(a={}, b={}, c={}))
    where: list[str] = []
    for number in range(1, 301):
        start = bench.submit(f"r{number}", float(number))[0]
        assert isinstance(start, Start)
        where.append(start.backend)
        if number % 3 == 0:
            bench.cancel(f"r{number}", number + 0.1)
        if number % 7:
            bench.finish(start.attempt_id, number + 0.2, output_tokens=10)
            bench.finish(start.attempt_id, number + 0.3, output_tokens=10)
            bench.fail(start.attempt_id, number + 0.4)
    left = sum(number % 7 == 0 and number % 3 != 0 for number in range(1, 301))
    rows = bench.engine.backends.values()
    assert sum(len(row.running) for row in rows) == left
    assert all(row.held_tokens >= 0 and row.unread_tokens >= 0 for row in rows)
    assert max(map(where.count, "abc")) - min(map(where.count, "abc")) < 30


@pytest.mark.parametrize("at_once", [20, 40, 200])
def test_case_86_where_all_loads_read_zero_ties_spread(at_once: int) -> None:
    """86: all backends show loads of zero, whatever they do: none of them gets everything."""
    rig = Rig(4)
    for fake in rig.fleet:
        fake.fail_page("/metrics", shows(fake))

    async def main() -> None:
        for _ in range(200 // at_once):
            await together(rig, at_once)
        assert heard(rig, "fake-1").signals.running == 0

    rig.run(main)
    assert received(rig) == [50, 50, 50, 50]
    assert all(looks(rig))


def test_case_88_a_burst_between_two_looks_counts_itself() -> None:
    """88: 200 calls while the last look says that one backend is busy: they do not all go to the other one."""
    rig = Rig(2)
    rig["fake-1"].fail_page("/metrics", shows(rig["fake-1"], running=50))

    async def main() -> None:
        await together(rig, 16)
        others = [heard(rig, fake.name).foreign(rig.clock()) for fake in rig.fleet]
        assert others == [50 - 8, 0]
        before, looked = received(rig), looks(rig)
        await together(rig, 200)
        one, two = (now - then for now, then in zip(received(rig), before, strict=True))
        assert one + two == 200
        assert one + 50 - 8 == pytest.approx(two, abs=4), "as many in all at each of them"
        assert looks(rig) == looked, "within one interval"

    rig.run(main)


TROUBLES: dict[str, Callable[[FakeBackend], faults.PageFault]] = {
    "missing": lambda _: faults.Status(code=404),
    "slow": lambda _: faults.SlowStart(delay_s=30),
    "locked": lambda _: faults.Status(code=401),
    "frozen": shows,
    "frozen when busy": lambda fake: shows(fake, running=50),
}


@pytest.mark.parametrize("ill", [1, 3], ids=["one", "all"])
@pytest.mark.parametrize("fault", TROUBLES.values(), ids=TROUBLES)
def test_case_89_without_true_metrics_own_counts_decide(
    caplog: pytest.LogCaptureFixture, fault: Callable[[FakeBackend], faults.PageFault], ill: int
) -> None:
    """89: metrics missing, slow, locked or frozen: calls are served, no backend is loved or left out, one warning."""
    rig = Rig(3)
    names = [fake.name for fake in rig.fleet][:ill]
    for name in names:
        rig[name].fail_page("/metrics", fault(rig[name]))
        rig[name].fail_page("/load", faults.Status(code=404))

    async def main() -> None:
        await keep_busy(rig, 60, at_once=24)  # a load that does not change may be true for a while
        before = received(rig)
        await keep_busy(rig, 10, at_once=24)
        share = [now - then for now, then in zip(received(rig), before, strict=True)]
        assert max(share) - min(share) <= 0.1 * sum(share), share
        await asyncio.sleep(3)

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    told = [record.getMessage().partition(": its load is not known")[0] for record in caplog.records]
    assert sorted(told) == names
    assert all(looks(rig))


def test_case_91_newer_and_older_names_are_read_and_unknown_ones_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """91: one server has only the new names, one only the old ones, one only names that nobody knows."""
    rig = Rig(3)
    rig["fake-2"].old_names = True
    rig["fake-3"].fail_page("/metrics", faults.Frozen(page='engine_busy{model="m"} 7\n'))
    rig["fake-3"].fail_page("/load", faults.Status(code=404))

    async def main() -> None:
        await keep_busy(rig, 12, at_once=24)
        for name in ("fake-1", "fake-2"):
            signals = heard(rig, name).signals
            assert (signals.running, signals.waiting) == (8, 0)
            assert signals.kv_usage > 0
        assert heard(rig, "fake-3").signals is None, "that is not a load of zero"
        assert heard(rig, "fake-3").foreign(rig.clock()) == 0

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    (record,) = caplog.records
    assert record.getMessage().startswith("fake-3: ")
    assert "no gauge that is known" in record.getMessage()


def test_case_91_a_server_that_only_counts_its_calls() -> None:
    """91: no names at all, but vLLM's `/load`: that is read instead."""
    rig = Rig(1)
    rig["fake-1"].fail_page("/metrics", faults.Frozen(page=""))

    async def main() -> None:
        await keep_busy(rig, 2, at_once=8)

    rig.run(main)
    assert heard(rig, "fake-1").signals == Signals(running=8)


MARKS = tuple(range(1, 17))
"""Of a session's prompt, which begins as the one before did."""


def session(bench: Bench, turn: int, at: float) -> list[Any]:
    """Submit the next turn of a session: 128 tokens more than the one before."""
    return bench.submit(f"r{turn}", at, input_tokens=128 * (turn + 2), marks=MARKS[: turn + 2])


def done(bench: Bench, attempt_id: int, at: float) -> None:
    bench.progress(attempt_id, at + 0.5, 1)
    bench.finish(attempt_id, at + 1.0, output_tokens=50)


@pytest.mark.parametrize("full", [False, True], ids=["dead", "full"])
def test_case_97_a_session_goes_on_where_it_was_taken_in(full: bool) -> None:
    """97: its backend dies, or is full: its calls go elsewhere at once, and then stay there."""
    bench = Bench(*fleet(a={"max_concurrency": 1}, b={}), policy=Policy(patience=0.0))
    assert session(bench, 1, 0.0) == [Start(1, "r1", "a")]
    done(bench, 1, 0.0)
    bench.submit("warm", 1.0, input_tokens=128)  # so that both are known
    done(bench, 2, 1.0)
    assert session(bench, 2, 2.0)[0] == Start(3, "r2", "a"), "which has read it"
    if full:
        assert session(bench, 3, 2.1) == [Start(4, "r3", "b")]
        done(bench, 3, 3.0)
    else:
        assert bench.leave("a", 2.5) == [Abort(3), Forget("a"), Start(4, "r2", "b")]
    done(bench, 4, 3.0)
    bench.join(*fleet(c={}), 4.0)
    bench.join(*fleet(d={}), 4.0)
    for turn in range(4, 9):
        assert session(bench, turn, float(turn)) == [Start(turn + 1, f"r{turn}", "b")]
        done(bench, turn + 1, float(turn))


@pytest.mark.parametrize("how", ["removed", "broken"])
def test_case_97_its_app_does_not_notice(how: str) -> None:
    """97: turn after turn of ten sessions, while one backend after the other dies: no error, no call that waits."""
    rig = Rig(3)

    def die(name: str) -> None:
        if how == "removed":
            rig.scheduler.fleet.remove(name)
        else:
            rig[name].fail(faults.Refuse())
            rig[name].fail(faults.Cut())

    async def talk(number: int) -> None:
        said: list[Any] = []
        for turn in range(12):
            said.append({"role": "user", "content": f"{number}, {turn}: " + "and so on " * 60})
            answer = await rig.say(40, messages=said)
            said.append({"role": "assistant", "content": answer.choices[0].message.content})

    async def main() -> None:
        sessions = [asyncio.ensure_future(talk(number)) for number in range(10)]
        await asyncio.sleep(0.7)
        die("fake-1")
        await asyncio.sleep(0.7)
        die("fake-2")
        await asyncio.gather(*sessions)
        assert rig.clock() < 2 * 12 * 40 * 0.005 * 2, "no longer than two of them take for all"

    rig.run(main)
    assert sum(row.outcome == "finished" and BEGUN not in str(row.body) for row in rig.received) == 120
    assert rig["fake-3"].log.received > 60
