"""Why an attempt failed, and what that says about trying elsewhere."""

from dataclasses import field
from enum import StrEnum

from agentsched.model.value import value

LEAST_KEPT = 16
"""A text of fewer tokens is sooner written anew than gone on with, where nobody has seen it."""


class FailureKind(StrEnum):
    """What went wrong at one backend."""

    REFUSED = "could not connect"
    BROKEN = "connection broke"
    TIMEOUT = "no answer in time"
    OVERLOADED = "overloaded"
    ERROR = "server error"
    PROTOCOL = "not an answer"
    DENIED = "access denied"
    UNKNOWN_MODEL = "model not served here"
    MISSING = "not found here"
    INVALID = "request refused as invalid"
    UNSENDABLE = "cannot be sent"
    OWNER_GONE = "the loop that ran it closed"
    REMOVED = "removed from the fleet"
    UNABLE = "cannot go on with an answer"


@value
class Failure:
    """One failed attempt.

    Attributes:
        status: HTTP status, where the backend answered one.
        retry_after_s: when it asked to be left alone until; None if it did not say.
        delivered: True once the caller has seen a part of the answer, so that another backend cannot start
            again without repeating it.
        kept_tokens: of the answer, from which another backend may go on; None if none can.
        detail: one sentence for people. It may quote the backend, so it is neither compared nor journaled.
    """

    kind: FailureKind
    status: int | None = None
    retry_after_s: float | None = None
    delivered: bool = False
    kept_tokens: int | None = None
    detail: str = field(default="", compare=False)

    @property
    def sent(self) -> bool:
        """Whether the backend received the call."""
        return self.kind not in (FailureKind.REFUSED, FailureKind.UNSENDABLE, FailureKind.UNABLE)

    @property
    def of_the_call(self) -> bool:
        """Whether the call itself is at fault, so that no backend could have answered it."""
        return self.kind in (FailureKind.INVALID, FailureKind.UNSENDABLE)

    @property
    def of_the_backend(self) -> bool:
        """Whether it tells against the backend: not what the call or the app brought about."""
        apart = (FailureKind.OWNER_GONE, FailureKind.MISSING, FailureKind.REMOVED, FailureKind.UNABLE)
        return not self.of_the_call and self.kind not in apart

    @property
    def elsewhere(self) -> bool:
        """Whether another backend may do better: not if the call is at fault, or half delivered and nothing kept."""
        return not self.of_the_call and (not self.delivered or self.kept_tokens is not None)
