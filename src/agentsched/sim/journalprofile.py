"""What a recorded journal teaches: rows of backends learn what they learned then, and calls are counted by step.

Decisions are taken as they were recorded, so that it does not matter which policy took them.
"""

from collections.abc import Iterable
from math import inf

from agentsched.engine.backends import BackendRow, backend_row, fleet_rows
from agentsched.engine.commands import Abort, Command, Forget, Resolve, Start
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Event,
    Failed,
    Finished,
    Progressed,
    Signalled,
    Submitted,
)
from agentsched.engine.reader import Head, Recorded, Torn, read_journal
from agentsched.engine.rows import AttemptRow, RequestRow
from agentsched.errors import UsageError
from agentsched.predict import Learned, Measured, Past, Profile, Steps


def journal_profile(lines: Iterable[str], *, on_torn: Torn | None = None) -> Profile:
    """Return what the calls of a journal teach, backends by their names.

    Args:
        on_torn: see `read_journal`.

    Raises:
        UsageError: if the lines are no journal, or one without commands, or if no call in it was answered.
    """
    head, entries = read_journal(lines, on_torn=on_torn)
    if not head.has_commands:
        raise UsageError("line 1: a journal of version 1 does not say which answer belongs to which call")
    following = Following(head)
    for entry in entries:
        following.take(entry)
    profile = following.profile()
    if not profile.steps:
        raise UsageError("line 1: no call in this journal was answered")
    return profile


class Following:
    """Rows of backends that are led by what was decided, rather than by a policy.

    Attributes:
        rows: those that are in the fleet, by name.
        past: of lengths.
    """

    def __init__(self, head: Head) -> None:
        self.rows = fleet_rows(head.backends, head.profile)
        self.past = Past(head.profile)
        self._ever = dict(self.rows)
        self._steps = Steps()
        self._requests: dict[str, RequestRow] = {}
        self._attempts: dict[int, AttemptRow] = {}
        self._calls: dict[str, int] = {}
        self._joined: BackendRow | None = None
        self._first_at, self._now = inf, -inf

    def take(self, entry: Recorded) -> None:
        """Take an event and what was decided upon it.

        Raises:
            UsageError: for what could not have happened; the message names the line.
        """
        event, self._joined = entry.event, None
        self._first_at, self._now = min(self._first_at, event.at), max(self._now, event.at)
        try:
            self._happened(event)
            for command in entry.commands or ():
                self._decided(command)
        except KeyError as error:
            raise UsageError(f"line {entry.line}: nothing before it names {error!s:.80}") from None

    def profile(self) -> Profile:
        """Return what was learned."""
        seconds = max(self._now - self._first_at, 0.0)
        backends = [
            Measured(
                base_url=None,
                name=name,
                learned=row.learned,
                source="journal",
                calls=self._calls.get(name, 0),
                seconds=seconds,
            )
            for name, row in self._ever.items()
            if row.learned != Learned()
        ]
        return Profile(
            backends=tuple(backends), prompts=self.past.prompts.learned(), steps=self._steps.rows()
        )

    # -- what happened --------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        match event:
            case Submitted(request=request):
                job = self.past.job(request, self._now)
                self._requests[request.id] = RequestRow(request, job, (0, 0.0, 0))
            case Progressed():
                self._progressed(event)
            case Finished():
                self._finished(event)
            case Failed(attempt_id=attempt_id, failure=failure):
                attempt = self._attempts.get(attempt_id)
                if attempt is not None:
                    if not failure.sent:
                        attempt.backend.refund(attempt)
                    self._release(attempt)
            case Signalled(backend=name, signals=signals) if name in self.rows:
                self.rows[name].hear(self._now, signals)
            case BackendJoined(backend=backend, learned=learned):
                self._join(backend_row(backend, len(self._ever), learned))
            case BackendLeft(successor=successor, learned=learned) if successor is not None:
                self._join(backend_row(successor, len(self._ever), learned))
            case _:
                pass

    def _progressed(self, event: Progressed) -> None:
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None:
            return
        attempt.backend.progressed(attempt, event.output_tokens)
        if event.output_tokens and attempt.first_at is None:
            attempt.backend.first_token(self._now, attempt, event.output_tokens, event.connect_s)

    def _finished(self, event: Finished) -> None:
        attempt = self._attempts.get(event.attempt_id)
        if attempt is None:
            return
        row, backend, usage = self._requests[attempt.request_id], attempt.backend, event.usage
        written = backend.finished(self._now, attempt, usage, learn=event.learn)
        self.past.learn(row.request, usage.input_tokens, written)
        self._release(attempt)
        request = row.request
        read = usage.input_tokens if usage.input_tokens is not None else attempt.input_tokens
        self._steps.observe(
            (request.model, request.workflow, request.step),
            read=read,
            written=written if request.max_tokens is None else min(written, request.max_tokens),
            service_s=self._now - attempt.started_at,
        )
        self._calls[backend.name] = self._calls.get(backend.name, 0) + 1

    # -- what was decided -----------------------------------------------------------------------------

    def _decided(self, command: Command) -> None:
        match command:
            case Start(attempt_id=attempt_id, request_id=request_id, backend=name):
                row, backend = self._requests[request_id], self.rows[name]
                cached, tokens = backend.needs(row)
                self._attempts[attempt_id] = backend.admit(self._now, attempt_id, row, cached, tokens)
            case Abort(attempt_id=attempt_id):
                attempt = self._attempts.get(attempt_id)
                if attempt is not None:
                    self._release(attempt)
            case Resolve(request_id=request_id):
                self._requests.pop(request_id, None)
            case Forget(backend=name):
                if (
                    self.rows.get(name) is not self._joined
                ):  # else it has taken the name of the one that is gone
                    self.rows.pop(name, None)
            case _:
                pass

    def _join(self, row: BackendRow) -> None:
        self.rows[row.name] = self._ever[row.name] = self._joined = row
        self._calls.pop(row.name, None)

    def _release(self, attempt: AttemptRow) -> None:
        attempt.backend.release(self._now, attempt)
        del self._attempts[attempt.id]
