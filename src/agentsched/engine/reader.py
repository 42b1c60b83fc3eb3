"""A journal back to its head and its events; whatever is wrong is said in words, with the line."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf, isnan
from types import MappingProxyType, NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from agentsched.engine.backends import fleet_rows
from agentsched.engine.commands import Command
from agentsched.engine.events import Event
from agentsched.engine.journal import VERSION
from agentsched.engine.jsonline import is_cut_off, read_line
from agentsched.engine.profilejson import learned_of, prompts_of, step_of
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, Query, Request, Signals, Usage
from agentsched.model.value import value
from agentsched.predict import Learned, Measured, Profile
from agentsched.predict.steps import MOST_STEPS, StepRow

READABLE = (1, 2, VERSION)
"""Journals of version 1 hold neither commands nor the policy."""

MAX_WHOLE = 2**53
MAX_AT_S = 1e12
BACKWARDS_S = 1.0
"""How far time may go back from one event to the next; a clock that is not quite monotonic is none of ours."""

_EVENTS: Mapping[str, type[Any]] = MappingProxyType({kind.__name__: kind for kind in get_args(Event)})
_COMMANDS: Mapping[str, type[Any]] = MappingProxyType({kind.__name__: kind for kind in get_args(Command)})
_KINDS = (*_EVENTS.values(), *_COMMANDS.values(), Request, Usage, Failure, Query, Signals)
_FIELDS: Mapping[type[Any], Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        kind: {
            name: get_args(hint) if get_origin(hint) is UnionType else (hint,)
            for name, hint in get_type_hints(kind).items()
        }
        for kind in _KINDS
    }
)
"""Per kind, what each of its fields may be."""
_NEEDED: Mapping[type[Any], tuple[str, ...]] = MappingProxyType(
    {
        kind: tuple(field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING)
        for kind in _KINDS
    }
)
_WORDS: Mapping[Any, str] = MappingProxyType(
    {
        NoneType: "null",
        str: "text",
        bool: "true or false",
        int: f"a whole number within ±{MAX_WHOLE}",
        float: "a number",
        list: "a list",
        dict: "an object",
        tuple[str, ...]: "a list of names",
        tuple[int, ...]: "a list of whole numbers",
    }
)
_LISTS: Mapping[Any, type[Any]] = MappingProxyType({tuple[str, ...]: str, tuple[int, ...]: int})
"""Kinds of lists, and what is in them."""
_OF_A_BACKEND: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "name": (str,),
        "models": (tuple[str, ...], NoneType),
        "max_concurrency": (int, NoneType),
        "rpm": (int, NoneType),
        "tpm": (int, NoneType),
        "metrics": (bool,),
    }
)

Torn = Callable[[int], None]
"""Is told of a last line that was not written to its end."""


@value
class Head:
    """What the first line says.

    Attributes:
        policy: what each part of the policy is called, by field; None in a journal of version 1.
        profile: what the engine began with, backends by name; None if that was nothing.
    """

    version: int
    backends: Sequence[Backend]
    max_queued: int
    policy: Mapping[str, str] | None
    profile: Profile | None = None

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


def decode(line: str) -> Event:
    """Return the event of one line.

    Raises:
        UsageError: if the line is not one.
    """
    found = _decoded(line)
    if isinstance(found, list):
        raise UsageError(f"not an event but commands: {line.strip()[:200]!r}")
    return found


def read_journal(lines: Iterable[str], *, on_torn: Torn | None = None) -> tuple[Head, Iterator[Recorded]]:
    """Return the head of a journal and its events, which are read as they are asked for.

    Blank lines say nothing.

    Args:
        on_torn: told of a last line that was cut off, as a crash leaves one, which is dropped then. If None, that is
            an error too.

    Raises:
        UsageError: if the lines are not a journal, now or on the way; the message names the line.
    """
    numbered = _numbered(lines)
    number, line = next(numbered, (1, ""))
    head = _read_head(number, line, numbered)
    return head, _entries(numbered, head, on_torn)


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        text = line.removeprefix("\ufeff") if number == 1 else line
        if text.strip():
            yield number, text


# -- the head ----------------------------------------------------------------------------------------------


def _read_head(number: int, line: str, following: Iterator[tuple[int, str]]) -> Head:
    try:
        found = _object(read_line(line))
        version = cast("int", _part(found, "agentsched", (int,)))
        if version not in READABLE:
            raise ValueError(f"it is of version {version}; this reads 1, 2 and 3")
        return Head(
            version=version,
            backends=_backends(cast("list[Any]", _part(found, "backends", (list,)))),
            max_queued=cast("int", _part(found, "max_queued", (int,))),
            policy=None if version == 1 else _policy(found),
            profile=_profile(found["profile"], following) if "profile" in found else None,
        )
    except ValueError as error:
        raise UsageError(f"line {number} is not the head of a journal: {error}") from None


def _profile(found: object, following: Iterator[tuple[int, str]]) -> Profile:
    """Return what the engine began with; the lines that follow say what of it is about steps."""
    parts = _object(found)
    backends = _object(_part(parts, "backends", (dict,)))
    steps = cast("int", _part(parts, "steps", (int,)))
    if not 0 <= steps <= MOST_STEPS:
        raise ValueError(f"its profile is of {steps} steps; there may be {MOST_STEPS}")
    measured = [
        Measured(base_url=None, name=name, learned=learned_of(one), source="journal")
        for name, one in backends.items()
    ]
    return Profile(
        backends=tuple(measured),
        prompts=prompts_of(_part(parts, "prompts", (list,))),
        steps=tuple(_step(following) for _ in range(steps)),
    )


def _step(following: Iterator[tuple[int, str]]) -> StepRow:
    number, line = next(following, (0, ""))
    if not number:
        raise ValueError("steps of its profile are missing")
    try:
        return step_of(_part(_object(read_line(line)), "step", (dict,)))
    except ValueError as error:
        raise ValueError(f"line {number} is no step of its profile: {error}") from None


def _policy(found: Mapping[str, Any]) -> dict[str, str]:
    parts = cast("dict[str, Any]", _part(found, "policy", (dict,)))
    return {name: cast("str", _part(parts, name, (str,))) for name in parts}


def _backends(found: Sequence[Any]) -> list[Backend]:
    backends = [_backend(_object(one)) for one in found]
    if not backends:
        raise ValueError("it names no backend")
    fleet_rows(backends)
    return backends


def _backend(found: Mapping[str, Any]) -> Backend:
    """Return a backend as it was recorded, under an address that is no other's."""
    for name in found:
        if name not in _OF_A_BACKEND:
            raise ValueError(f"a backend has no {name!r:.80}")
    name = cast("str", _part(found, "name", (str,)))
    return Backend(
        f"http://{name.encode().hex()}.invalid",
        **{part: _part(found, part, kinds) for part, kinds in _OF_A_BACKEND.items() if part in found},
    )


