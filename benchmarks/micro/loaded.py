"""An engine under a constant load, driven by hand."""

import time
from collections.abc import Sequence

from agentsched.engine import Engine
from agentsched.engine.commands import Command, Start
from agentsched.engine.events import Finished, Progressed, Submitted
from agentsched.model import Backend, Request, Usage
from agentsched.policy import Policy

MOST = 200_000


class Loaded:
    """An engine in which so many calls run or wait, whatever ends.

    Args:
        gap_s: engine seconds from one call's first token to its end, and to the next one's first token.
    """

    def __init__(self, fleet: Sequence[Backend], calls: int, *, gap_s: float = 0.001) -> None:
        self.engine = Engine(fleet, policy=Policy.fcfs(), max_queued=MOST)
        self.running: list[int] = []
        self.now = 0.0
        self.submitted = 0
        self._gap_s = gap_s
        for _ in range(calls):
            self.submit()

    def submit(self) -> None:
        """Make a call that shares the beginning of its prompt with all others."""
        self.submitted += 1
        request = Request(
            id=f"as-00000000-{self.submitted:x}",
            model="m",
            input_tokens=2_500,
            max_tokens=512,
            query=f"q-{self.submitted // 16}",
            workflow="text2sql",
            step="draft",
            tenant="acme",
            deadline=self.now + 1e9,
            marks=(1, 2, 3, 4, self.submitted),
        )
        self._take(self.engine.handle(Submitted(at=self.now, request=request)))

    def round(self) -> None:
        """Three operations: the oldest running call shows its first token and ends, another one is made."""
        self.now += self._gap_s
        attempt = self.running.pop(0)
        self.engine.handle(Progressed(at=self.now, attempt_id=attempt, output_tokens=1))
        self.now += self._gap_s
        usage = Usage(input_tokens=2_500, output_tokens=100)
        self._take(self.engine.handle(Finished(at=self.now, attempt_id=attempt, usage=usage)))
        self.submit()

    def handle_us(self, rounds: int) -> float:
        """Return the microseconds of one operation, as the mean over so many rounds."""
        start = time.perf_counter()
        for _ in range(rounds):
            self.round()
        return (time.perf_counter() - start) / (3 * rounds) * 1e6

    def _take(self, commands: list[Command]) -> None:
        self.running += [command.attempt_id for command in commands if isinstance(command, Start)]
