"""The errors a user can meet: one tree that says whose fault it was and whether anything was sent.

::

    AgentschedError              also a RuntimeError, which retry decorators of agent frameworks leave alone
    ├── UsageError               the caller's fault; also a ValueError; nothing was sent
    │   ├── UnknownOption        also a TypeError; the message lists the options
    │   └── UnknownModel         no backend serves the model; the message lists what is served
    ├── Rejected                 turned away at the door; nothing was sent, safe to try later
    │   ├── QueueFull
    │   ├── CallLimitReached     the query's `max_calls` are used up
    │   ├── FleetEmpty           all backends have been removed, or drain
    │   └── SchedulerClosed      used after, or ended by, `aclose()`
    ├── Expired                  the deadline passed first; `sent` says whether a backend had it
    ├── BackendError             the far side's fault; carries backend, attempts and partial text
    │   ├── BackendUnavailable   could not connect, the connection broke, or it was removed from the fleet
    │   ├── BackendOverloaded    answered 429 or 503; `retry_after_s` if it said so
    │   ├── BackendTimeout       did not answer within the caller's HTTP timeout
    │   └── BackendProtocolError answered something that is not an answer, or stopped half-way
    └── InvariantBroken          our fault; prints the story of the request; please report it
"""

from typing import Literal

Fault = Literal["caller", "scheduler", "backend"]


class AgentschedError(RuntimeError):
    """Base of every error raised here; never raised itself.

    Attributes:
        fault: who could have avoided it.
        sent: True if some backend received the call, so that work may have been done.
        request_id: the id to hand to `Scheduler.explain`, if the call got one.
    """

    fault: Fault = "scheduler"

    def __init__(self, message: str, *, sent: bool = False, request_id: str | None = None) -> None:
        super().__init__(message)
        self.sent = sent
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        """Travel to another process: as the class drawn above, also where it was mixed with an SDK's own."""
        kind = globals().get(type(self).__name__, type(self))
        return _restored, (kind, self.args, self.__dict__)


def _restored(
    kind: type[AgentschedError], args: tuple[object, ...], facts: dict[str, object]
) -> AgentschedError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class UsageError(AgentschedError, ValueError):
    """The call or the configuration is wrong; the message says what would be right."""

    fault: Fault = "caller"


class UnknownOption(UsageError, TypeError):
    """An option that does not exist here."""


class UnknownModel(UsageError):
    """No backend serves the model that was asked for."""


class Rejected(AgentschedError):
    """Turned away before anything was sent."""


class QueueFull(Rejected):
    """As many calls wait as the scheduler was told to hold."""


class CallLimitReached(Rejected):
    """The query has used up its `max_calls`."""

    fault: Fault = "caller"


class FleetEmpty(Rejected):
    """There is no backend: all have been removed, or drain. A call made once `fleet.add` has brought one is served."""

    fault: Fault = "caller"


class SchedulerClosed(Rejected):
    """The scheduler was closed; `sent` is True for a call that was running then."""

    fault: Fault = "caller"


class Expired(AgentschedError):
    """The deadline passed before the answer was complete."""

    fault: Fault = "caller"


class BackendError(AgentschedError):
    """A backend failed, and no other one could take over.

    Attributes:
        backend: name of the backend that failed last.
        attempts: how many backends were tried.
        partial_text: what had been generated when it broke; empty if nothing had.
    """

    fault: Fault = "backend"

    def __init__(
        self,
        message: str,
        *,
        backend: str,
        attempts: int = 1,
        partial_text: str = "",
        sent: bool = True,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, sent=sent, request_id=request_id)
        self.backend = backend
        self.attempts = attempts
        self.partial_text = partial_text


class BackendUnavailable(BackendError):
    """Could not connect, the connection broke, or the backend was removed from the fleet meanwhile."""


class BackendOverloaded(BackendError):
    """Answered "too many requests" or "queue full".

    Attributes:
        retry_after_s: seconds after which the backend said to come back; None if it did not say.
    """

    retry_after_s: float | None = None


class BackendTimeout(BackendError):
    """Did not answer within the HTTP timeout of the caller's client."""


class BackendProtocolError(BackendError):
    """Answered something that is not an answer, or stopped before its end."""


class InvariantBroken(AgentschedError):
    """The engine's state contradicts itself: a defect of agentsched."""
