"""The composition of a scheduling method in one value: which call first, which backend for it."""

from dataclasses import dataclass
from typing import Protocol, cast

from agentsched.errors import UsageError
from agentsched.model import BackendLoad, Job
from agentsched.policy.place import finish_time
from agentsched.policy.rank import arrival


class Rank(Protocol):
    """Order of waiting calls of equal priority: the lowest rank is served first."""

    def __call__(self, job: Job, /) -> float: ...


class Cost(Protocol):
    """Expected seconds that the call would cost on that backend; the cheapest gets it."""

    def __call__(self, job: Job, load: BackendLoad, /) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A scheduling method.

    Attributes:
        rank: which waiting call goes first. The caller's `priority` comes before it, arrival after it.
        cost: which backend a call goes to.
        release_control: whether each backend is given only as much work as it holds without keeping calls waiting.
            The rest waits here, where it can still be ordered.
        patience: a call waits for a backend that has no room if that costs less than so many times what the best one
            with room does, the wait behind all others who wait for it included; from 0, which never waits, to 1.

    Raises:
        UsageError: for a patience that is no number from 0 to 1.
    """

    rank: Rank = arrival
    cost: Cost = finish_time
    release_control: bool = True
    patience: float = 0.25

    def __post_init__(self) -> None:
        """Refuse what is no policy."""
        patience = cast("object", self.patience)
        if not isinstance(patience, (int, float)) or isinstance(patience, bool) or not 0 <= patience <= 1:
            raise UsageError(f"Policy: patience must be a number from 0 to 1, not {patience!r}")
        if self.release_control not in (True, False):
            raise UsageError(f"Policy: release_control must be True or False, not {self.release_control!r}")

    @staticmethod
    def fcfs() -> "Policy":
        """First come, first served, on the backend that is expected to finish first."""
        return Policy()

    @staticmethod
    def default() -> "Policy":
        """The best that this version knows."""
        return Policy.fcfs()
