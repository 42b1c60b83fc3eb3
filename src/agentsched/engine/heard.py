"""What one backend says of its load, and how far that is believed: our own counts come first, it corrects them."""

from math import inf

from agentsched.engine.budget import Budget
from agentsched.model import Signals

LOOK_S = 5.0
"""How often a backend that is at work is looked at."""

LOOK_FROM = 4
"""Calls at a backend from which on it is looked at: with fewer there is nothing to hold back."""

WATCHED = 2 * LOOK_FROM
"""Calls for which what is told with answers leaves room: with fewer it would soon not be heard any more."""

SILENT_S = 60.0
"""How long a backend that did not say is left alone."""

FRESH_S = 15.0
"""Signals this old say nothing any more."""

FROZEN = 3
"""Times that a backend at work says the very same before it is no longer believed."""


class Heard:
    """The latest signals of one backend.

    Attributes:
        signals: as they came; None if there are none.
        at: when they came.
        kv_usage: share of its memory in use, as it was said last; None if it never was.
        look_at: when the backend is looked at next; infinite if it never is.
    """

    __slots__ = (
        "_foreign",
        "_foreign_at",
        "_kept",
        "_kv_at",
        "_same",
        "at",
        "kv_usage",
        "look_at",
        "signals",
    )

    def __init__(self, *, asked: bool) -> None:
        self.signals: Signals | None = None
        self.at = self._kv_at = self._foreign_at = -inf
        self.kv_usage: float | None = None
        self.look_at = -inf if asked else inf
        self._foreign = 0
        self._same = 0
        self._kept = inf

    @property
    def frozen(self) -> bool:
        """Whether they do not follow what happens."""
        return self._same >= FROZEN

    def foreign(self, now: float) -> int:
        """Return how many calls are there that are not ours, as far as that is known."""
        return self._foreign if self._foreign and now <= self._foreign_at + FRESH_S else 0

    def look_due(self, now: float, running: int) -> bool:
        """Return whether the backend is to be asked now, with so many calls there, and note that it is."""
        due = now >= self.look_at and running >= LOOK_FROM
        if due:
            self.look_at = now + LOOK_S
        return due

    def news_due(self, now: float, running: int) -> bool:
        """Return whether what it tells unasked, with so many calls there, is heard: as often as it would be asked."""
        return running >= LOOK_FROM and now >= self._kv_at + LOOK_S

    def hear(self, now: float, signals: Signals | None, *, running: int, held: float, budget: Budget) -> bool:
        """Take an answer of a backend that runs so many of our calls; return whether it means more room."""
        if signals is None:
            self.look_at = now + SILENT_S
            return False
        usage, waiting, before = signals.kv_usage, signals.waiting or 0, budget.tokens
        if usage is not None or not self._fresh(now):
            self._same = self._same + 1 if running and self._is_same(signals) else 0
        self.signals, self.at = signals, now
        if usage is not None:
            self.kv_usage, self._kv_at = usage, now
        if self.frozen:
            self._foreign = 0
            if self._same == FROZEN and usage is not None:
                budget.tokens = self._kept
            return budget.tokens > before
        if signals.running is not None or not self.foreign(now):  # who counts less does not know better
            self._foreign, self._foreign_at = max((signals.running or 0) + waiting - running, 0), now
        if signals.kv_tokens:
            budget.tell(signals.kv_tokens)
        if not self._same:
            self._kept = budget.tokens
        if usage is not None and held > 0:
            self._follow(signals, usage, running=running, held=held, budget=budget)
        return budget.tokens > before

    def _follow(self, signals: Signals, usage: float, *, running: int, held: float, budget: Budget) -> None:
        waiting = signals.waiting or 0
        if signals.running is None:  # our own count stands in for the batch
            there, least = max(running - waiting, 1), held * WATCHED / max(running, 1)
            budget.follow(held, usage, running=there, waiting=waiting, least=least)
        elif signals.running:
            budget.follow(held, usage, running=signals.running, waiting=waiting)

    def _is_same(self, signals: Signals) -> bool:
        """Whether nothing moves: of the memory in use, which always does where calls run; else of all that is said."""
        return signals == self.signals if signals.kv_usage is None else signals.kv_usage == self.kv_usage

    def _fresh(self, now: float) -> bool:
        return now <= self._kv_at + FRESH_S

    def tells(self, now: float) -> bool:
        """Whether the engine said a short while ago how full it is."""
        return self._fresh(now) and not self.frozen
