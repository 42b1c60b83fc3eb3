"""Record what happened so that it can happen again: events and decisions as JSON lines.

The first line describes the engine (backends with their limits and models, bounds, policy). Each further line is an
event, or the commands that the event before it led to; an event without such a line led to none. No bodies, keys,
URLs or words of a backend are in it. Opening, rotating and writing files is the business of the shell.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from math import isnan
from types import MappingProxyType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from agentsched.engine.commands import Command
from agentsched.engine.engine import MAX_QUEUED
from agentsched.engine.events import Event
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Outcome, Query, Reason, Request, Usage
from agentsched.model.value import value
from agentsched.policy import Policy

VERSION = 2
READABLE = (1, VERSION)
"""Journals of version 1 hold neither commands nor the policy."""

_EVENTS: Mapping[str, type[Any]] = MappingProxyType({kind.__name__: kind for kind in get_args(Event)})
_COMMANDS: Mapping[str, type[Any]] = MappingProxyType({kind.__name__: kind for kind in get_args(Command)})
_VALUES: Mapping[str, type[Any]] = MappingProxyType(
    {"request": Request, "usage": Usage, "failure": Failure, "query": Query}
)
_ENUMS: Mapping[str, type[StrEnum]] = MappingProxyType(
    {"kind": FailureKind, "reason": Reason, "outcome": Outcome}
)
_KINDS = (*_EVENTS.values(), *_COMMANDS.values(), *_VALUES.values())
_FIELDS: Mapping[type[Any], Mapping[str, Any]] = MappingProxyType(
    {kind: get_type_hints(kind) for kind in _KINDS}
)
_WRITTEN: Mapping[type[Any], tuple[tuple[str, Any], ...]] = MappingProxyType(
    {kind: tuple((field.name, field.default) for field in fields(kind) if field.compare) for kind in _KINDS}
)
"""Names and defaults of the fields that are recorded."""

_as_json = json.JSONEncoder(separators=(",", ":")).encode


@value
class Head:
    """What the first line says.

    Attributes:
        policy: what each part of the policy is called, by field; None in a journal of version 1.
    """

    version: int
    backends: Sequence[Backend]
    max_queued: int
    policy: Mapping[str, str] | None

    @property
    def has_commands(self) -> bool:
        """Whether decisions were recorded."""
        return self.version > 1


@value
class Recorded:
    """An event with the commands that were recorded for it.

    Attributes:
        line: number of the event's line, counted from 1.
        commands: None where none can be known: in a journal of version 1, and where the journal ends.
    """

    line: int
    event: Event
    commands: list[Command] | None


class Journal:
    """Writes events, and what was decided upon them, as lines of text.

    Args:
        write: takes one line, newline included.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        backends: Sequence[Backend],
        *,
        policy: Policy,
        max_queued: int = MAX_QUEUED,
    ) -> None:
        self._write = write
        header = {
            "agentsched": VERSION,
            "policy": named(policy),
            "max_queued": max_queued,
            "backends": [_backend(spec) for spec in backends],
        }
        write(json.dumps(header) + "\n")

    def __call__(self, event: Event) -> None:
        """Record one event, before it is handled: one that the engine breaks on is in the journal too."""
        self._write(encode(event) + "\n")

    def decided(self, commands: Sequence[Command]) -> None:
        """Record what the event led to; whoever calls `handle` says so, after it, whatever came of it."""
        if commands:
            self._write(encode_commands(commands) + "\n")


def named(policy: Policy) -> dict[str, str]:
    """Return what each part of a policy is called, by field: the qualified names of functions and classes."""
    return {field.name: _called(getattr(policy, field.name)) for field in fields(policy)}


def encode(event: Event) -> str:
    """Return an event as one line of JSON; fields that hold their default are left out."""
    return _as_json({"event": type(event).__name__, **_plain(event)})


def encode_commands(commands: Sequence[Command]) -> str:
    """Return the commands of one event as one line of JSON."""
    return _as_json(
        {"commands": [{"command": type(command).__name__, **_plain(command)} for command in commands]}
    )


def decode(line: str) -> Event:
    """Return the event of one line.

    Raises:
        UsageError: if the line is not one.
    """
    found = _decoded(line)
    if isinstance(found, list):
        raise UsageError(f"not an event but commands: {line.strip()[:200]!r}")
    return found


def read_journal(lines: Iterable[str]) -> tuple[Head, Iterator[Recorded]]:
    """Return the head of a journal and its events, which are read as they are asked for.

    Raises:
        UsageError: if the lines are not a journal, now or on the way; the message names the line.
    """
    numbered = enumerate(lines, start=1)
    head = _read_head(next(numbered, (1, ""))[1])
    return head, _entries(numbered, head)


def _read_head(line: str) -> Head:
    try:
        found = json.loads(line)
        version = _checked(found["agentsched"], int)
        if version not in READABLE:
            raise ValueError(f"version {version!r}, this reads {' and '.join(map(str, READABLE))}")
        policy = None if version == 1 else dict(_checked(found["policy"], dict))
        return Head(
            version=version,
            backends=[_read_backend(index, spec) for index, spec in enumerate(found["backends"])],
            max_queued=_checked(found["max_queued"], int),
            policy=policy and {name: _checked(part, str) for name, part in policy.items()},
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise UsageError(f"line 1 is not the head of a journal: {error!r}") from None


def _entries(numbered: Iterator[tuple[int, str]], head: Head) -> Iterator[Recorded]:
    last: tuple[int, Event] | None = None  # an event whose commands may be on the next line
    for number, line in numbered:
        try:
            found = _decoded(line)
            if isinstance(found, list) and (last is None or not head.has_commands):
                raise UsageError("commands without an event before them")
        except UsageError as error:
            if last is not None:
                yield Recorded(line=last[0], event=last[1], commands=None)
            raise UsageError(f"line {number}: {error}") from None
        if isinstance(found, list):
            assert last is not None
            yield Recorded(line=last[0], event=last[1], commands=found)
            last = None
        else:
            if last is not None:
                yield Recorded(line=last[0], event=last[1], commands=[] if head.has_commands else None)
            last = number, found
    if last is not None:
        yield Recorded(line=last[0], event=last[1], commands=None)


def _decoded(line: str) -> Event | list[Command]:
    try:
        found = json.loads(line)
        if "commands" in found:
            (commands,) = found.values()
            return [cast("Command", _made(_COMMANDS[one.pop("command")], one)) for one in commands]
        return cast("Event", _made(_EVENTS[found.pop("event")], found))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise UsageError(f"not a journal event: {line.strip()[:200]!r} ({error!r:.300})") from None


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, default in _WRITTEN[type(value)]:
        item = getattr(value, name)
        if item != default:
            plain[name] = _plain(item) if type(item) in _WRITTEN else item
    return plain


def _called(part: object) -> str:
    name = part if hasattr(part, "__qualname__") else type(part)
    return f"{name.__module__}.{name.__qualname__}"  # type: ignore[attr-defined]


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
