"""Record what happened so that it can happen again: events as JSON lines, replay to equal commands.

The first line describes the engine (backends with their limits and models, bounds); each further line is one
event. No bodies, keys or URLs are in it. Opening, rotating and writing files is the shell's business.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any, cast

from agentsched.engine import events
from agentsched.engine.commands import Command
from agentsched.engine.engine import MAX_QUEUED, Engine
from agentsched.engine.events import Event
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Query, Reason, Request, Usage
from agentsched.policy import Policy

VERSION = 1

_EVENTS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        events.Submitted,
        events.Cancelled,
        events.Progressed,
        events.Finished,
        events.Failed,
        events.ModelsListed,
        events.QueryOpened,
        events.QueryClosed,
        events.Woke,
        events.Closed,
    )
}
_VALUES: dict[str, type[Any]] = {"request": Request, "usage": Usage, "failure": Failure, "query": Query}
_ENUMS: dict[str, type[StrEnum]] = {"kind": FailureKind, "reason": Reason}


class Journal:
    """Writes events as lines of text.

    Args:
        write: takes one line, newline included.
    """

    def __init__(
        self, write: Callable[[str], object], backends: Sequence[Backend], *, max_queued: int = MAX_QUEUED
    ) -> None:
        self._write = write
        header = {
            "agentsched": VERSION,
            "max_queued": max_queued,
            "backends": [_backend(spec) for spec in backends],
        }
        write(json.dumps(header) + "\n")

    def __call__(self, event: Event) -> None:
        """Record one event."""
        self._write(encode(event) + "\n")


def encode(event: Event) -> str:
    """Return an event as one line of JSON; fields that hold their default are left out."""
    return json.dumps({"event": type(event).__name__, **_plain(event)}, separators=(",", ":"))


def decode(line: str) -> Event:
    """Return the event of one line.

    Raises:
        UsageError: if the line is not one.
    """
    try:
        found = json.loads(line)
        kind = _EVENTS[found.pop("event")]
        return cast("Event", kind(**{name: _value(name, value) for name, value in found.items()}))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"not a journal event: {line.strip()[:200]!r} ({error!r})") from None


def replay(lines: Iterable[str], policy: Policy) -> Iterator[tuple[Event, list[Command]]]:
    """Yield each recorded event with the commands it leads to on a new engine.

    Raises:
        UsageError: if the lines are not a journal; the message names the line.
    """
    numbered = enumerate(lines, start=1)
    first = next(numbered, (1, ""))[1]
    try:
        header = json.loads(first)
        backends = [_read_backend(spec) for spec in header["backends"]]
        engine = Engine(backends, policy=policy, max_queued=header["max_queued"])
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"line 1 is not the head of a journal: {error!r}") from None
    for number, line in numbered:
        try:
            event = decode(line)
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None
        yield event, engine.handle(event)


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if item != field.default:
            plain[field.name] = _plain(item) if field.name in _VALUES else item
    return plain


def _value(name: str, value: Any) -> Any:
    if name in _VALUES:
        inner = cast("Mapping[str, Any]", value)
        return _VALUES[name](**{key: _value(key, item) for key, item in inner.items()})
    if name in _ENUMS:
        return _ENUMS[name](value)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _backend(spec: Backend) -> dict[str, Any]:
    return {
        "name": spec.name,
        "models": None if spec.models is None else list(spec.models),
        "max_concurrency": spec.max_concurrency,
        "rpm": spec.rpm,
        "tpm": spec.tpm,
    }


def _read_backend(found: Mapping[str, Any]) -> Backend:
    position = "".join(c if c.isalnum() else "-" for c in str(found["name"]))
    return Backend(f"http://{position}.invalid", **found)
