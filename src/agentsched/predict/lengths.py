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
        mean = known[0] if known else PRIOR_TOKENS
        return max(1.0, min(mean, float(max_tokens)) if max_tokens is not None else mean)

    def resume(self, key: Key, mean: float, count: int) -> None:
        """Begin with an earlier run's mean over so many answers, which is soon outweighed."""
        self._means[key] = mean, min(count, RESUMED)

    def observe(self, key: Key, output_tokens: int) -> None:
        """Learn from one finished call."""
        output_tokens = min(output_tokens, MOST_TOKENS)
        mean, count = self._means.pop(key, (0.0, 0))
        count = min(count + 1, MEMORY)
        self._means[key] = (
            mean + (output_tokens - mean) / count,
            count,
        )  # at the end, whoever was there before
        if len(self._means) > self._max_keys:
            del self._means[next(iter(self._means))]
