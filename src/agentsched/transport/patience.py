"""How long an attempt is waited for: until its first token, between events, altogether."""

import asyncio
from collections.abc import Callable
from math import inf

from agentsched.model import Limits


class Patience:
    """Watches one attempt from now on; one timer serves all its bounds, and hearing something only notes when.

    Args:
        streamed: whether a first token and pauses can be seen.
        give_up: called once, with what took too long.
    """

    def __init__(self, limits: Limits, *, streamed: bool, give_up: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._give_up = give_up
        now = self._loop.time()
        self._total_due = now + (limits.total_s or inf)
        self._quiet_due = now + (limits.first_token_s or inf) if streamed else inf
        self._idle_s = limits.idle_s or inf
        self._begun = False
        self._left = inf
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def heard(self, *, said: bool) -> None:
        """Something came; `said` is whether any of the answer has."""
        if self._begun:
            self._quiet_due = self._loop.time() + self._idle_s
        elif said:
            self._begun = True
            self._quiet_due = self._loop.time() + self._idle_s
            self._arm()

    def pause(self) -> None:
        """The reader does not keep up, for which the backend is not to blame."""
        self._left = self._quiet_due - self._loop.time()
        self._quiet_due = inf

    def resume(self) -> None:
        """Go on after a pause, with the time that was left."""
        self._quiet_due = self._loop.time() + self._left
        self._arm()

    def close(self) -> None:
        """Watch no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        due = min(self._total_due, self._quiet_due)
        if due < inf:
            self._timer = self._loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        if now >= self._total_due:
            self._give_up(f"not done in {self._limits.total_s:g} s (total_s)")
        elif now >= self._quiet_due:
            limits = self._limits
            self._give_up(
                f"nothing more in {limits.idle_s:g} s (idle_s)"
                if self._begun
                else f"no first token in {limits.first_token_s:g} s (first_token_s)"
            )
        else:
            self._arm()
