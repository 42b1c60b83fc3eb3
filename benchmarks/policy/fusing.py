"""A player to whom equal work may be done once: what fusion could gain at most, before the library does it."""

from __future__ import annotations

from math import nan
from typing import Any

from agentsched.engine.commands import Resolve
from agentsched.model import Outcome
from agentsched.sim.player import CallRow, Player, Run


class FusingPlayer(Player):
    """Computes a node once if `fuses`: equal ones wait for it while it runs, and have its answer at once ever after."""

    def __init__(self, *given: Any, fuses: bool, **options: Any) -> None:
        super().__init__(*given, **options)
        self._fuses = fuses
        self._joined: dict[str, list[CallRow]] = {}
        self._done: set[str] = set()

    def _call(self, run: Run, number: int) -> None:
        signature = run.plan.nodes[number].signature if self._fuses else None
        if signature is None:
            self._make(run, number)
        elif signature in self._done:
            now = self.loop.now
            call = CallRow(run, number, now, nan, now, None, 0, Outcome.COMPLETED)
            self.calls.append(call)
            self._conclude(call)
        elif signature in self._joined:
            call = CallRow(run, number, self.loop.now)
            self.calls.append(call)
            self._joined[signature].append(call)
        else:
            self._joined[signature] = []
            self._make(run, number)

    def _make(self, run: Run, number: int) -> None:
        """Make a call that nobody else makes."""
        super()._call(run, number)

    def _ended(self, now: float, end: Resolve) -> None:
        call = self._live[end.request_id]
        super()._ended(now, end)
        signature = call.node.signature
        if not self._fuses or signature is None:
            return
        assert end.outcome is Outcome.COMPLETED, "the bench's fleets do not fail"
        self._done.add(signature)
        for joined in self._joined.pop(signature):
            joined.ended_at, joined.outcome = now, end.outcome
            self._conclude(joined)
