"""The requests that wait, each in the lane of the backends it may go to, and which of them can start where."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from agentsched.engine.backends import BackendRow
from agentsched.engine.dispatch import Dispatch
from agentsched.engine.placement import Offer, Placement, settle
from agentsched.engine.queue import Choice, Queue
from agentsched.engine.rows import RequestRow
from agentsched.policy import Policy


class Waiting:
    """All waiting requests. A policy that is interrupted leaves each of them in its lane.

    Args:
        requests, backends: those of the engine, which change under it.
        told: whether somebody wants to know what each place would cost, even where there is no choice.

    Attributes:
        blocked_until: see `Dispatch`.
        changed: whether something has happened since the last search, so that another one may find more.
    """

    def __init__(
        self,
        policy: Policy,
        requests: Mapping[str, RequestRow],
        backends: Mapping[str, BackendRow],
        *,
        told: bool,
    ) -> None:
        self.queue = Queue()
        self.blocked_until = inf
        self.changed = False
        self._requests = requests
        self._placement = Placement(policy, backends, told=told)
        self._dispatch = Dispatch(policy, self.queue, requests, backends, self._placement)

    def admit(self, row: RequestRow, now: float, *, in_turn: bool) -> tuple[Offer, Sequence[Offer]] | None:
        """Return where a newcomer is to start, and what was offered, if it had better not wait; else it waits.

        Args:
            in_turn: whether it may start if nobody is ahead of it.
        """
        offers: Sequence[Offer] | None = None
        if in_turn and not self.queue.lanes:
            offers = self._placement.offers(row, now)
            try:
                offer = self._placement.choose(row, offers, now)
            except BaseException:
                self._push(row)
                self.changed = True
                raise
            if offer is not None:
                return offer, offers
        if self._dispatch.any_open(row.choice):
            self.changed = True
        self._push(row)
        if row.choice:
            if offers is None:
                offers = self._placement.offers(row, now)
            self._placement.settle(row, offers, now)
        return None

    def put(self, rows: Sequence[RequestRow], now: float) -> None:
        """Let requests wait; the policy is asked for their homes once all of them do."""
        for row in rows:
            self._push(row)
        for row in rows:
            if row.choice:
                self._placement.settle(row, self._placement.offers(row, now), now)

    def remove(self, row: RequestRow) -> None:
        """Take a request out, for whatever reason but that it starts."""
        self._leave(row)
        self.changed = True  # for whoever was behind it

    def take_out(self, choice: Callable[[RequestRow], Choice]) -> list[RequestRow]:
        """Take out and return those that have no choice of backends, or not the one that they should."""
        waiting = [self._requests[request_id] for _, request_id in self.queue]
        moved = [row for row in waiting if not row.choice or row.choice != choice(row)]
        for row in moved:
            self.remove(row)
        return moved

    def next(self, now: float) -> tuple[RequestRow, Offer, Sequence[Offer]] | None:
        """Take out the best-ranked request that can start; return it, where, and what was offered; None if none can."""
        if self.queue.lanes:
            found = self._dispatch.next(now)
            if found is not None:
                self._leave(found[0])
                return found
            self.blocked_until = self._dispatch.blocked_until
        self.changed = False  # only now: a policy may be interrupted
        return None

    def _push(self, row: RequestRow) -> None:
        self.queue.push(row.choice, row.key, row.request.id)

    def _leave(self, row: RequestRow) -> None:
        self.queue.remove(row.choice, row.key)
        if not self.queue.lanes:
            self.blocked_until = inf
        settle(row, None)
