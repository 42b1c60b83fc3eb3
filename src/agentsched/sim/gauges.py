"""What an engine would show on its metrics page, as plain numbers."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from agentsched.sim.calls import Sequence

TIME_BOUNDS_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
TOKEN_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


FOLD_AT = 1024
"""Values that a histogram notes down before it sorts them into its buckets: noting is cheap."""


class Histogram:
    """Count values into fixed buckets, each up to and including its bound, plus one for the rest."""

    __slots__ = ("_count", "_counts", "_noted", "_total", "bounds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._count = 0
        self._total = 0.0
        self._noted: list[tuple[float, int]] = []

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` as seen `times` times."""
        self._noted.append((value, times))
        if len(self._noted) == FOLD_AT:
            self._fold()

    @property
    def count(self) -> int:
        """Return how many values there were."""
        self._fold()
        return self._count

    @property
    def total(self) -> float:
        """Return their sum."""
        self._fold()
        return self._total

    @property
    def counts(self) -> list[int]:
        """Return how many values each bucket got."""
        self._fold()
        return list(self._counts)

    def cumulative(self) -> list[int]:
        """Return for every bound how many values were no larger, then how many there were."""
        return list(accumulate(self.counts))

    def _fold(self) -> None:
        counts, bounds = self._counts, self.bounds
        for value, times in self._noted:
            counts[bisect_left(bounds, value)] += times
            self._count += times
            self._total += value * times
        self._noted.clear()


def _seconds() -> Histogram:
    return Histogram(TIME_BOUNDS_S)


def _tokens() -> Histogram:
    return Histogram(TOKEN_BOUNDS)


@dataclass(slots=True, kw_only=True)
class Counters:
    """Collect what only ever grows; tokens in tokens, times in model seconds.

    A preempted call counts its prompt, its prefix queries and its queue time once, at its first admission.
    Wasted are the tokens computed for calls that were aborted, and those computed anew after a preemption.
    The gaps between the tokens of a call enter `inter_token` as its mean gap when it ends.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    wasted_tokens: int = 0
    steps: int = 0
    finished: int = 0
    aborted: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    first_token: Histogram = field(default_factory=_seconds)
    inter_token: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    end_to_end: Histogram = field(default_factory=_seconds)
    prompt_length: Histogram = field(default_factory=_tokens)
    output_length: Histogram = field(default_factory=_tokens)

    def admit(self, row: Sequence, *, caching: bool) -> None:
        """Count a call that got its first seat."""
        tokens = row.call.prompt_tokens
        self.queue.add(row.admitted_at - row.submitted_at)
        self.prompt_tokens += tokens
        self.cached_tokens += row.cached
        if caching:
            self.prefix_queries += tokens
            self.prefix_hits += row.cached

    def begin(self, row: Sequence) -> None:
        """Count a call that has its first token."""
        self.first_token.add(row.first_at - row.submitted_at)
        self.prefill.add(row.first_at - row.admitted_at)

    def finish(self, row: Sequence, now: float) -> None:
        """Count a call that has all its tokens."""
        self.finished += 1
        self.generation_tokens += row.tokens
        self.end_to_end.add(now - row.submitted_at)
        self.decode.add(now - row.first_at)
        self.prompt_length.add(row.call.prompt_tokens)
        self.output_length.add(row.tokens)
        if row.tokens > 1:
            self.inter_token.add((now - row.first_at) / (row.tokens - 1), row.tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Show one moment: sequences in the batch and before it, and the share of KV blocks held (0 to 1)."""

    running: int
    waiting: int
    kv_usage: float
