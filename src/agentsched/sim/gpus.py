"""Backends as fast as real GPUs: speeds fitted to published stage times, fleets as data.

`STAGE_TIMES` are the mean seconds that seven stages of a text-to-SQL workflow took on six GPUs with
Llama-3.1-70B at 4 bits, one call at a time: facts taken from tables in the simulator published with
HexGen-Flow (github.com/Relaxed-System-Lab/Hexgen-Flow). Its own per-token constants contradict these times
and are not used.

A GPU's `prefill_s`, `step_s` and `entry_s` are the non-negative least squares fit of `Speed.alone_s` to its
seven times, with relative errors, since the times differ by a factor of 100 and every stage should count.
Nothing suggests that a shared prefix made a stage look cheap: the shortest stages come out within 20 %, and
the two large residuals (revise on A40, evaluate on A800) are slower than the line, not faster. `python -m
agentsched.sim.gpus` prints them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from agentsched.sim.fitting import Fit, fit_of, fit_ones
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

STAGES = {
    "information_retriever": (308, 5),
    "extract_keywords": (667, 45),
    "generate_candidate": (11748, 678),
    "revise": (5963, 79),
    "unit_tester": (275, 4),
    "generate_unit_test": (1109, 103),
    "evaluate": (961, 22),
}
"""Mean prompt and output tokens of each stage."""

STAGE_TIMES = {
    "A100": (0.2253, 1.1359, 18.2363, 3.3314, 0.1735, 2.5385, 0.8670),
    "H100": (0.1012, 0.5469, 8.7863, 1.4280, 0.0763, 1.2382, 0.3985),
    "A6000": (0.4869, 2.1088, 34.2747, 8.0309, 0.3907, 4.5617, 1.7923),
    "A40": (0.4932, 2.5157, 40.3525, 13.8657, 0.3786, 5.6343, 1.9049),
    "L40S": (0.4003, 2.0330, 32.6221, 5.8850, 0.3077, 4.5497, 1.5440),
    "A800": (0.1020, 0.7857, 10.2678, 2.4632, 0.0970, 1.6258, 0.8296),
}
"""Seconds per stage, in the order of `STAGES`. The source writes L40 here and L40S elsewhere."""

CARD_GB = {"A100": 40, "H100": 80, "A6000": 48, "A40": 48, "L40S": 48, "A800": 80}
"""Memory of the cards in 1e9 bytes, public data sheets; the A100 is the 40 GB one, as in the source."""

USABLE = 0.95
WEIGHTS_BYTES = 35e9
"""70e9 weights at 4 bits."""
KV_BYTES_PER_TOKEN = 80 * 8 * 128 * 2 * 0.5
"""Layers, KV heads, head size, key and value, 4 bits: 81,920 bytes."""

CHUNK_TOKENS = 2048
MIN_ENTRY_S = 0.0005


@dataclass(frozen=True, slots=True)
class Card:
    """A card of a fleet, and what share of its KV memory is there; the rest is somebody else's."""

    gpu: str
    kv_share: float = 1.0


FLEETS = {
    "hetero1": (Card("A100"), Card("A100"), Card("A6000"), Card("L40S")),
    "hetero2": (Card("A100"), Card("A100"), Card("A6000"), Card("A6000")),
    "homo": (Card("A100"),) * 4,
    "pair": (Card("H100"), Card("A6000")),
    "tight": (Card("A100", 0.7), Card("A100", 0.7), Card("A6000", 0.2), Card("L40S", 0.2)),
    "fleet64": (Card("H100"),) * 16 + (Card("A100"),) * 16 + (Card("A6000"),) * 16 + (Card("L40S"),) * 16,
}
"""Cards of each fleet; a further one is a further line. In `tight`, memory for two long prompts each."""


@cache
def fit(gpu: str) -> Fit:
    """Fit a GPU's speed to its stage times."""
    times = STAGE_TIMES[gpu]
    rows = [
        (prompt / time, (output + math.ceil(prompt / CHUNK_TOKENS) - 1) / time, 1.0 / time)
        for (prompt, output), time in zip(STAGES.values(), times, strict=True)
    ]
    prefill_s, step_s, entry_s = fit_ones(rows)
    speed = Speed(prefill_s=prefill_s, step_s=step_s, entry_s=max(entry_s, MIN_ENTRY_S))
    alone = [speed.alone_s(prompt, output, chunk_tokens=CHUNK_TOKENS) for prompt, output in STAGES.values()]
    return fit_of(speed, alone, times)


def kv_tokens(gpu: str) -> int:
    """Return for how many tokens a card has KV memory beside the weights."""
    return int((CARD_GB[gpu] * 1e9 * USABLE - WEIGHTS_BYTES) / KV_BYTES_PER_TOKEN)


def backend(gpu: str, kv_share: float = 1.0) -> BackendSpec:
    """Return an engine with the limits of vLLM and the speed and memory of one card."""
    return BackendSpec(
        speed=fit(gpu).speed,
        max_num_batched_tokens=CHUNK_TOKENS,
        kv_blocks=int(kv_tokens(gpu) * kv_share) // 16,
        block_tokens=16,
    )


def fleet(name: str) -> dict[str, BackendSpec]:
    """Return the engines of a fleet by name: the GPU's, numbered where there are several."""
    cards = FLEETS[name]
    gpus = [card.gpu for card in cards]
    names = [f"{gpu}-{gpus[:i].count(gpu) + 1}" if gpus.count(gpu) > 1 else gpu for i, gpu in enumerate(gpus)]
    specs = [backend(card.gpu, card.kv_share) for card in cards]
    return {label.lower(): spec for label, spec in zip(names, specs, strict=True)}


def report() -> str:
    """Return the fitted speeds and the residuals of every stage as a table."""
    head = (
        f"{'GPU':6} {'prefill':>9} {'step':>8} {'entry':>8} {'KV':>8}   predicted / measured - 1, per stage"
    )
    lines = [
        head,
        f"{'':6} {'us/token':>9} {'ms':>8} {'ms':>8} {'tokens':>8}   "
        + " ".join(f"{s[:11]:>11}" for s in STAGES),
    ]
    for gpu in STAGE_TIMES:
        found = fit(gpu)
        speed, room = found.speed, kv_tokens(gpu)
        numbers = f"{speed.prefill_s * 1e6:9.1f} {speed.step_s * 1e3:8.2f} {speed.entry_s * 1e3:8.2f}"
        lines.append(
            f"{gpu:6} {numbers} {room:8d}   " + " ".join(f"{residual:+11.1%}" for residual in found.residuals)
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
