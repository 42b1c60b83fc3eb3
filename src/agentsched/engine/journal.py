"""Record what happened so that it can happen again: events as JSON lines, replay to equal commands.

The first line describes the engine (backends with their limits and models, bounds); each further line is one
event. No bodies, keys, URLs or words of a backend are in it. Opening, rotating and writing files is the
business of the shell.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from math import isnan
from types import MappingProxyType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from agentsched.engine.commands import Command
from agentsched.engine.engine import MAX_QUEUED, Engine
from agentsched.engine.events import Event, ModelsListed, Submitted
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Query, Reason, Request, Usage
from agentsched.policy import Policy

VERSION = 1

_EVENTS: Mapping[str, type[Any]] = MappingProxyType({kind.__name__: kind for kind in get_args(Event)})
_VALUES: Mapping[str, type[Any]] = MappingProxyType(
    {"request": Request, "usage": Usage, "failure": Failure, "query": Query}
)
_ENUMS: Mapping[str, type[StrEnum]] = MappingProxyType({"kind": FailureKind, "reason": Reason})
_FIELDS: Mapping[type[Any], Mapping[str, Any]] = MappingProxyType(
    {kind: get_type_hints(kind) for kind in (*_EVENTS.values(), *_VALUES.values())}
)


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
        return cast("Event", _made(_EVENTS[found.pop("event")], found))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
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
        if header["agentsched"] != VERSION:
            raise ValueError(f"version {header['agentsched']!r}, this reads {VERSION}")
        backends = [_read_backend(index, spec) for index, spec in enumerate(header["backends"])]
        engine = Engine(backends, policy=policy, max_queued=_checked(header["max_queued"], int))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(f"line 1 is not the head of a journal: {error!r}") from None
    for number, line in numbered:
        try:
            event = decode(line)
        except UsageError as error:
            raise UsageError(f"line {number}: {error}") from None
        if isinstance(event, ModelsListed) and event.backend not in engine.backends:
            raise UsageError(f"line {number}: the head names no backend {event.backend!r}")
        if isinstance(event, Submitted) and event.request.id in engine.requests:
            raise UsageError(f"line {number}: the request {event.request.id!r} is live already")
        try:
            commands = engine.handle(event)
        except UsageError:  # as it was for the one who made the call: the policy cannot rank it
            commands = []
        yield event, commands


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if field.compare and item != field.default:
            plain[field.name] = _plain(item) if is_dataclass(item) else item
    return plain


def _made(kind: type[Any], found: Mapping[str, Any]) -> Any:
    made = kind(**{name: _value(name, item) for name, item in found.items()})
    for name, hint in _FIELDS[kind].items():
        _checked(getattr(made, name), hint)
    return made


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return _made(_VALUES[name], cast("dict[str, Any]", value))
    if name in _ENUMS:
        return _ENUMS[name](value)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _checked(value: Any, hint: Any) -> Any:
    if not any(_fits(value, one) for one in (get_args(hint) if get_origin(hint) is UnionType else (hint,))):
        raise TypeError(f"{value!r} is not of type {hint}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and not isnan(value)
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(
            isinstance(item, str) for item in cast("tuple[Any, ...]", value)
        )
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _backend(spec: Backend) -> dict[str, Any]:
    return {
        "name": spec.name,
        "models": None if spec.models is None else list(spec.models),
        "max_concurrency": spec.max_concurrency,
        "rpm": spec.rpm,
        "tpm": spec.tpm,
    }


def _read_backend(index: int, found: Mapping[str, Any]) -> Backend:
    _checked(found["name"], str)
    return Backend(f"http://backend-{index}.invalid", **found)
