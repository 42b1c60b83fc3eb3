"""What a fake backend remembers of the calls it got, for tests to look at."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentsched.testing.faults import Fault


@dataclass(slots=True, kw_only=True)
class Received:
    """Record one call; times in seconds of the backend's clock, `body` as decoded JSON where it was that.

    `outcome` is `open`, then `finished`, `disconnected` (the client went away first), `fault` or `error`.
    """

    number: int
    at: float
    path: str
    headers: Mapping[str, str]
    body: Any
    fault: Fault | None = None
    outcome: str = "open"
    status: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True, kw_only=True)
class Log:
    """Keep the last `limit` calls, and counts of all of them."""

    limit: int = 10_000
    calls: deque[Received] = field(init=False)
    received: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    disconnects: int = 0
    refused: int = 0
    """Requests that met a closed door, of any kind; they are not among the calls."""
    reasons: dict[str, int] = field(default_factory=dict[str, int])
    """Answers by finish reason."""

    def __post_init__(self) -> None:
        self.calls = deque(maxlen=self.limit)

    def open(self, *, at: float, path: str, headers: Mapping[str, str], body: Any) -> Received:
        """Note that a call has arrived."""
        self.received += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        row = Received(number=self.received, at=at, path=path, headers=headers, body=body)
        self.calls.append(row)
        return row

    def close(self, row: Received, outcome: str, *, at: float) -> None:
        """Note how a call has ended; only the first end counts."""
        if row.outcome != "open":
            return
        row.outcome, row.ended_at = outcome, at
        self.in_flight -= 1
        if outcome == "disconnected":
            self.disconnects += 1
