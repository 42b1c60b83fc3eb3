"""A limit on what starts in any 60 seconds."""

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass(slots=True)
class Charge:
    """An amount in the window, and when it started."""

    at: float
    amount: float


class Window:
    """Sliding log of what was started: never more than `limit` in any 60 s, not only on average.

    One amount above the limit on its own is let through when nothing else is in the window, so that a call
    larger than the limit waits for a quiet minute instead of for ever.
    """

    __slots__ = ("_entries", "_total", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: deque[Charge] = deque()
        self._total = 0.0

    @property
    def used(self) -> float:
        """Amount in the window as of the last look."""
        return self._total

    def free_at(self, now: float, amount: float) -> float:
        """Return the earliest time at which `amount` fits; `now` if it fits already."""
        self._forget(now)
        excess = self._total + amount - self.limit
        at = now
        for charge in self._entries:
            if excess <= 0:
                break
            if charge.amount > 0:  # what was given back is not there
                excess -= charge.amount
                at = charge.at + WINDOW_S
        return at

    def charge(self, now: float, amount: float) -> Charge:
        """Record a start; the returned value is what `correct` takes."""
        charge = Charge(now, amount)
        self._entries.append(charge)
        self._total += amount
        return charge

    def correct(self, charge: Charge, amount: float) -> None:
        """Replace a charge by what it really was, 0 to give it back; too late once it left the window."""
        if self._entries and charge.at >= self._entries[0].at:
            self._total += amount - charge.amount
            charge.amount = amount

    def _forget(self, now: float) -> None:
        while self._entries and self._entries[0].at + WINDOW_S <= now:
            self._total -= self._entries.popleft().amount
        if not self._entries:
            self._total = 0.0
