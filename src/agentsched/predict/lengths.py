"""How many tokens a call will write: the mean of its (model, workflow, step)."""

Key = tuple[str | None, str | None, str | None]

PRIOR_TOKENS = 256.0
"""Expected output of a step that has no history yet."""

MOST_TOKENS = 2**17
"""No answer is longer; one mistaken count must not outweigh all others for long."""

MEMORY = 100
"""Answers after which an old one has lost weight 1/e: drifts of a step are followed, noise is not."""


RESUMED = 10
"""Answers that an earlier run's mean counts for at most."""


class MeanLengths:
    """Mean output tokens per (model, workflow, step); the least recently used keys are forgotten.

    Args:
        max_keys: most keys held.
    """

    def __init__(self, max_keys: int = 10_000) -> None:
        self._max_keys = max_keys
        self._means: dict[Key, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._means)

    def expected(self, key: Key, max_tokens: int | None) -> float:
        """Return the expected output tokens, at least 1 and at most the caller's cap."""
        known = self._means.get(key)
        mean = known[0] if known is not None else PRIOR_TOKENS
        if max_tokens is not None and max_tokens < mean:
            mean = float(max_tokens)
        if mean < 1.0:
            return 1.0
        return mean

    def resume(self, key: Key, mean: float, count: int) -> None:
        """Begin with an earlier run's mean over so many answers, which is soon outweighed."""
        self._means[key] = mean, min(count, RESUMED)

    def observe(self, key: Key, output_tokens: int) -> None:
        """Learn from one finished call."""
        if output_tokens > MOST_TOKENS:  # noqa: PLR1730 - each call comes by
            output_tokens = MOST_TOKENS
        means = self._means
        mean, count = means.pop(key, (0.0, 0))
        if count < MEMORY:
            count += 1
        means[key] = mean + (output_tokens - mean) / count, count  # at the end, whoever was there before
        if len(means) > self._max_keys:
            del means[next(iter(means))]
