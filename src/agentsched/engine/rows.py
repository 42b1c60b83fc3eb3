"""The rows of requests and attempts. State and its bookkeeping; the decisions are the engine's."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from agentsched.engine.queue import Choice, Key
from agentsched.engine.window import Charge
from agentsched.model import Failure, FailureKind, Job, Request

if TYPE_CHECKING:
    from agentsched.engine.backends import BackendRow

MAX_ORPHANED = 3
"""How often a call whose task is cancelled under it goes back to the same backend."""


@dataclass(slots=True)
class RequestRow:
    """A live request: it waits (`attempt` is None) or runs.

    Attributes:
        tried: backends that failed it, in that order.
        choice: the lane it waits in.
        home: where it would go first, while it waits; the backend counts it as `home_tokens`.
        kept: tokens of its answer that are there already, from backends that did not come to its end.
    """

    request: Request
    job: Job
    key: Key
    choice: Choice = ()
    tried: tuple[str, ...] = ()
    attempts: int = 0
    orphaned: int = 0
    attempt: "AttemptRow | None" = None
    last_failure: Failure | None = None
    last_backend: str | None = None
    failed_at: str | None = None
    home: "BackendRow | None" = None
    home_tokens: float = 0.0
    kept: int = 0

    @property
    def tokens_wanted(self) -> float:
        """What a token limit is charged before the real numbers are known."""
        return self.job.input_tokens + self.job.output_tokens

    def failed(self, failure: Failure, backend: str | None) -> None:
        """Note a failure at a backend, to which the call does not go again; None for one that is gone."""
        self.keep(failure.kept_tokens or 0)
        if failure.kind is FailureKind.UNABLE and self.last_failure is not None:
            self.last_backend = self.failed_at  # that it could not go on is not why it failed
        else:
            self.last_failure, self.failed_at = failure, self.last_backend
        if failure.kind is FailureKind.OWNER_GONE and self.orphaned < MAX_ORPHANED:
            self.orphaned += 1
        elif backend is not None:
            self.tried = (*self.tried, backend)

    def removed(self, failure: Failure) -> None:
        """Note that its backend was taken away, which is not one of its tries."""
        self.last_failure, self.failed_at = failure, self.last_backend

    def keep(self, tokens: int) -> None:
        """Count on so many tokens of the answer: they are to be read, not written; and its caller waits in the middle
        of it, so that it goes before those who have not begun."""
        job, more = self.job, tokens - self.kept
        if more:
            left = max(job.output_tokens - more, 1.0)
            self.job = Job(job.request, job.submitted_at, left, job.input_tokens + more)
            self.kept = tokens
        if tokens:
            self.key = (self.key[0], -inf, self.key[2])


@dataclass(slots=True)
class AttemptRow:
    """A call at a backend.

    Attributes:
        unread_tokens, cached_tokens: of its prompt: what the backend has to read, and what it should know.
        unread_ahead: input tokens that the backend had to read before this call's own.
        held_tokens: what the call commits the backend to.
        charges: what it was charged on the backend's request and token limits.
        expected_s: how long it was expected to take when it started; 0 if nobody asked.
        first_calls, first_held, first_read: the backend's sums when the first token came.
    """

    id: int
    request_id: str
    backend: "BackendRow"
    started_at: float
    unread_tokens: int
    cached_tokens: int
    unread_ahead: int
    held_tokens: float
    request_charge: Charge | None
    token_charge: Charge | None
    expected_s: float = 0.0
    tokens: int = 0
    first_at: float | None = None
    first_tokens: int = 0
    first_calls: float = 0.0
    first_held: float = 0.0
    first_read: int = 0

    @property
    def input_tokens(self) -> int:
        return self.unread_tokens + self.cached_tokens
