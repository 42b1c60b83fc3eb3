"""What the log says of backends that fail: that they began to, not every time they did."""

import asyncio
import logging

import pytest

from agentsched.runtime.complaints import SILENT_S
from agentsched.testing import faults
from tests.doubles import Rig, outcome


def test_a_backend_that_comes_and_goes_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1)
    down = faults.Status(code=500, message="out of memory")

    async def flap() -> None:
        rig["fake-1"].fail(down, times=2)
        for _ in range(3):
            await outcome(rig.say())

    async def main() -> None:
        for _ in range(5):
            await flap()
        assert len(caplog.records) == 1
        await asyncio.sleep(SILENT_S)
        await flap()

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "fake-1: server error: HTTP 500: out of memory"
    ] * 2


def test_a_call_that_is_wrong_is_nothing_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(1)
    rig["fake-1"].fail(faults.Status(code=400))

    async def main() -> None:
        await outcome(rig.say())

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert caplog.records == []
