"""Backends as fast as two real engines were on one core of a CPU: speeds fitted to what was measured there.

`STEPS_MS` are the milliseconds between tokens of a stream while 1, 4, 8 and 16 streams decode, and `PREFILL` the
prompt tokens a second on cold prompts of 2,048 tokens: own measurements of November 2026 with vLLM 0.32 (CPU,
bfloat16) and llama.cpp (wheel of October 2026) on generated weights of 1, 27 and 100 million parameters and on
Gemma 3 270M. vLLM's step is nearly flat in the batch, llama.cpp's about proportional to it; what a scheduler
learns of one does not hold for the other.

An engine's `step_s` and `batch_slope` are the least squares fit of `Speed.step` to its steps, with relative errors.
The straight line misses llama.cpp's jump between 1 and 4 streams, as the residuals show. `python -m
agentsched.sim.engines` prints them.
"""

from __future__ import annotations

from functools import cache

from agentsched.sim.fitting import Fit, fit_of, fit_ones
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

BATCHES = (1, 4, 8, 16)

STEPS_MS = {
    "vllm tiny": (2.9, 3.6, 4.1, 5.3),
    "vllm small": (9.9, 10.3, 12.3, 14.7),
    "vllm medium": (21.0, 20.4, 27.7, 40.2),
    "vllm gemma": (57.0, 51.0, 63.0, 88.0),
    "llama.cpp tiny": (0.18, 0.9, 1.6, 3.5),
    "llama.cpp small": (2.3, 11.2, 19.5, 38.4),
    "llama.cpp medium": (8.4, 34.0, 58.0, 110.0),
    "llama.cpp gemma": (22.0, 68.0, 103.0, 190.0),
}

PREFILL = {
    "vllm tiny": 31_700,
    "vllm small": 1_790,
    "vllm medium": 572,
    "vllm gemma": 548,
    "llama.cpp tiny": 16_200,
    "llama.cpp small": 630,
    "llama.cpp medium": 178,
    "llama.cpp gemma": 241,
}
"""Prompt tokens a second."""

ENTRY_S = 0.005


@cache
def fit(engine: str) -> Fit:
    """Fit an engine's speed to its steps."""
    measured = [step / 1e3 for step in STEPS_MS[engine]]
    rows = [(1.0 / s, (batch - 1) / s) for s, batch in zip(measured, BATCHES, strict=True)]
    step_s, further_s = fit_ones(rows)
    speed = Speed(
        step_s=step_s, batch_slope=further_s / step_s, prefill_s=1.0 / PREFILL[engine], entry_s=ENTRY_S
    )
    return fit_of(speed, map(speed.step, BATCHES), measured)


def backend(engine: str) -> BackendSpec:
    """Return an engine of that speed, with 16 seats as it was measured."""
    return BackendSpec(speed=fit(engine).speed, max_num_seqs=16)


def report() -> str:
    """Return the fitted speeds and their residuals as a table."""
    head = (
        f"{'engine':17} {'step ms':>8} {'slope':>6} {'prefill/s':>9}   predicted / measured - 1 at "
        + ", ".join(map(str, BATCHES))
    )
    lines = [head]
    for engine in STEPS_MS:
        found = fit(engine)
        speed = found.speed
        numbers = f"{speed.step_s * 1e3:8.2f} {speed.batch_slope:6.2f} {1 / speed.prefill_s:9.0f}"
        lines.append(f"{engine:17} {numbers}   " + " ".join(f"{r:+8.1%}" for r in found.residuals))
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
