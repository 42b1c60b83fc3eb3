"""How many tokens a prompt really has: what backends count, against what was estimated from its characters."""

from collections import OrderedDict

from agentsched.model.value import record

MEMORY = 50
"""Prompts after which an old one has lost weight 1/e."""

LEAST_TOKENS = 32
"""Shorter prompts consist of the template around them."""

LEAST, MOST = 0.2, 5.0
"""Bounds of the correction: a factor beyond them is a mistake of somebody's."""


RESUMED = 0.2
"""Share of its weight that an earlier run's past keeps."""


@record
class PromptRatio:
    """What was learned of the prompts of one model: tokens, counted and as they had been estimated."""

    model: str | None
    counted: float
    estimated: float


class PromptLengths:
    """Counted tokens per estimated token, by model; the least recently used models are forgotten.

    Args:
        max_models: most models held.
    """

    def __init__(self, max_models: int = 1_000) -> None:
        self._max_models = max_models
        self._sums: OrderedDict[str | None, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sums)

    def learned(self) -> tuple[PromptRatio, ...]:
        """Return what was learned, the latest model last."""
        return tuple(
            PromptRatio(model, counted, estimated) for model, (counted, estimated) in self._sums.items()
        )

    def resume(self, ratio: PromptRatio) -> None:
        """Begin with what an earlier run has learned, which is soon outweighed."""
        self._sums[ratio.model] = RESUMED * ratio.counted, RESUMED * ratio.estimated

    def expected(self, model: str | None, estimated: int) -> int:
        """Return the tokens to expect of a prompt."""
        known = self._sums.get(model)
        return estimated if known is None else round(estimated * known[0] / known[1])

    def observe(self, model: str | None, estimated: int, counted: int) -> None:
        """Learn from one prompt that a backend has counted."""
        if estimated < LEAST_TOKENS:
            return
        counts, estimates = self._sums.get(model, (0.0, 0.0))
        keep = 1.0 - 1.0 / MEMORY
        counted_at_most = min(max(counted, LEAST * estimated), MOST * estimated)
        self._sums[model] = (counts * keep + counted_at_most, estimates * keep + estimated)
        self._sums.move_to_end(model)
        if len(self._sums) > self._max_models:
            self._sums.popitem(last=False)