def _part(found: Mapping[str, Any], name: str, kinds: tuple[Any, ...]) -> Any:
    if name not in found:
        raise ValueError(f"it does not say {name!r}")
    return _value(name, found[name], kinds)


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.80} is not an object")
    return cast("dict[str, Any]", found)


# -- events ------------------------------------------------------------------------------------------------


def _entries(numbered: Iterator[tuple[int, str]], head: Head, on_torn: Torn | None) -> Iterator[Recorded]:
    last: tuple[int, Event] | None = None  # an event whose commands may be on the next line
    latest = -inf
    for number, line in numbered:
        try:
            found = _decoded(line)
            if isinstance(found, list):
                if last is None or not head.has_commands:
                    raise UsageError("commands without an event before them")
            else:
                latest = _later(found.at, latest)
        except UsageError as error:
            if last is not None:
                yield Recorded(line=last[0], event=last[1], commands=None)
            if on_torn is not None and is_cut_off(line) and next(numbered, None) is None:
                on_torn(number)
                return
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


def _later(at: float, latest: float) -> float:
    """Return the later of the two, and refuse a time that no clock could tell."""
    if not abs(at) <= MAX_AT_S:
        raise UsageError(f"at is {at!r}; it must be seconds, within ±{MAX_AT_S:.0e}")
    if at < latest - BACKWARDS_S:
        raise UsageError(f"at is {at!r} after {latest!r}; time cannot go back within a journal")
    return max(at, latest)


def _decoded(line: str) -> Event | list[Command]:
    try:
        found = _object(read_line(line))
        if "agentsched" in found:
            raise ValueError("another journal begins here; give each a file of its own")
        if "commands" not in found:
            return cast("Event", _one_of(_EVENTS, "event", found))
        commands = cast("list[Any]", _part(found, "commands", (list,)))
        if len(found) > 1:
            raise ValueError("commands stand alone on their line")
        return [cast("Command", _one_of(_COMMANDS, "command", _object(one))) for one in commands]
    except ValueError as error:
        raise UsageError(f"not a journal event: {line.strip()[:200]!r} ({error!s:.300})") from None


def _one_of(kinds: Mapping[str, type[Any]], what: str, found: dict[str, Any]) -> Any:
    name = cast("str", _part(found, what, (str,)))
    if name not in kinds:
        raise ValueError(f"no {what} is called {name!r:.80}")
    return _made(kinds[name], {other: item for other, item in found.items() if other != what})


def _made(kind: type[Any], found: Mapping[str, Any]) -> Any:
    hints = _FIELDS[kind]
    for name in found:
        if name not in hints:
            raise ValueError(f"{kind.__name__} has no {name!r:.80}")
    for name in _NEEDED[kind]:
        if name not in found:
            raise ValueError(f"{kind.__name__} does not say {name!r}")
    return kind(**{name: _value(name, item, hints[name]) for name, item in found.items()})


def _value(name: str, item: Any, kinds: tuple[Any, ...]) -> Any:
    for kind in kinds:
        if kind in _FIELDS:
            if isinstance(item, dict):
                return _made(kind, cast("dict[str, Any]", item))
        elif kind is Backend:
            if isinstance(item, dict):
                return _backend(cast("dict[str, Any]", item))
        elif kind is Learned:
            if isinstance(item, dict):
                return learned_of(cast("dict[str, Any]", item))
        elif _fits(item, kind):
            return _as(item, kind)
    right = " or ".join(map(_words, kinds))
    raise ValueError(f"{name} is {item!r:.80}; it must be {right}")


def _fits(item: Any, kind: Any) -> bool:
    if kind is int:
        return isinstance(item, int) and not isinstance(item, bool) and abs(item) <= MAX_WHOLE
    if kind is float:
        return _fits(item, int) or (isinstance(item, float) and not isnan(item))
    if kind in _LISTS:
        return isinstance(item, list) and all(_fits(one, _LISTS[kind]) for one in cast("list[Any]", item))
    if issubclass(kind, StrEnum):
        return isinstance(item, str) and item in list(kind)
    return isinstance(item, kind)


def _as(item: Any, kind: Any) -> Any:
    if kind in _LISTS:
        return tuple(item)
    return kind(item) if issubclass(kind, StrEnum) else item


def _words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return f"one of {', '.join(kind)}"
    return _WORDS.get(kind, "an object")
