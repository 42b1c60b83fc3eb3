"""The pytest fixtures, as a user's tests would use them."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from agentsched import Scheduler
from agentsched.testing import FakeFleet, VirtualClock

ASK: dict[str, Any] = {"model": "fake-model", "messages": [{"role": "user", "content": "hi there"}]}


def test_a_plain_test_runs_coroutines_on_the_clock(agentsched_clock: VirtualClock) -> None:
    agentsched_clock.run(asyncio.sleep(3600))
    assert agentsched_clock() == 3600.0


def test_the_fleet_is_two_quick_fakes(agentsched_fleet: FakeFleet) -> None:
    assert [backend.name for backend in agentsched_fleet] == ["fake-1", "fake-2"]
    assert {backend.spec.max_num_seqs for backend in agentsched_fleet} == {16}


@pytest.mark.agentsched_virtual
async def test_a_marked_test_is_in_virtual_time(agentsched_clock: VirtualClock) -> None:
    await asyncio.sleep(86_400)
    assert agentsched_clock() == 86_400.0 == asyncio.get_running_loop().time()


@pytest.mark.agentsched_virtual
@pytest.mark.parametrize("seconds", [1.0, 2.0])
async def test_a_marked_test_may_have_parameters_and_leave_the_clock_out(seconds: float) -> None:
    await asyncio.sleep(seconds)
    assert asyncio.get_running_loop().time() == seconds


async def test_an_unmarked_test_is_not() -> None:
    assert not type(asyncio.get_running_loop()).__module__.startswith("agentsched")


def test_the_scheduler_reaches_the_fleet_in_virtual_time(
    agentsched_scheduler: Scheduler, agentsched_clock: VirtualClock, agentsched_fleet: FakeFleet
) -> None:
    async def main() -> list[openai.types.chat.ChatCompletion]:
        client = agentsched_scheduler.openai()
        return await asyncio.gather(
            *(client.chat.completions.create(**ASK, max_tokens=100) for _ in range(6))
        )

    answers = agentsched_clock.run(main())
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [100] * 6
    assert len(agentsched_fleet.calls) == 6
    assert 0.5 < agentsched_clock() < 1.0


TESTS = """
import asyncio, sys
import pytest

def test_nothing_heavy_is_loaded():
    assert not [name for name in sys.modules if name in ("agentsched.testing", "openai", "httpx", "httpx2")]

@pytest.mark.agentsched_virtual
async def test_virtual(agentsched_clock):
    await asyncio.sleep(100)
    assert agentsched_clock() == 100

@pytest.mark.agentsched_virtual
async def test_deadlock():
    await asyncio.Event().wait()
"""

WRONG = """
async def test_in_real_time(agentsched_scheduler):
    pass

def test_within_a_loop(agentsched_clock):
    async def inner():
        pass
    async def main():
        agentsched_clock.run(inner())
    import asyncio
    asyncio.run(main())
"""


STRICT = ["-p", "pytest_asyncio.plugin", "--asyncio-mode=strict"]
AUTO = ["-p", "pytest_asyncio.plugin", "--asyncio-mode=auto"]


@pytest.mark.parametrize("options", [[], STRICT, AUTO], ids=["none", "strict", "auto"])
def test_the_mark_works_whatever_asyncio_plugin_is_there(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "agentsched.pytest_plugin", *options, "test_it.py"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=60, check=False
    )
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "Deadlock: nothing can happen any more at 0 s" in done.stdout


def test_virtual_time_on_a_real_loop_is_refused(tmp_path: Path) -> None:
    """It would stand still there, and deadlines would never come."""
    (tmp_path / "test_wrong.py").write_text(WRONG)
    command = [sys.executable, "-m", "pytest", "-p", "agentsched.pytest_plugin", *AUTO, "test_wrong.py"]
    alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=alone, capture_output=True, text=True, timeout=60, check=False
    )
    assert "test_in_real_time runs on a real event loop, where virtual time stands still" in done.stdout
    assert "VirtualClock.run starts a loop of its own" in done.stdout
    assert "1 failed, 1 error" in done.stdout
