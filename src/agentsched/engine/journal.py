"""Record what happened so that it can happen again: events and decisions as JSON lines.

The first line describes the engine (backends with their limits and models, bounds, policy). Each further line is an
event, or the commands that the event before it led to; an event without such a line led to none. A profile that the
engine began with is in the first line too, as far as it is about these backends, and its steps are on the lines after
it. No bodies, keys, URLs or words of a backend are written. Opening, rotating and writing files is the business of the
shell.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, get_args

from agentsched.engine.commands import Command
from agentsched.engine.engine import MAX_QUEUED
from agentsched.engine.events import Event
from agentsched.engine.profilejson import learned_json, prompts_json, step_json
from agentsched.model import Backend, Failure, Query, Request, Signals, Usage
from agentsched.policy import Policy
from agentsched.predict import Learned, Profile

VERSION = 3
_KINDS = (*get_args(Event), *get_args(Command), Request, Usage, Failure, Query, Signals)
_WRITTEN: Mapping[type[Any], tuple[tuple[str, Any], ...]] = MappingProxyType(
    {kind: tuple((field.name, field.default) for field in fields(kind) if field.compare) for kind in _KINDS}
)
"""Names and defaults of the fields that are recorded."""

_as_json = json.JSONEncoder(separators=(",", ":")).encode


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
        profile: Profile | None = None,
    ) -> None:
        self._write = write
        header: dict[str, Any] = {
            "agentsched": VERSION,
            "policy": named(policy),
            "max_queued": max_queued,
            "backends": [_backend(spec) for spec in backends],
        }
        if profile is not None:
            header["profile"] = _profile(profile, backends)
        write(json.dumps(header) + "\n")
        for row in profile.steps if profile is not None else ():
            write(_as_json({"step": step_json(row)}) + "\n")

    def __call__(self, event: Event) -> None:
        """Record one event, before it is handled: one that the engine breaks on is in the journal too."""
        self._write(encode(event) + "\n")

    def decided(self, commands: Sequence[Command]) -> None:
        """Record what the event led to; whoever calls `handle` says so, after it, whatever came of it."""
        if commands:
            self._write(encode_commands(commands) + "\n")


def named(policy: Policy) -> dict[str, str]:
    """Return what each part of a policy is called, by field: qualified names of functions and classes, plain values."""
    return {field.name: _called(getattr(policy, field.name)) for field in fields(policy)}


def encode(event: Event) -> str:
    """Return an event as one line of JSON; fields that hold their default are left out."""
    return _as_json({"event": type(event).__name__, **_plain(event)})


def encode_commands(commands: Sequence[Command]) -> str:
    """Return the commands of one event as one line of JSON."""
    return _as_json(
        {"commands": [{"command": type(command).__name__, **_plain(command)} for command in commands]}
    )


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, default in _WRITTEN[type(value)]:
        item = getattr(value, name)
        if item != default:
            plain[name] = _plain(item) if type(item) in _WRITTEN else item
            if isinstance(item, Backend):
                plain[name] = _backend(item)
            elif isinstance(item, Learned):
                plain[name] = learned_json(item)
    return plain


def _called(part: object) -> str:
    if isinstance(part, (int, float)):
        return repr(part)
    name = part if hasattr(part, "__qualname__") else type(part)
    return f"{name.__module__}.{name.__qualname__}"  # type: ignore[attr-defined]


def _profile(profile: Profile, backends: Sequence[Backend]) -> dict[str, Any]:
    """Return what is recorded of a profile, but for its steps."""
    learned = {spec.name: profile.of(spec) for spec in backends}
    return {
        "backends": {name: learned_json(one) for name, one in learned.items() if one is not None},
        "prompts": prompts_json(profile.prompts),
        "steps": len(profile.steps),
    }


def _backend(spec: Backend) -> dict[str, Any]:
    """Return what is recorded of a backend: all that the engine decides by, which is neither address nor key."""
    return {
        "name": spec.name,
        "models": None if spec.models is None else list(spec.models),
        "max_concurrency": spec.max_concurrency,
        "rpm": spec.rpm,
        "tpm": spec.tpm,
        "metrics": spec.metrics,
    }
