"""How much work one backend is given at a time, in tokens: release control.

An engine serves first what came first, so only what is not released yet can still be ordered. What is released
beyond the engine's memory waits there, or drives out what runs. The budget begins with a share of the memory that the
engine says it has, and follows its gauge of how full that is. Where it says nothing, the budget is cut to a share of
what was held when a first token comes late, and grows while they come in time.
"""

from math import inf

SHARE = 0.9
"""Of an engine's memory that is given out at first, and of what was held that is left by a cut."""

LEAST = 0.25
"""Of an engine's memory that is given out whatever its gauge says and however late first tokens come."""

GROWTH = 1.02
"""Of a budget that is used, with every first token that comes in time; to `SHARE` of a memory that was told at most."""

USED = 0.8
"""Share of a budget that is given out when the budget is said to be used."""

LATE, LATE_S = 3.0, 2.0
"""A first token is late that took more than so many times what was expected and so many seconds more."""

FULL = 0.9
"""Share of an engine's memory in use at which its own gauge holds the budget."""

MOST = 8.0
"""Times what is committed that an engine is taken to hold at most, however empty it says it is."""

TOWARDS = 0.3
"""Share of the way that the budget goes with each look at the gauge."""


def is_late(expected_s: float, took_s: float) -> bool:
    """Whether a first token tells of a queue inside the engine."""
    return took_s > LATE * expected_s + LATE_S


class Budget:
    """The budget of one backend.

    Attributes:
        tokens: that may be committed to it: prompts as far as they are not cached, and expected answers.
        told: tokens that the engine says it holds; None if it did not say.
    """

    __slots__ = ("_cut_at", "tokens", "told")

    def __init__(self) -> None:
        self.tokens = inf
        self.told: int | None = None
        self._cut_at = -inf

    def tell(self, kv_tokens: int) -> None:
        """Take what the engine says of its memory."""
        if kv_tokens != self.told:
            self.told = kv_tokens
            self.tokens = SHARE * kv_tokens

    def follow(self, held: float, usage: float, *, running: int, waiting: int, least: float = 0.0) -> None:
        """Take what share of its memory an engine uses for what is committed, and how many calls it runs and holds up.

        What is committed fills its memory by that share, however much of it is shared or longer than expected.

        Args:
            least: tokens that are given out whatever it says.
        """
        target = FULL * held * running / ((running + waiting) * max(usage, 1.0 / MOST))
        tokens = target if self.tokens == inf else self.tokens + TOWARDS * (target - self.tokens)
        self.tokens = max(tokens, self._least, least)

    def first_token(self, now: float, started_at: float, held: float, *, late: bool) -> None:
        """Take a first token of a call that started then, while so many tokens are committed."""
        if not late:
            if held >= USED * self.tokens:
                most = SHARE * self.told if self.told is not None else inf
                self.tokens = max(self.tokens, min(GROWTH * self.tokens, most))
        elif started_at >= self._cut_at:  # what was released before the last cut tells nothing new
            self._cut_at = now
            self.tokens = max(SHARE * min(held, self.tokens), self._least)

    @property
    def _least(self) -> float:
        return LEAST * self.told if self.told is not None else 0.0
