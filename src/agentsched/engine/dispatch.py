"""How calls are ranked, which waiting one is next, and what each backend that has room would cost it."""

from collections.abc import Mapping, Sequence
from math import inf, isnan

from agentsched.engine.queue import Queue
from agentsched.engine.rows import BackendRow, RequestRow
from agentsched.errors import UsageError
from agentsched.model import Job
from agentsched.policy import Policy
from agentsched.predict.speed import PRIOR_DECODE_S, PRIOR_PREFILL_S

Next = tuple[RequestRow | None, Sequence[BackendRow], float]
"""The outcome of one look at the queue: the best-ranked call that fits somewhere, None if none does; where it fits;
the earliest time at which a rate limit lets a call start that has a slot waiting for it."""


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


def look(
    queue: Queue, requests: Mapping[str, RequestRow], backends: Mapping[str, BackendRow], now: float
) -> Next:
    """Find the best-ranked call that some backend has room for; within a lane none overtakes its head."""
    found: RequestRow | None = None
    found_fitting: Sequence[BackendRow] = ()
    blocked_until = inf
    for choice, lane in queue.lanes.items():
        with_slot = [backend for name in choice if (backend := backends[name]).has_slot]
        if not with_slot:
            continue
        key, request_id = lane.head()
        if found is not None and found.key < key:
            continue
        row = requests[request_id]
        fitting, fits_at = fitting_of(row, with_slot, now)
        blocked_until = min(blocked_until, fits_at)
        if fitting:
            found, found_fitting = row, fitting
    return found, found_fitting, blocked_until


def fitting_of(
    row: RequestRow, with_slot: Sequence[BackendRow], now: float
) -> tuple[Sequence[BackendRow], float]:
    """Return those of the backends whose rate limits let a call start, and when the next of the others does."""
    fitting: list[BackendRow] = []
    blocked_until = inf
    for backend in with_slot:
        if backend.rpm is None and backend.tpm is None:
            fitting.append(backend)
            continue
        at = backend.fits_at(now, row.tokens_wanted)
        if at <= now:
            fitting.append(backend)
        else:
            blocked_until = min(blocked_until, at)
    return fitting, blocked_until


def place(
    policy: Policy, job: Job, fitting: Sequence[BackendRow], backends: Mapping[str, BackendRow]
) -> tuple[BackendRow, dict[str, float]]:
    """Return the cheapest backend, and the policy's cost of each in seconds.

    What was never measured counts as the others' mean. A cost that raises or is not a number makes its backend
    the last choice. Of equals the one that got fewer calls so far is taken.
    """
    prefill_s, decode_s = PRIOR_PREFILL_S, PRIOR_DECODE_S
    for backend in fitting:
        if backend.speed.prefill_s is None or backend.speed.decode_s is None:
            speeds = [row.speed for row in backends.values()]
            prefill_s = _mean([speed.prefill_s for speed in speeds], PRIOR_PREFILL_S)
            decode_s = _mean([speed.decode_s for speed in speeds], PRIOR_DECODE_S)
            break
    prices: dict[str, float] = {}
    best, least = fitting[0], (inf, inf, 0)
    for backend in fitting:
        try:
            cost = float(policy.cost(job, backend.load(prefill_s, decode_s)))
        except Exception:  # a user's cost function; half a decision would lose other calls' answers
            cost = inf
        if isnan(cost):
            cost = inf
        prices[backend.name] = cost
        key = (cost, backend.started, backend.index)
        if key < least:
            best, least = backend, key
    return best, prices


def _mean(values: Sequence[float | None], otherwise: float) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else otherwise
