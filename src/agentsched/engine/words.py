"""Events and commands in a few words, for people who read a journal."""

from collections.abc import Mapping

from agentsched.engine.commands import Abort, Command, Forget, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Signalled,
    Submitted,
    Woke,
)
from agentsched.model import Request, Signals

Starts = Mapping[int, Start]
"""Attempts by their id: whose they are, and where."""


def shown(name: str) -> str:
    """Return a name as it is if it can be printed, else with escapes."""
    return name if name.isprintable() else repr(name)


def event_words(event: Event, starts: Starts) -> str:
    """Say what happened."""
    match event:
        case Submitted(request=request):
            return f"{shown(request.id)} submitted: {_asked(request)}"
        case Cancelled(request_id=request_id, reason=reason):
            return f"{shown(request_id)} cancelled: {reason}"
        case Progressed(attempt_id=attempt_id, output_tokens=tokens):
            said = f"{tokens} output tokens so far" if tokens else "connected"
            return f"{_attempt(attempt_id, starts)}: {said}"
        case Finished(attempt_id=attempt_id, usage=usage):
            return f"{_attempt(attempt_id, starts)} finished: {usage.output_tokens} output tokens"
        case Failed(attempt_id=attempt_id, failure=failure):
            return f"{_attempt(attempt_id, starts)} failed: {failure.kind}"
        case ModelsListed(backend=backend, models=models):
            return f"{shown(backend)} {_listed(models, answered=event.answered)}"
        case Signalled(backend=backend, signals=signals):
            return f"{shown(backend)} {_signalled(signals)}"
        case BackendJoined(backend=backend):
            return f"{shown(backend.name)} joins the fleet"
        case BackendLeft(backend=backend, drain=drain, successor=successor):
            follows = "" if successor is None else f", {shown(successor.name)} joins in its place"
            return f"{shown(backend)} {'drains' if drain else 'is removed'}{follows}"
        case QueryOpened(query=query):
            return f"query {shown(query.id)} opened: {shown(query.workflow)}"
        case QueryClosed(query_id=query_id):
            return f"query {shown(query_id)} closed"
        case Woke():
            return "woke"
        case Closed():
            return "closed"


def command_words(command: Command, starts: Starts) -> str:
    """Say what is to be done."""
    match command:
        case Start(attempt_id, request_id, backend):
            return f"start {shown(request_id)} at {shown(backend)} as attempt {attempt_id}"
        case Abort(attempt_id):
            return f"abort {_attempt(attempt_id, starts)}"
        case Resolve():
            where = f" at {shown(command.backend)}" if command.backend is not None else ""
            tries = f" after {command.attempts} attempts" if command.attempts > 1 else ""
            why = command.failure.kind if command.failure is not None else command.reason
            return f"{shown(command.request_id)} {command.outcome}{where}{tries}" + (
                f": {why}" if why else ""
            )
        case ListModels(backend):
            return f"ask {shown(backend)} for its models"
        case LookAt(backend):
            return f"ask {shown(backend)} for its load"
        case Forget(backend):
            return f"forget {shown(backend)}"
        case WakeAt(at):
            return f"wake at {at!r}"


def _asked(request: Request) -> str:
    names = (("model", request.model), ("query", request.query), ("step", request.step))
    known = [f"{what} {shown(name)}" for what, name in names if name is not None]
    if request.priority:
        known.append(f"priority {request.priority}")
    return ", ".join([f"{request.input_tokens} input tokens", *known])


def _attempt(attempt_id: int, starts: Starts) -> str:
    start = starts.get(attempt_id)
    return (
        f"attempt {attempt_id}" if start is None else f"{shown(start.request_id)} at {shown(start.backend)}"
    )


def _listed(models: tuple[str, ...] | None, *, answered: bool) -> str:
    if not answered:
        return "was not asked for its models after all"
    if models is None:
        return "could not list its models"
    return f"serves {', '.join(map(shown, models)) or 'nothing'}"


def _signalled(signals: Signals | None) -> str:
    if signals is None:
        return "did not tell its load"
    known = [
        f"{signals.running} running" if signals.running is not None else "",
        f"{signals.waiting} waiting" if signals.waiting is not None else "",
        f"memory {signals.kv_usage:.0%} used" if signals.kv_usage is not None else "",
        f"memory for {signals.kv_tokens} tokens" if signals.kv_tokens is not None else "",
    ]
    return "tells its load: " + (", ".join(filter(None, known)) or "nothing of it")
