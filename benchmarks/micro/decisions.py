"""What the engine's decisions cost as the fleet grows.

One operation is one `handle`: of a call that shows a first token, ends, or is submitted and placed. Every backend runs
four calls and has been measured; prompts have marks, and stories are told, as in an app. The gate: with 64 backends an
operation costs at most eight times as much as with 4, though each of them is priced. Run it with
`python -m benchmarks.micro.decisions`.
"""

import gc
import statistics
import sys
import time

from agentsched.engine import Engine
from agentsched.engine.commands import Command, Start
from agentsched.engine.events import Finished, Progressed, Submitted
from agentsched.model import Backend, Request, Usage
from agentsched.policy import Policy

ROUNDS = 500
REPEATS = 7
FEW, MANY = 4, 64
RATIO = 8.0
RUNNING = 4


class Busy:
    """An engine whose backends run `RUNNING` calls each."""

    def __init__(self, backends: int) -> None:
        fleet = [Backend(f"http://b{number}.invalid/v1", models=["m"]) for number in range(backends)]
        self.engine = Engine(fleet, policy=Policy.fcfs())
        self.running: list[int] = []
        self.now = 0.0
        self.submitted = 0
        for _ in range(RUNNING * backends):
            self.submit()
        for _ in range(4 * RUNNING * backends):  # until all are measured
            self.round()

    def submit(self) -> None:
        self.submitted += 1
        request = Request(
            id=f"as-00000000-{self.submitted:x}",
            model="m",
            input_tokens=2_500,
            max_tokens=512,
            workflow="text2sql",
            step="draft",
            marks=(1, 2, 3, 4, self.submitted),
        )
        self.take(self.engine.handle(Submitted(at=self.now, request=request)))

    def take(self, commands: list[Command]) -> None:
        self.running += [command.attempt_id for command in commands if isinstance(command, Start)]

    def round(self) -> None:
        """Three operations."""
        self.now += 0.1
        attempt = self.running.pop(0)
        self.engine.handle(Progressed(at=self.now, attempt_id=attempt, output_tokens=1))
        self.now += 0.1
        usage = Usage(input_tokens=2_500, output_tokens=100)
        self.take(self.engine.handle(Finished(at=self.now, attempt_id=attempt, usage=usage)))
        self.submit()


def handle_us(busy: Busy) -> float:
    """Return the microseconds of one operation."""
    start = time.perf_counter()
    for _ in range(ROUNDS):
        busy.round()
    return (time.perf_counter() - start) / (3 * ROUNDS) * 1e6


def main() -> int:
    few, many = Busy(FEW), Busy(MANY)
    gc.collect()
    gc.freeze()
    pairs = [(handle_us(few), handle_us(many)) for _ in range(REPEATS)]
    many.engine.check()
    few_us, many_us = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(m / f for f, m in pairs)
    verdict = "ok" if ratio <= RATIO else "MISSED"
    print(
        f"handle   {few_us:.1f} us at {FEW} backends, {many_us:.1f} us at {MANY}: x{ratio:.2f}, "
        f"allowed x{RATIO:g}  {verdict}"
    )
    return int(ratio > RATIO)


if __name__ == "__main__":
    sys.exit(main())
