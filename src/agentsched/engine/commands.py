"""The output alphabet: what the shell around the engine has to do, in this order."""

from agentsched.model import Failure, Outcome, Reason
from agentsched.model.value import record


@record
class Start:
    """Send the call to the backend; report as `attempt_id`."""

    attempt_id: int
    request_id: str
    backend: str


@record
class Abort:
    """Stop the attempt at once and close its connection. Its room is free already; nothing is reported."""

    attempt_id: int


@record
class Resolve:
    """The request has ended; nothing more will happen to it.

    Attributes:
        failure: of the last attempt, if the outcome is FAILED.
        backend: where the last attempt ran, if there was one.
        attempts: how many were started.
        reason: why, if the outcome is REJECTED or CANCELLED.
    """

    request_id: str
    outcome: Outcome
    failure: Failure | None = None
    backend: str | None = None
    attempts: int = 0
    reason: Reason | None = None


@record
class ListModels:
    """Ask the backend what it serves; report `ModelsListed`, whatever comes of it, within 2 s."""

    backend: str


@record
class LookAt:
    """Ask the backend for its load; report `Signalled`, whatever comes of it, within 2 s."""

    backend: str


@record
class Forget:
    """The backend is gone, and nothing runs there: its connections may be closed."""

    backend: str


@record
class WakeAt:
    """Report `Woke` at that time. A later one replaces none: earlier ones may be dropped."""

    at: float


Command = Start | Abort | Resolve | ListModels | LookAt | Forget | WakeAt
