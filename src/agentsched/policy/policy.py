"""The composition of a scheduling method in one value: which call first, which backend for it."""

from dataclasses import dataclass
from typing import Protocol

from agentsched.model import BackendLoad, Job
from agentsched.policy.place import finish_time
from agentsched.policy.rank import arrival


class Rank(Protocol):
    """Order of waiting calls of equal priority: the lowest rank is served first."""

    def __call__(self, job: Job, /) -> float: ...


class Cost(Protocol):
    """Expected seconds until the call would be done on that backend; the cheapest gets it."""

    def __call__(self, job: Job, load: BackendLoad, /) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A scheduling method.

    Attributes:
        rank: which waiting call goes first. The caller's `priority` comes before it, arrival after it.
        cost: which backend with room a call goes to.
    """

    rank: Rank = arrival
    cost: Cost = finish_time

    @staticmethod
    def fcfs() -> "Policy":
        """First come, first served, on the backend that is expected to finish first."""
        return Policy()

    @staticmethod
    def default() -> "Policy":
        """The best that this version knows."""
        return Policy.fcfs()
