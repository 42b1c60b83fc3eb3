"""What the engine's decisions cost as the queue grows.

One operation is one `handle`: a call finishes at a full backend, the next one starts, another one is submitted
and waits. The gates: a `handle` with 100,000 waiting costs at most twice one with 1,000, and a waiting call holds
at most 4 KB of the engine's memory. Run it with `python -m benchmarks.micro.engine`.
"""

import gc
import statistics
import sys
import tracemalloc

from agentsched.model import Backend
from benchmarks.micro.loaded import Loaded

ROUNDS = 2_000
REPEATS = 7
FEW, MANY = 1_000, 100_000
RATIO = 2.0
BYTES = 4_096


def loaded(queued: int) -> Loaded:
    """Return an engine with a full fleet and a queue of constant length."""
    fleet = [Backend(f"http://{name}.invalid/v1", models=["m"], max_concurrency=4) for name in "abcd"]
    return Loaded(fleet, queued + 16)


def bytes_per_queued() -> float:
    """Return what a waiting call holds."""
    gc.collect()
    tracemalloc.start()
    engine = loaded(0)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10_000):
        engine.submit()
    held = (tracemalloc.get_traced_memory()[0] - before) / 10_000
    tracemalloc.stop()
    return held


def main() -> int:
    few, many = loaded(FEW), loaded(MANY)
    gc.collect()
    gc.freeze()
    pairs = [(few.handle_us(ROUNDS), many.handle_us(ROUNDS)) for _ in range(REPEATS)]
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
