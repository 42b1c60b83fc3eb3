"""What the log is told of backends that fail: that they begin to, now and then. The snapshot counts all failures."""

import logging
from collections.abc import Callable

from agentsched.model import Failure

log = logging.getLogger("agentsched")

SILENT_S = 60.0
"""How long the log says nothing more of a backend that comes and goes."""


class Complaints:
    """Those about one scheduler's backends.

    Args:
        clock: engine seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failing: set[str] = set()
        self._silent_until: dict[str, float] = {}

    def note(self, backend: str, failure: Failure | None) -> None:
        """Take how an attempt ended; None if it was answered."""
        if failure is None or not failure.of_the_backend:
            self._failing.discard(backend)
        elif backend not in self._failing:
            self._failing.add(backend)
            now = self._clock()
            if now >= self._silent_until.get(backend, now):
                self._silent_until[backend] = now + SILENT_S
                log.warning("%s: %s: %s", backend, failure.kind, failure.detail)

    def takes_no_priority(self, backend: str, why: str) -> None:
        """Say that a backend was to be told the priorities of calls and refuses them; once is enough."""
        log.warning("%s: it takes no priorities, so it is sent none any more: %s", backend, why)

    def forget(self, backend: str) -> None:
        """Remember nothing of one that is gone."""
        self._failing.discard(backend)
        self._silent_until.pop(backend, None)
