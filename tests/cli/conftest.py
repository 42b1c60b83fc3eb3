"""Files to play with, and a way to run the command line in this process."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentsched import Backend, step
from agentsched.cli import main
from agentsched.predict import Measured
from agentsched.runtime import climb
from agentsched.testing import FakeFleet, VirtualClock, faults
from tests.doubles import Rig

Ran = tuple[int, str, str]
"""Exit code, stdout, stderr."""


def measured_in_virtual_time(fleet: FakeFleet) -> Callable[..., Awaitable[Measured]]:
    """Return what measures the servers of a fleet instead of `measure`, on a loop of its own."""

    async def measured(backend: Backend, **options: Any) -> Measured:
        clock = VirtualClock()
        work = climb.measure(backend, upstream=fleet.transport(), clock=clock, seed=1, **options)
        return await asyncio.to_thread(clock.run, work)

    return measured


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def go(*arguments: object) -> Ran:
        with pytest.raises(SystemExit) as end:
            main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        code = end.value.code
        return code if isinstance(code, int) else 1, out, err if isinstance(code, int) else f"{err}{code}\n"

    return go


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty queries of three calls each."""
    dice, at, rows = random.Random(1), 0.0, list[tuple[object, ...]]()
    for query in range(40):
        at += dice.expovariate(0.5)
        made = at
        for name, (read, written) in {"plan": (300, 20), "draft": (2000, 200), "check": (900, 10)}.items():
            rows.append((made, f"q{query}", name, read, written, written * 0.02, 60))
            made += written * 0.02 + 0.1
    rows.sort(key=lambda row: row[0])
    path = tmp_path / "trace.csv"
    head = "time_s,query,step,input_tokens,output_tokens,duration_s,slo_s\n"
    path.write_text(head + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[[backend]]\nname = "big"\ngpu = "A100"\nmax_concurrency = 4\n'
        '[[backend]]\nname = "small"\ngpu = "A6000"\nmax_concurrency = 2\n'
    )
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """What a scheduler recorded of six queries: with a failure, a call that was left and one that never began."""
    path = tmp_path / "run.jsonl"
    rig = Rig(2, limit=2, listed=True, journal=path)
    rig["fake-1"].fail(faults.Cut(after_events=2), nth=2)

    async def query(number: int) -> None:
        async with rig.scheduler.query("support", tenant="acme", slo_s=30.0):
            for name in ("plan", "draft"):
                with step(name):
                    await rig.say(20 + number)
                await asyncio.sleep(0.25)

    async def all_of_it() -> None:
        await asyncio.gather(*(query(number) for number in range(6)))
        left = rig.begun(1_000)
        await asyncio.sleep(0.1)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await rig.scheduler.aclose()

    rig.run(all_of_it)
    return path
