"""What can go wrong at a backend, and when it does.

A fault is a value; a rule says which calls it hits. Rules are asked in the order in which they were added,
the first that applies decides. Chance is a hash of the seed and the number of the call, so a run repeats
exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


class Refused(ConnectionError):
    """The backend does not accept connections."""


class Reset(ConnectionError):
    """The backend broke the connection."""


class CutShort(ConnectionError):
    """The backend closed the connection in the middle of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse the connection.

    A real socket is closed while a rule hits every call; a rule that hits only some resets the connection
    instead.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Answer with an HTTP error; `retry_after_s` becomes a `Retry-After` header."""

    code: int = 500
    retry_after_s: float | None = None
    message: str = "injected fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """Accept the call and never answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStart:
    """Hold the answer back for `delay_s` model seconds; the engine works meanwhile."""

    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Stop sending after some events, for ever or for `for_s` model seconds."""

    after_events: int = 0
    for_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Break the connection after some events: reset it, or close it as if the answer were over."""

    after_events: int = 0
    reset: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """Send an error inside a 200 stream after some events; a call without a stream gets it as its status."""

    after_events: int = 0
    code: int = 503
    message: str = "injected fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """Send a malformed event after some good ones and go on; without a stream, a body that is not JSON."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """End a stream after some events in due form, but without its last events."""

    after_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Show the same page whatever happens."""

    page: str


PageFault = Status | Hang | SlowStart | Frozen
"""What may be wrong with a page that says how a backend is."""

Fault = Refuse | Status | Hang | SlowStart | Stall | Cut | ErrorEvent | Garbage | EarlyEnd


@dataclass(slots=True, kw_only=True)
class Rule:
    """Say which calls of a backend a fault hits: all conditions that are given must hold.

    `nth` counts calls from 1; `share` is a probability; `between` is a window of the backend's time in
    seconds, its end not included; `times` ends the rule after so many hits.
    """

    fault: Fault
    nth: tuple[int, ...] | None = None
    share: float = 1.0
    seed: int = 0
    between: tuple[float, float] | None = None
    times: int | None = None
    hits: int = 0

    def applies(self, *, number: int, now: float) -> bool:
        """Say whether the rule hits call `number` at `now`."""
        if self.times is not None and self.hits >= self.times:
            return False
        if self.nth is not None and number not in self.nth:
            return False
        return self.open_at(now) and (self.share >= 1.0 or chance(self.seed, number) < self.share)

    def open_at(self, now: float) -> bool:
        """Say whether `now` is in the rule's window."""
        return self.between is None or self.between[0] <= now < self.between[1]

    @property
    def blanket(self) -> bool:
        """Say whether the rule hits every call in its window."""
        return self.nth is None and self.share >= 1.0 and self.times is None


def chance(seed: int, number: int) -> float:
    """Return a number from 0 up to 1 that looks random and depends on its arguments alone."""
    digest = blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


class FaultPlan:
    """Keep the rules of one backend."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def pick(self, *, number: int, now: float) -> Fault | None:
        """Return the fault that hits call `number` at `now`, and count the hit."""
        for rule in self.rules:
            if rule.applies(number=number, now=now):
                rule.hits += 1
                return rule.fault
        return None

    def refusing(self, now: float) -> bool:
        """Say whether every connection is refused at `now`."""
        return any(
            isinstance(rule.fault, Refuse) and rule.blanket and rule.open_at(now) for rule in self.rules
        )
