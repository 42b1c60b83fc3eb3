"""How fast one backend is: seconds per input token read and per output token written.

Two running means, forgetting about as fast as traffic changes. Decode time is brought to a batch of one
before it is averaged, so that what was measured under load prices an idle backend rightly and the reverse.
"""

from dataclasses import dataclass

PRIOR_PREFILL_S = 2e-4
PRIOR_DECODE_S = 0.03
"""Where nothing was measured anywhere: a mid-size model on a mid-size card."""

BATCH_SLOPE = 0.06
"""Growth of the step time per further sequence in the batch, as measured on vLLM (19 ms + 1.2 ms each)."""

LEAST_PROMPT = 64
"""Tokens below which the first token tells of the way there and back, not of reading."""

MEMORY = 30
"""Observations after which an old one has lost weight 1/e."""


@dataclass(slots=True)
class Speed:
    """Learned speed of one backend.

    Attributes:
        prefill_s, decode_s: seconds per token, alone on the backend; None until measured.
    """

    prefill_s: float | None = None
    decode_s: float | None = None
    _prefills: int = 0
    _decodes: int = 0

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Learn from one first token: `tokens` counts its prompt and all prompts read before it."""
        if tokens >= LEAST_PROMPT and seconds > 0:
            self._prefills = min(self._prefills + 1, MEMORY)
            self.prefill_s = _towards(self.prefill_s, seconds / tokens, self._prefills)

    def observe_decode(self, tokens: int, seconds: float, batch: float) -> None:
        """Learn from one answer: `tokens` written after the first one, in a mean batch of `batch` calls."""
        if tokens > 0 and seconds > 0:
            self._decodes = min(self._decodes + 1, MEMORY)
            self.decode_s = _towards(self.decode_s, seconds / tokens / batch_factor(batch), self._decodes)


def batch_factor(batch: float) -> float:
    """Return how much slower a decode step is in a batch than alone."""
    return 1.0 + BATCH_SLOPE * max(0.0, batch - 1.0)


def _towards(mean: float | None, value: float, count: int) -> float:
    return value if mean is None else mean + (value - mean) / count
