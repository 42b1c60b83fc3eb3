"""The input alphabet. Every event carries its time, in seconds of one monotonic clock.

Adding a kind is an architectural decision: it crosses every floor.
"""

from agentsched.model import Backend, Failure, Query, Reason, Request, Signals, Usage
from agentsched.model.value import record, value
from agentsched.predict import Learned


@record
class Submitted:
    """The app wants a call answered."""

    at: float
    request: Request


@value
class Cancelled:
    """Nobody waits for the call any more."""

    at: float
    request_id: str
    reason: Reason = Reason.CALLER_LEFT


@record
class Progressed:
    """An attempt has produced output.

    Attributes:
        output_tokens: tokens of this attempt so far, estimated where the wire does not count them.
        connect_s: seconds spent on opening a connection; 0 where a pooled one was used.
    """

    at: float
    attempt_id: int
    output_tokens: int
    connect_s: float = 0.0


@record
class Finished:
    """An attempt is complete: its room is free from here on.

    Attributes:
        usage: of this attempt alone: what came from earlier ones was read here.
        learn: False where times say nothing about the backend, as when a slow reader held the stream up.
        kept_tokens: of the answer, that earlier attempts had written.
    """

    at: float
    attempt_id: int
    usage: Usage
    learn: bool = True
    kept_tokens: int = 0


@value
class Failed:
    """An attempt has ended without an answer."""

    at: float
    attempt_id: int
    failure: Failure


@value
class ModelsListed:
    """A backend was asked what it serves.

    Attributes:
        models: None: it could not say, so any name may be tried there.
        answered: False if the question was cut short on our side: it counts as never asked.
    """

    at: float
    backend: str
    models: tuple[str, ...] | None = None
    answered: bool = True


@value
class Signalled:
    """A backend was asked for its load.

    Attributes:
        signals: None if it did not say.
    """

    at: float
    backend: str
    signals: Signals | None = None


@value
class BackendJoined:
    """A backend belongs to the fleet from now on; no other has its name or address.

    Attributes:
        learned: what an earlier run says of it.
    """

    at: float
    backend: Backend
    learned: Learned | None = None


@value
class BackendLeft:
    """A backend of the fleet takes no more calls.

    Attributes:
        drain: whether what runs there ends by itself. If not, it is stopped and waits for other backends.
        seen: attempts there of which the caller has seen a part, so that no other backend can begin anew, and from
            which none can go on: they fail unless the backend drains.
        successor: joins in the same moment; it may have the name and the address of one that does not drain.
        learned: what an earlier run says of the successor.
    """

    at: float
    backend: str
    drain: bool
    seen: tuple[int, ...] = ()
    successor: Backend | None = None
    learned: Learned | None = None


@value
class QueryOpened:
    """A run of a workflow begins."""

    at: float
    query: Query


@value
class QueryClosed:
    """A run of a workflow is over."""

    at: float
    query_id: str


@value
class Woke:
    """A timer asked for by `WakeAt` rang. One too many changes nothing."""

    at: float


@value
class Closed:
    """The scheduler closes: nothing is accepted any more, what runs is ended."""

    at: float


Event = (
    Submitted
    | Cancelled
    | Progressed
    | Finished
    | Failed
    | ModelsListed
    | Signalled
    | BackendJoined
    | BackendLeft
    | QueryOpened
    | QueryClosed
    | Woke
    | Closed
)
