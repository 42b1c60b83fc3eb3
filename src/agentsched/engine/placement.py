"""Where a call may go, what each place would cost, and whether it had better wait for one that has no room."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, nan

from agentsched.engine.backends import BackendRow
from agentsched.engine.rows import RequestRow
from agentsched.model import Job
from agentsched.policy import Policy
from agentsched.predict.speed import Pace, usual_pace

PATIENT_S = 0.25
"""How long a call that waits for its home does so without being looked at again."""

UNPROVEN = 50
"""Calls of a run for each that has to go to a backend of which only an earlier run says how slow it is."""


@dataclass(slots=True, eq=False)
class Offer:
    """What it would be to have a call at a backend.

    Attributes:
        tokens: that it would commit.
        fits_at: when the rate limits let it start; infinite where there is no slot or no budget for it.
        cost: of the policy, in seconds; nan until it was asked for.
    """

    backend: BackendRow
    cached_tokens: int
    tokens: float
    fits_at: float
    cost: float = nan


class Placement:
    """Places calls at backends for a policy.

    Args:
        told: whether somebody wants to know what each place would cost, even where there is no choice.
    """

    def __init__(self, policy: Policy, backends: Mapping[str, BackendRow], *, told: bool) -> None:
        self._policy = policy
        self._backends = backends
        self._controlled = policy.release_control
        self._told = told

    def offers(self, row: RequestRow, now: float) -> list[Offer]:
        """Return an offer of every backend that a call may go to; none is priced yet."""
        backends, controlled = self._backends, self._controlled
        offers: list[Offer] = []
        for name in row.choice:
            backend = backends[name]
            cached, tokens = backend.needs(row)
            if not backend.has_slot or (controlled and not backend.has_room(tokens)):
                at = inf
            elif backend.rpm is None and backend.tpm is None:
                at = now
            else:
                at = backend.fits_at(now, row.tokens_wanted)
            offers.append(Offer(backend, cached, tokens, at))
        return offers

    def choose(
        self, row: RequestRow, offers: Sequence[Offer], now: float, claimed: Collection[str] = ()
    ) -> Offer | None:
        """Return the best of the offers that a call can take now, or None if it had better wait.

        Args:
            claimed: backends that are the home of better-ranked calls that wait: they are not for this one.
        """
        if len(offers) == 1 and not self._told:
            only = offers[0]
            return only if only.fits_at <= now and only.backend.name not in claimed else None
        fitting: list[Offer] = []
        full: list[Offer] = []
        for offer in offers:
            fits = offer.fits_at <= now and offer.backend.name not in claimed
            (fitting if fits else full).append(offer)
        if not fitting:
            return None
        if not full or not self._policy.patience:
            self._price(row.job, fitting, now)
            return _cheapest(fitting)
        self._price(row.job, offers, now)
        best = _cheapest(fitting)
        least = min(self._total(row, offer, now) for offer in full)
        return best if self._policy.patience * best.cost <= least else None

    def settle(self, row: RequestRow, offers: Sequence[Offer], now: float) -> None:
        """Give a call that waits a home: where it would be done first, behind all others who have theirs there."""
        if len(offers) == 1:
            settle(row, offers[0])
            return
        self._price(row.job, offers, now)
        settle(row, min(offers, key=lambda offer: self._total(row, offer, now)))

    def _total(self, row: RequestRow, offer: Offer, now: float) -> float:
        """Return the seconds of a call that waits for a backend, behind all others who do."""
        backend = offer.backend
        calls, tokens = backend.homed, backend.homed_tokens
        if row.home is backend:
            calls, tokens = calls - 1, tokens - row.home_tokens
        wait_s = backend.wait_s(calls + 1, tokens + offer.tokens, offer.cost)
        if now < offer.fits_at < inf:
            wait_s = max(wait_s, offer.fits_at - now)
        return offer.cost + wait_s

    def _price(self, job: Job, offers: Sequence[Offer], now: float) -> None:
        """Ask the policy for costs; one that raises or returns no number makes its backend the last choice.

        What was never measured counts as the others' mean.
        """
        cost_of = self._policy.cost
        usual: Pace | None = None
        for offer in offers:
            backend = offer.backend
            pace = backend.speed.pace
            if pace is None:
                if usual is None:
                    usual = usual_pace([row.speed for row in self._backends.values()])
                pace = backend.speed.filled(usual)
            elif backend.speed.unproven and self._is_due(backend):
                pace = min((row.speed.pace or pace for row in self._backends.values()), key=_decode_s)
            try:
                cost = float(cost_of(job, backend.load(now, offer.cached_tokens, pace)))
            except Exception:  # a user's cost function; half a decision would lose other calls' answers
                cost = inf
            offer.cost = inf if isnan(cost) else cost

    def _is_due(self, backend: BackendRow) -> bool:
        """Whether it is time to see if a backend is still as slow as an earlier run says.

        It is taken for as fast as any then, so that a profile which is wrong is found out where nobody would go.
        """
        calls = sum([row.started for row in self._backends.values()])
        return calls >= UNPROVEN * (backend.started + 1)


def settle(row: RequestRow, offer: Offer | None) -> None:
    """Have a waiting call counted by another backend as its home, or by none."""
    if row.home is not None:
        row.home.homed -= 1
        row.home.homed_tokens = row.home.homed_tokens - row.home_tokens if row.home.homed else 0.0
        row.home = None
    if offer is not None:
        row.home, row.home_tokens = offer.backend, offer.tokens
        row.home.homed += 1
        row.home.homed_tokens += offer.tokens


def _decode_s(pace: Pace) -> float:
    return pace.decode_s


def _cheapest(offers: Sequence[Offer]) -> Offer:
    """Return the cheapest; of equals the one whose backend got fewer calls so far."""
    best, least = offers[0], (inf, inf, 0)
    for offer in offers:
        key = (offer.cost, offer.backend.started, offer.backend.index)
        if key < least:
            best, least = offer, key
    return best
