"""What the engine's decisions cost as the queue grows.

One operation is one `handle`: a call finishes at a full backend, the next one starts, another one is submitted
and waits. The gates: a `handle` with 100,000 waiting costs at most twice one with 1,000, and a waiting call holds
at most 4 KB of the engine's memory. Run it with `python -m benchmarks.micro.engine`.
"""

import gc
import statistics
import sys
import time
import tracemalloc

from agentsched.engine import Engine
from agentsched.engine.commands import Start
from agentsched.engine.events import Finished, Progressed, Submitted
from agentsched.model import Backend, Request, Usage
from agentsched.policy import Policy

ROUNDS = 2_000
REPEATS = 7
FEW, MANY = 1_000, 100_000
RATIO = 2.0
BYTES = 4_096


class Loaded:
    """An engine with a full fleet and a queue of constant length."""

    def __init__(self, queued: int) -> None:
        fleet = [Backend(f"http://{name}.invalid/v1", models=["m"], max_concurrency=4) for name in "abcd"]
        self.engine = Engine(fleet, policy=Policy.fcfs(), max_queued=2 * MANY)
        self.running: list[int] = []
        self.now = 0.0
        self.submitted = 0
        for _ in range(queued + 16):
            self.submit()

    def submit(self) -> None:
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
        )
        self.take(self.engine.handle(Submitted(at=self.now, request=request)))

    def take(self, commands: list[object]) -> None:
        self.running += [command.attempt_id for command in commands if isinstance(command, Start)]

    def round(self) -> None:
        """Three operations."""
        self.now += 0.001
        attempt = self.running.pop(0)
        self.engine.handle(Progressed(at=self.now, attempt_id=attempt, output_tokens=1))
        usage = Usage(input_tokens=2_500, output_tokens=100)
        self.take(self.engine.handle(Finished(at=self.now, attempt_id=attempt, usage=usage)))
        self.submit()


def handle_us(loaded: Loaded) -> float:
    """Return the microseconds of one operation."""
    start = time.perf_counter()
    for _ in range(ROUNDS):
        loaded.round()
    return (time.perf_counter() - start) / (3 * ROUNDS) * 1e6


def bytes_per_queued() -> float:
    """Return what a waiting call holds."""
    gc.collect()
    tracemalloc.start()
    loaded = Loaded(0)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10_000):
        loaded.submit()
    held = (tracemalloc.get_traced_memory()[0] - before) / 10_000
    tracemalloc.stop()
    return held


def main() -> int:
    few, many = Loaded(FEW), Loaded(MANY)
    gc.collect()
    gc.freeze()
    pairs = [(handle_us(few), handle_us(many)) for _ in range(REPEATS)]
    few.engine.check()
    few_us, many_us = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(m / f for f, m in pairs)
    held = bytes_per_queued()
    print(
        f"handle   {few_us:.1f} us at {FEW:,} queued, {many_us:.1f} us at {MANY:,}: x{ratio:.2f}, allowed x{RATIO}"
    )
    print(f"memory   {held:.0f} bytes per queued call, allowed {BYTES}")
    return int(ratio > RATIO or held > BYTES)


if __name__ == "__main__":
    sys.exit(main())
