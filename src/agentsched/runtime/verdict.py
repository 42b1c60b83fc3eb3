"""The engine's verdict on a request as the error its caller gets."""

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from agentsched.engine.commands import Resolve
from agentsched.errors import (
    AgentschedError,
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    CallLimitReached,
    Expired,
    FleetEmpty,
    QueueFull,
    SchedulerClosed,
    UnknownModel,
    UsageError,
)
from agentsched.model import Failure, FailureKind, Outcome, Reason

E = TypeVar("E", bound=AgentschedError)

NAMED = 50
"""Served models that an error names; a gateway may serve thousands."""

NO_BACKEND = (
    "the fleet is empty: every backend has been removed or drains; add one with scheduler.fleet.add(...)"
)

_BACKEND_ERRORS: dict[FailureKind, type[BackendError]] = {
    FailureKind.REFUSED: BackendUnavailable,
    FailureKind.BROKEN: BackendUnavailable,
    FailureKind.OWNER_GONE: BackendUnavailable,
    FailureKind.REMOVED: BackendUnavailable,
    FailureKind.TIMEOUT: BackendTimeout,
    FailureKind.OVERLOADED: BackendOverloaded,
    FailureKind.PROTOCOL: BackendProtocolError,
}


def error_of(
    verdict: Resolve,
    model: str | None,
    served: Callable[[], Sequence[str]],
    *,
    partial_text: str = "",
    running: bool = False,
    sent: bool = False,
) -> AgentschedError:
    """Return the error for a request that did not complete.

    Args:
        served: returns the models that are served, to be named where the one asked for is not.
        running: whether it ran when it ended.
        sent: whether some backend received it.
    """
    common: dict[str, Any] = {"request_id": verdict.request_id, "sent": sent}
    match verdict.outcome, verdict.reason:
        case (Outcome.FAILED, _) if (
            verdict.failure is not None and verdict.failure.kind is FailureKind.UNSENDABLE
        ):
            return for_sdk(UsageError)(f"the call cannot be sent: {verdict.failure.detail}", **common)
        case (Outcome.FAILED, _) if verdict.failure is not None:
            return _backend_error(verdict, verdict.failure, partial_text, sent=sent)
        case (Outcome.EXPIRED, _):
            where = f"while running at {verdict.backend}" if running else "while queued"
            return for_sdk(Expired)(f"the deadline passed {where}", **common)
        case (_, Reason.READER_STALLED):
            return for_sdk(Expired)("nobody went on reading the answer", **common)
        case (_, Reason.CALL_LIMIT):
            return for_sdk(CallLimitReached)(
                "the query has used up its max_calls; nothing was sent", **common
            )
        case (_, Reason.QUEUE_FULL):
            return for_sdk(QueueFull)("as many calls wait as max_queued allows; nothing was sent", **common)
        case (_, Reason.UNKNOWN_MODEL):
            return for_sdk(UnknownModel)(
                f"no backend serves {model!r}; served are: {_listed(served())}", **common
            )
        case (_, Reason.NO_BACKEND):
            return for_sdk(FleetEmpty)(NO_BACKEND, **common)
        case (_, Reason.CLOSED):
            return for_sdk(SchedulerClosed)("the scheduler is closed", **common)
        case _:
            why = verdict.reason or verdict.outcome
            return for_sdk(AgentschedError)(f"the call was ended: {why}", **common)


def _listed(served: Sequence[str]) -> str:
    more = f" and {len(served) - NAMED} more" if len(served) > NAMED else ""
    return (", ".join(served[:NAMED]) or "none that could be listed") + more


def _backend_error(verdict: Resolve, failure: Failure, partial_text: str, *, sent: bool) -> BackendError:
    kind = _BACKEND_ERRORS.get(failure.kind, BackendError)
    tried = f" (tried {verdict.attempts} times)" if verdict.attempts > 1 else ""
    error = for_sdk(kind)(
        f"{verdict.backend}: {failure.kind}{tried}: {failure.detail}",
        backend=verdict.backend or "",
        attempts=verdict.attempts,
        partial_text=partial_text,
        sent=sent,
        request_id=verdict.request_id,
    )
    if isinstance(error, BackendOverloaded):
        error.retry_after_s = failure.retry_after_s
    return error


def for_sdk(kind: type[E]) -> type[E]:
    """Return the class to raise inside an SDK's call: also an `openai.OpenAIError` where openai is loaded.

    Both SDK generations raise such an error once and unwrapped; any other exception of a transport is
    retried or wrapped by one of them.
    """
    return _with_openai(kind) if "openai" in sys.modules else kind


def made_for_sdk(error: E) -> E:
    """Return an error as it is to be raised inside an SDK's call."""
    kind = for_sdk(type(error))
    made = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    return made


@cache
def _with_openai(kind: type[Any]) -> Any:
    from openai import OpenAIError

    return type(kind.__name__, (kind, OpenAIError), {"__module__": kind.__module__, "__doc__": kind.__doc__})
