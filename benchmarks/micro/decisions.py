"""What the engine's decisions cost as the fleet grows.

One operation is one `handle`: of a call that shows a first token, ends, or is submitted and placed. Every backend runs
four calls and has been measured; prompts have marks, and stories are told, as in an app. The gate: with 64 backends an
operation costs at most eight times as much as with 4, though each of them is priced. Run it with
`python -m benchmarks.micro.decisions`.
"""

import gc
import statistics
import sys

from agentsched.model import Backend
from benchmarks.micro.loaded import Loaded

ROUNDS = 500
REPEATS = 7
FEW, MANY = 4, 64
RATIO = 8.0
RUNNING = 4


def busy(backends: int) -> Loaded:
    """Return an engine whose backends run `RUNNING` calls each and have all been measured."""
    fleet = [Backend(f"http://b{number}.invalid/v1", models=["m"]) for number in range(backends)]
    loaded = Loaded(fleet, RUNNING * backends, gap_s=0.1)
    for _ in range(4 * RUNNING * backends):
        loaded.round()
    return loaded


def main() -> int:
    few, many = busy(FEW), busy(MANY)
    gc.collect()
    gc.freeze()
    pairs = [(few.handle_us(ROUNDS), many.handle_us(ROUNDS)) for _ in range(REPEATS)]
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
