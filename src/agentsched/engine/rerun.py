"""A journal happens again: the same events on a new engine, beside what was decided when they were recorded."""

from collections.abc import Iterable, Iterator

from agentsched.engine.commands import Abort, Command, Start
from agentsched.engine.engine import Engine
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Signalled,
    Submitted,
)
from agentsched.engine.reader import Head, Recorded, read_journal
from agentsched.errors import UsageError
from agentsched.model import Backend
from agentsched.model.value import value
from agentsched.policy import Policy


@value
class Step:
    """One event and what it leads to now.

    Attributes:
        recorded: with the commands that it led to then.
    """

    recorded: Recorded
    commands: list[Command]


class Rerun:
    """Iterates over the steps of a journal, once.

    Args:
        head, entries: as `read_journal` gives them.

    Attributes:
        head: what the journal says of the engine that it was recorded from.
        engine: the new one, as it is after the latest step.
        starts: the live attempts by id, with those that the latest step ended.

    Raises:
        UsageError: if what is recorded could not have happened, on the way; the message names the line.
    """

    def __init__(self, head: Head, entries: Iterable[Recorded], policy: Policy) -> None:
        self.head, self._entries = head, entries
        self.engine = Engine(head.backends, policy=policy, max_queued=head.max_queued, profile=head.profile)
        self.starts: dict[int, Start] = {}
        self._named = {backend.name for backend in head.backends}

    def __iter__(self) -> Iterator[Step]:
        for recorded in self._entries:
            event = recorded.event
            self._check(recorded.line, event)
            try:
                commands = self.engine.handle(event)
            except UsageError as error:
                if isinstance(event, (BackendJoined, BackendLeft)):
                    raise UsageError(f"line {recorded.line}: {error}") from None
                commands = self.engine.commands  # as it was for the caller: the policy cannot rank the call
            except Exception as error:
                raise UsageError(
                    f"line {recorded.line}: the engine breaks on this event: {error!r}"
                ) from error
            joins = _joining(event)
            if joins is not None:
                self._named.add(joins.name)
            self.starts |= {start.attempt_id: start for start in commands if isinstance(start, Start)}
            yield Step(recorded=recorded, commands=commands)
            self._forget(event, commands)

    def _check(self, line: int, event: Event) -> None:
        """Refuse an event that no shell could have told of."""
        if isinstance(event, (ModelsListed, Signalled)) and event.backend not in self._named:
            raise UsageError(f"line {line}: nothing before it names a backend {event.backend!r}")
        if isinstance(event, Submitted) and event.request.id in self.engine.requests:
            raise UsageError(f"line {line}: the request {event.request.id!r} is live already")

    def _forget(self, event: Event, commands: Iterable[Command]) -> None:
        if isinstance(event, (Finished, Failed)):
            self.starts.pop(event.attempt_id, None)
        for command in commands:
            if isinstance(command, Abort):
                self.starts.pop(command.attempt_id, None)


def _joining(event: Event) -> Backend | None:
    match event:
        case BackendJoined(backend=backend):
            return backend
        case BackendLeft(successor=successor):
            return successor
        case _:
            return None


def replay(lines: Iterable[str], policy: Policy) -> Iterator[tuple[Event, list[Command]]]:
    """Yield each recorded event with the commands it leads to on a new engine.

    Raises:
        UsageError: if the lines are not a journal; the message names the line.
    """
    for step in Rerun(*read_journal(lines), policy):
        yield step.recorded.event, step.commands
