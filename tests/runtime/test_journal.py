"""The journal of a running scheduler: complete, without secrets, in nobody's way."""

import asyncio
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from agentsched import Backend, Policy, Scheduler, SchedulerClosed, UsageError, step
from agentsched.engine import replay
from agentsched.runtime.journalfile import JournalFile
from agentsched.testing import faults
from tests.doubles import Rig, begun, outcome


def test_what_was_recorded_leads_to_the_same_commands(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rig = Rig(2, limit=1, listed=True, journal=path)
    engine = rig.scheduler._driver.engine
    commands: list[Any] = []
    handle = engine.handle
    engine.handle = lambda event: commands.append(handle(event)) or commands[-1]  # type: ignore[method-assign]
    rig["fake-1"].fail(faults.Cut(after_events=2), nth=2)

    async def main() -> None:
        async with rig.scheduler.query("q", timeout_s=1.0, priority=2, tenant="acme"):
            with step("draft"):
                tasks = [rig.begun(40) for _ in range(5)] + [rig.begun(1_000)]
            await begun()
            tasks[3].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await rig.scheduler.aclose()

    rig.run(main)
    with path.open(encoding="utf-8") as lines:
        assert [found for _, found in replay(lines, Policy.default())] == commands


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rig = Rig(1, journal=path)

    async def main() -> None:
        messages: Any = [{"role": "user", "content": "swordfish " * 200}]
        answer = await rig.say(messages=messages, user="swordfish")
        rig["fake-1"].fail(faults.Status(code=500, message="swordfish"))
        await outcome(rig.say(messages=messages))
        assert answer.choices[0].message.content not in path.read_text()
        await rig.scheduler.aclose()

    rig.run(main)
    text = path.read_text()
    assert "swordfish" not in text
    assert '"marks":[' in text.replace(": ", ":")
    assert "fake-1.test" not in text
    for line in text.splitlines():
        json.loads(line)


def test_use_after_close_is_what_it_is_without_a_journal(tmp_path: Path) -> None:
    rig = Rig(1, journal=tmp_path / "journal")

    async def main() -> None:
        async with rig.scheduler.query("q"):
            stream = await rig.say(1_000, stream=True)
            await rig.scheduler.aclose()
            assert isinstance(await outcome(rig.say()), SchedulerClosed)
            await stream.close()
        await rig.scheduler.aclose()

    rig.run(main)


def test_a_fleet_that_cannot_work_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("an earlier run")
    twice = [Backend("http://a.test/v1"), Backend("http://a.test/v1")]
    for wrong in ({"backends": twice}, {"backends": []}, {"max_queued": -1}, {"policy": "best"}):
        with pytest.raises(UsageError):
            Scheduler(**{"backends": twice[:1], "journal": path, **wrong})  # type: ignore[arg-type]
    assert path.read_text() == "an earlier run"


class Full(io.StringIO):
    """A file on a disk that has no room left."""

    name = "full"
    writes = 0

    def write(self, text: str) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        self.writes += 1
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        super().close()
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_journal_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(1, journal=tmp_path / "journal")
    journal = rig.scheduler._journal
    assert journal is not None
    journal.close()
    journal._file = full = Full()  # type: ignore[assignment]

    async def main() -> None:
        for _ in range(3):
            await rig.say()
        await rig.scheduler.aclose()

    with caplog.at_level(logging.WARNING):
        rig.run(main)
    assert [record.getMessage() for record in caplog.records] == [
        "journal full ends here: No space left on device"
    ]
    assert full.writes == 1
    assert full.closed


def test_a_file_closed_under_a_writer(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "journal")
    journal.write("a\n")
    journal._file.close()
    journal.write("b\n")
    journal.close()
    journal.close()
    assert (tmp_path / "journal").read_text() == "a\n"
