"""How long an attempt may take."""

from dataclasses import dataclass
from typing import Never

from agentsched.errors import UsageError
from agentsched.model.options import refuse, seconds


@dataclass(frozen=True, slots=True, init=False)
class Limits:
    """Bounds on one attempt at one backend, in seconds; none of them counts time in the queue.

    An attempt that exceeds one is given up: it is tried elsewhere if the caller has seen nothing of it, else the
    call ends with `BackendTimeout`, which holds the partial text.

    Args:
        first_token_s: from sending to the first piece of the answer. It holds for answers that are streamed.
        idle_s: between two events of a stream, from the first piece on. Comments that only keep a connection
            alive do not count; time in which the reader does not keep up does not either.
        total_s: from sending to the end, also for answers that come whole.

    Raises:
        UsageError: for a bound that is not positive and finite, or an unknown option.
    """

    first_token_s: float | None
    idle_s: float | None
    total_s: float | None

    def __init__(
        self,
        *,
        first_token_s: float | None = None,
        idle_s: float | None = None,
        total_s: float | None = None,
        **unknown: Never,
    ) -> None:
        refuse(unknown, Limits, "Limits")
        put = object.__setattr__
        put(self, "first_token_s", seconds(first_token_s, "Limits: first_token_s"))
        put(self, "idle_s", seconds(idle_s, "Limits: idle_s"))
        put(self, "total_s", seconds(total_s, "Limits: total_s"))

    def __bool__(self) -> bool:
        return not (self.first_token_s is self.idle_s is self.total_s is None)


def checked_limits(limits: object, name: str) -> Limits | None:
    """Return limits as they were given.

    Raises:
        UsageError: if they are something else.
    """
    if limits is None or isinstance(limits, Limits):
        return limits
    raise UsageError(
        f"{name}: limits must be Limits(first_token_s=..., idle_s=..., total_s=...); got {limits!r}"
    )
