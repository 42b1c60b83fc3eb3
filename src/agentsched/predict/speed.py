"""How fast one backend is, learned from the times of its tokens: no shape is taken for granted.

A first token comes after the way there and the reading of every prompt that was ahead. A further one comes after a
step, which takes the longer the more calls are in the batch and the more text they hold, and after what was read of
other prompts meanwhile. vLLM's step is nearly flat in the batch, llama.cpp's about proportional to it.
"""

from collections.abc import Sequence

from agentsched.model.value import record
from agentsched.predict.fit import Fit
from agentsched.predict.learned import Learned

PRIOR_PREFILL_S = 2e-4
PRIOR_DECODE_S = 0.03
"""Where nothing was measured anywhere: a mid-size model on a mid-size card."""

BATCH_SLOPE = 0.06
"""Growth of the step time per further sequence in the batch, as measured on vLLM (19 ms + 1.2 ms each)."""

LEAST_PROMPT = 64
"""Tokens below which the first token tells of the way there and back, not of reading."""

READ_SHARE = PRIOR_PREFILL_S / PRIOR_DECODE_S
"""Delay of a running call per token of another's prompt, in steps, until it was seen."""


_PRIOR_READ = (0.0, PRIOR_PREFILL_S)
_PRIOR_WRITE = (PRIOR_DECODE_S, BATCH_SLOPE * PRIOR_DECODE_S, PRIOR_PREFILL_S, 0.0)

WAITING = 0.2
"""Weight of a first token that came later than expected: it may have waited for something else than its turn."""


@record
class Pace:
    """How fast a backend is, in seconds.

    Attributes:
        entry_s: until an empty prompt's first token.
        prefill_s: per input token read.
        decode_s: per output token written, alone on the backend.
        batch_s: by which a step grows per further call in the batch.
        read_s: that a running call loses per token that is read of others' prompts.
        context_s: by which a step grows per token that the calls in the batch hold.
    """

    entry_s: float
    prefill_s: float
    decode_s: float
    batch_s: float
    read_s: float
    context_s: float

    def step_s(self, others: int, held: float) -> float:
        """Return the seconds of a step in which so many other calls take part, who hold so many tokens."""
        return self.decode_s + others * self.batch_s + held * self.context_s


class Speed:
    """Learned speed of one backend.

    Args:
        learned: what an earlier run says of it, which is soon outweighed.

    Attributes:
        prefill: of the seconds until a first token: a constant, and per token read.
        decode: of the seconds from there to the end: per token written, per token written and further call there, per
            token read meanwhile, per token written and token held there.
        pace: all of that; None until both were measured.
        unproven: whether no answer has come yet that would bear out what an earlier run says.
    """

    __slots__ = ("decode", "pace", "prefill", "unproven")

    def __init__(self, learned: Learned | None = None) -> None:
        self.pace: Pace | None = None
        self.prefill = Fit(0.0, 1.0, above=WAITING)
        self.decode = Fit(1.0, BATCH_SLOPE, READ_SHARE, 0.0)
        self.unproven = learned is not None
        if learned is not None:
            if learned.prefill is not None:
                self.prefill.resume(learned.prefill)
            if learned.decode is not None:
                self.decode.resume(learned.decode)
            self._set()

    @property
    def prefill_s(self) -> float | None:
        return self.prefill.coefficients[1] if self.prefill.count else None

    @property
    def decode_s(self) -> float | None:
        return self.decode.coefficients[0] if self.decode.count else None

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """Learn from one first token: `tokens` counts its prompt and all prompts read before it."""
        if seconds > 0 and (tokens >= LEAST_PROMPT or (self.prefill.count and tokens >= 0)):
            self.prefill.observe(seconds, 1.0, tokens)
            self._set()

    def observe_decode(
        self, tokens: int, seconds: float, batch: float, *, read: int = 0, held: float = 0.0
    ) -> None:
        """Learn from one answer.

        Args:
            tokens: written after the first one.
            batch: mean number of calls there meanwhile, its own included.
            read: tokens of others' prompts that were read meanwhile.
            held: mean tokens that the calls there held meanwhile.
        """
        if tokens > 0 and seconds > 0:
            self.unproven = False
            others = max(0.0, batch - 1.0)
            factor = self.decode.observe(seconds, tokens, tokens * others, read, tokens * held)
            if (
                factor != 1.0 and self.prefill.count
            ):  # first tokens cannot tell a slower engine from a longer queue
                self.prefill.scale(factor)
            self._set()

    def expected_first_s(self, tokens: int) -> float | None:
        """Return the seconds until a first token with so many tokens to read before; None until one was seen."""
        return self.prefill.expected(1.0, tokens) if self.prefill.count else None

    def filled(self, usual: Pace) -> Pace:
        """Return the pace with what is usual in the place of what was not measured yet."""
        entry_s, prefill_s = (
            self.prefill.coefficients if self.prefill.count else (usual.entry_s, usual.prefill_s)
        )
        if not self.decode.count:
            return Pace(entry_s, prefill_s, usual.decode_s, usual.batch_s, usual.read_s, usual.context_s)
        return Pace(entry_s, prefill_s, *self.decode.coefficients)

    def _set(self) -> None:
        if self.prefill.count and self.decode.count:
            self.pace = Pace(*self.prefill.coefficients, *self.decode.coefficients)


def usual_pace(speeds: Sequence[Speed]) -> Pace:
    """Return the mean of what was measured, and priors for what was not measured anywhere."""
    read = [speed.prefill.coefficients for speed in speeds if speed.prefill.count]
    wrote = [speed.decode.coefficients for speed in speeds if speed.decode.count]
    return Pace(*_means(read, _PRIOR_READ), *_means(wrote, _PRIOR_WRITE))


def _means(rows: Sequence[Sequence[float]], otherwise: Sequence[float]) -> Sequence[float]:
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else otherwise
