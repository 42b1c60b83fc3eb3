"""How long does one engine step take? Nothing here knows queues, memory or time of day.

A step computes one token for every decoding sequence and a chunk of the prompt for every prefilling one. Its
duration is linear in what it does, which fits vLLM well (about `19 + 1.2 * batch` ms for a 100 M model on one
core, hence the default slope) and is wrong for engines whose step grows in jumps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

VLLM_BATCH_SLOPE = 0.06
"""Growth of a step per further sequence, as a share of the step with one: 1.2 ms of 20.2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Price one engine step; every field is in seconds but `batch_slope`, a share of `step_s`.

    `entry_s` is the time from arrival until the call may join a step (HTTP, tokenising, the scheduler's
    wake-up). It is never zero: calls that arrive together then always meet in one step, whoever looks at
    the model meanwhile.
    """

    step_s: float = 0.02
    prefill_s: float = 0.0001
    batch_slope: float = VLLM_BATCH_SLOPE
    context_s: float = 0.0
    entry_s: float = 0.001

    def __post_init__(self) -> None:
        """Refuse speeds under which time would not move forward."""
        if not (self.step_s > 0 and self.entry_s > 0 and math.isfinite(self.step_s + self.entry_s)):
            raise ValueError("step_s and entry_s must be finite and above 0")
        if not min(self.prefill_s, self.batch_slope, self.context_s) >= 0:
            raise ValueError("prefill_s, batch_slope and context_s must not be negative")

    def slower(self, factor: float) -> Speed:
        """Return the speed at which every step takes `factor` times as long; the way to the engine stays what it is."""
        return replace(
            self,
            step_s=factor * self.step_s,
            prefill_s=factor * self.prefill_s,
            context_s=factor * self.context_s,
        )

    def step(self, sequences: int, prefill_tokens: int = 0) -> float:
        """Return the seconds of a step over `sequences`, less what reading the decoders' context costs."""
        return self.step_s * (1.0 + self.batch_slope * (sequences - 1)) + prefill_tokens * self.prefill_s

    def alone_s(self, prompt_tokens: int, output_tokens: int, *, chunk_tokens: int = 2048) -> float:
        """Return the seconds one call takes on an idle engine with a cold cache, from arrival to last token.

        The step that ends the prefill yields the first token, so there are `chunks + output_tokens - 1`
        steps.
        """
        decodes = max(output_tokens - 1, 0)
        steps = math.ceil(prompt_tokens / chunk_tokens) + decodes
        context = decodes * prompt_tokens + decodes * (decodes - 1) // 2
        return self.entry_s + steps * self.step_s + prompt_tokens * self.prefill_s + context * self.context_s
