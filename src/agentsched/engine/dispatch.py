"""How calls are ranked, and which waiting one is next."""

from collections.abc import Collection, Mapping, Sequence
from math import inf, isnan

from agentsched.engine.backends import BackendRow
from agentsched.engine.placement import Offer, Placement
from agentsched.engine.queue import Choice, Queue
from agentsched.engine.rows import RequestRow
from agentsched.errors import UsageError
from agentsched.model import Job
from agentsched.policy import Policy

RECONSIDERED_S = 0.25
"""How long a call waits that could start, before it is looked at again if nothing happens."""


def rank_of(policy: Policy, job: Job) -> float:
    """Return the policy's rank.

    Raises:
        UsageError: if the policy has none.
    """
    try:
        rank = float(policy.rank(job))
    except Exception as error:
        raise UsageError(f"Policy.rank {policy.rank!r} failed for {job}: {error!r}") from error
    if isnan(rank):
        raise UsageError(f"Policy.rank {policy.rank!r} returned NaN for {job}")
    return rank


def overtakes(policy: Policy) -> bool:
    """Whether calls may go before better-ranked ones of their lane that wait for something else."""
    return policy.release_control or policy.patience > 0


def kept_from(
    row: RequestRow, queue: Queue, requests: Mapping[str, RequestRow], policy: Policy
) -> Collection[str]:
    """Return the backends that a waiting call cannot have now, since better-ranked ones of its lane come first there.

    All of them, where it is not its turn to be looked at.
    """
    kept: dict[str, None] = {}
    for key, request_id in queue.lanes[row.choice].front:
        if key == row.key:
            return kept
        home = requests[request_id].home
        if home is not None:
            kept[home.name] = None
        if not overtakes(policy) or len(kept) == len(row.choice):
            break
    return row.choice


class Dispatch:
    """Finds the waiting call that is next.

    Attributes:
        blocked_until: as of the last look: when a rate limit lets a call start that has a slot waiting for it, or a
            call that waits for its home is to be looked at again; infinite if no point in time changes anything.
    """

    def __init__(
        self,
        policy: Policy,
        queue: Queue,
        requests: Mapping[str, RequestRow],
        backends: Mapping[str, BackendRow],
        placement: Placement,
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._backends = backends
        self._placement = placement
        self._controlled = policy.release_control
        self._overtakes = overtakes(policy)
        self.blocked_until = inf

    def any_open(self, choice: Choice) -> bool:
        """Whether one of these backends may be given more."""
        for name in choice:
            backend = self._backends[name]
            if backend.has_slot and not (
                self._controlled and backend.held_tokens >= backend.budget.tokens and backend.running
            ):
                return True
        return False

    def next(self, now: float) -> tuple[RequestRow, Offer, Sequence[Offer]] | None:
        """Return the best-ranked call that can start, where, and what was offered; None if none can.

        A call that waits has a home, which is not for those of its lane behind it; elsewhere they may go before it.
        """
        self.blocked_until = inf
        found: tuple[RequestRow, Offer, Sequence[Offer]] | None = None
        for choice, lane in self._queue.lanes.items():
            if not self.any_open(choice):
                continue
            claimed: tuple[str, ...] = ()
            for key, request_id in lane.front:
                if found is not None and found[0].key < key:
                    break
                row = self._requests[request_id]
                offers = self._placement.offers(row, now)
                offer = self._placement.choose(row, offers, now, claimed)
                if offer is not None:
                    found = row, offer, offers
                    break
                self._placement.settle(row, offers, now)
                self._note_times(offers, now)
                assert row.home is not None
                if row.home.name not in claimed:
                    claimed = (*claimed, row.home.name)
                if not self._overtakes or len(claimed) == len(choice):
                    break
        return found

    def _note_times(self, offers: Sequence[Offer], now: float) -> None:
        fits_at = [offer.fits_at for offer in offers]
        if min(fits_at) <= now:  # it waits by choice, or because the place is claimed
            self.blocked_until = min(self.blocked_until, now + RECONSIDERED_S)
        else:
            self.blocked_until = min(self.blocked_until, *fits_at)
