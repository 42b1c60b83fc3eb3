"""What a recorded journal says of the calls that were made: when, for which query, how long they were."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from agentsched.engine.commands import Abort, Command, Resolve
from agentsched.engine.events import Event, Failed, Finished, Progressed, QueryClosed, QueryOpened, Submitted
from agentsched.engine.reader import read_journal
from agentsched.errors import UsageError
from agentsched.model import Outcome, Query, Request, Usage
from agentsched.sim.gathering import MAX_CALLS, MAX_ROWS
from agentsched.sim.observed import ObservedCall, ObservedQuery
from agentsched.sim.plan import Node
from agentsched.sim.tracerow import MAX_TOKENS, STEP


@dataclass(slots=True)
class LeftOut:
    """What of a journal cannot be played.

    Attributes:
        calls: line and reason of each that was not answered, or whose output nobody counted.
        dropped: how many queries have no other calls.
        shortened: how many have.
        torn: the last line, if it was not written to its end.
    """

    calls: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    dropped: int = 0
    shortened: int = 0
    torn: int | None = None

    def tear(self, line: int) -> None:
        """Note that a line was not written to its end."""
        self.torn = line


def journal_queries(lines: Iterable[str], left_out: LeftOut) -> list[ObservedQuery]:
    """Return the queries of a journal with the calls that were answered, in order of arrival.

    A call outside of queries is a query of its own. Lengths are the backend's counts; where it gave none, the
    estimate that the call was scheduled by, and the tokens that were last reported. They are played as they are, also
    beyond the caller's cap: a call may have had several answers.

    Args:
        left_out: takes what cannot be played.

    Raises:
        UsageError: if the lines are no journal, or one without commands.
    """
    head, entries = read_journal(lines, on_torn=left_out.tear)
    if not head.has_commands:
        raise UsageError("line 1: a journal of version 1 does not say which answer belongs to which call")
    reading = _Reading(left_out)
    for entry in entries:
        reading.take(entry.line, entry.event, entry.commands or ())
    queries = reading.end()
    if not queries:
        raise UsageError("line 1: no call in this journal was answered with a count of its tokens")
    return queries


@dataclass(slots=True)
class _Made:
    """A call, from its submission on; `call` once it was answered and counted."""

    line: int
    at: float
    request: Request
    query: ObservedQuery
    call: ObservedCall | None = None


class _Reading:
    def __init__(self, left_out: LeftOut) -> None:
        self._left_out = left_out
        self._now = -inf
        self._open: dict[str, ObservedQuery] = {}
        self._queries: list[ObservedQuery] = []
        self._made: list[_Made] = []
        self._live: dict[str, _Made] = {}
        self._tokens: dict[int, int] = {}

    def take(self, line: int, event: Event, commands: Iterable[Command]) -> None:
        """Read one event with what was decided upon it."""
        self._now = max(self._now, event.at)
        match event:
            case Submitted(request=request):
                self._submitted(line, request)
            case QueryOpened(query=query):
                self._queries.append(_opened(self._now, query))
                self._open[query.id] = self._queries[-1]
            case QueryClosed(query_id=query_id):
                self._open.pop(query_id, None)
            case Progressed(attempt_id=attempt_id, output_tokens=tokens):
                self._tokens[attempt_id] = max(tokens, self._tokens.get(attempt_id, 0))
            case _:
                pass
        for command in commands:
            if isinstance(command, Resolve):
                self._resolved(command, event)
            elif isinstance(command, Abort):
                self._tokens.pop(command.attempt_id, None)
        if isinstance(event, (Finished, Failed)):
            self._tokens.pop(event.attempt_id, None)

    def end(self) -> list[ObservedQuery]:
        """Return the queries that have calls."""
        for made in self._live.values():
            self._left_out.calls.append((made.line, "not answered when the journal ended"))
        lacking: set[int] = set()
        for made in self._made:
            if made.call is None:
                lacking.add(id(made.query))
            else:
                made.query.calls.append(made.call)
                if len(made.query.calls) > MAX_CALLS:
                    raise UsageError(f"line {made.line}: the query has more than {MAX_CALLS} calls")
        played = [query for query in self._queries if query.calls]
        self._left_out.dropped = len(self._queries) - len(played)
        self._left_out.shortened = sum(id(query) in lacking for query in played)
        return played

    def _submitted(self, line: int, request: Request) -> None:
        query = None if request.query is None else self._open.get(request.query)
        if query is None:
            query = _alone(self._now, request)
            self._queries.append(query)
        made = _Made(line, self._now, request, query)
        self._made.append(made)
        self._live[request.id] = made
        if len(self._made) > MAX_ROWS:
            raise UsageError(f"line {line}: the journal has more than {MAX_ROWS} calls")

    def _resolved(self, end: Resolve, event: Event) -> None:
        made = self._live.pop(end.request_id, None)
        if made is None:
            return
        if end.outcome is not Outcome.COMPLETED or not isinstance(event, Finished):
            self._left_out.calls.append((made.line, str(end.outcome)))
            return
        node = _node(made.request, event.usage, self._tokens.get(event.attempt_id))
        if node is None:
            self._left_out.calls.append((made.line, "its output was not counted"))
        else:
            made.call = ObservedCall(at=made.at, ended_at=self._now, node=node)


def _opened(now: float, query: Query) -> ObservedQuery:
    return ObservedQuery(
        arrived_at=now,
        workflow=query.workflow,
        tenant=query.tenant,
        priority=query.priority,
        slo_s=query.slo_s,
        timeout_s=None if query.deadline is None else max(query.deadline - now, 0.0),
    )


def _alone(now: float, request: Request) -> ObservedQuery:
    """Return the query of a call that belongs to none."""
    query = ObservedQuery(arrived_at=now, tenant=request.tenant, priority=request.priority)
    if request.workflow is not None:
        query.workflow = request.workflow
    return query


def _node(request: Request, usage: Usage, reported: int | None) -> Node | None:
    """Return what the call asked for; None if its output was not counted, or in numbers that make no sense."""
    output = usage.output_tokens if usage.output_tokens is not None else reported or None
    counted = usage.input_tokens if usage.input_tokens is not None else request.input_tokens
    if output is None or not 0 <= output <= MAX_TOKENS or not 0 <= counted <= MAX_TOKENS:
        return None
    return Node(
        step=request.step if request.step is not None else STEP,
        model=request.model,
        input_tokens=max(counted, 1),
        output_tokens=output,
        estimated_tokens=request.input_tokens,
        max_tokens=request.max_tokens,
    )
