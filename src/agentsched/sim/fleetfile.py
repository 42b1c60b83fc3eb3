"""A fleet to play traces against, read from TOML: cards, engines, or speeds of one's own."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

from agentsched.errors import UsageError
from agentsched.model import Backend
from agentsched.model.value import value
from agentsched.sim import engines, gpus
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

MAX_WHOLE = 2**31
MIN_S, MAX_SPEED_S = 1e-9, 1e6
MAX_SEQS = 2048
"""Tokens of one step; each sequence that runs takes one."""
MAX_BACKENDS = 10_000
MAX_CHARACTERS = 500_000
MAX_DOTS = 40
"""On one line: what reads TOML takes a time that grows with the square of a key's parts."""


@value
class Fleet:
    """Backends and the engines behind them, in the same order."""

    backends: Sequence[Backend]
    specs: Sequence[BackendSpec]

    def fresh(self) -> list[tuple[Backend, BatchServer]]:
        """Return the backends with engines that have served nothing yet."""
        return [(backend, BatchServer(spec)) for backend, spec in zip(self.backends, self.specs, strict=True)]

    def serving(self, model: str | None) -> list[BackendSpec]:
        """Return the engines that serve a model, each kind once; all of them for None."""
        both = zip(self.backends, self.specs, strict=True)
        return list(
            dict.fromkeys(
                spec
                for backend, spec in both
                if model is None or backend.models is None or model in backend.models
            )
        )


def read_fleet(text: str, name: str) -> Fleet:
    """Return the fleet that a TOML file describes.

    Either ``fleet = "hetero1"`` names one of `gpus.FLEETS`, with ``max_concurrency = {a100-1 = 8}`` for some of its
    backends, or each ``[[backend]]`` has the keys of `KEYS`.

    Args:
        name: of the file, for messages.

    Raises:
        UsageError: for whatever is no fleet; the message names file, entry and key, and says what is right.
    """
    found = _parsed(text, name)
    try:
        return _named_fleet(found) if "fleet" in found else _own_fleet(found)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None


def _parsed(text: str, name: str) -> Mapping[str, object]:
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"{name}: the file is longer than {MAX_CHARACTERS} characters")
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_DOTS:
            raise UsageError(
                f"{name}: line {number} has more than {MAX_DOTS} dots; a list may go on over several lines"
            )
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{name} is not TOML: {error}") from None
    except ValueError:
        raise UsageError(f"{name} is not TOML that can be read: a number in it has too many digits") from None


def _named_fleet(found: Mapping[str, object]) -> Fleet:
    _check_keys(found, ("fleet", "max_concurrency"))
    fleet = found["fleet"]
    if not isinstance(fleet, str) or fleet not in gpus.FLEETS:
        raise UsageError(f"fleet is {fleet!r:.80}; it must be one of {', '.join(gpus.FLEETS)}")
    specs = gpus.fleet(fleet)
    given = found.get("max_concurrency", {})
    if not isinstance(given, dict):
        raise UsageError(f"max_concurrency is {given!r:.80}; it must be a table by the backends' names")
    limits = cast("dict[str, object]", given)
    for name, limit in limits.items():
        if name not in specs:
            raise UsageError(
                f"max_concurrency of {name!r:.80}: no such backend in {fleet}; there are {', '.join(specs)}"
            )
        _read("max_concurrency", limit)
    return Fleet(
        backends=[
            _backend(index, name, {"max_concurrency": limits.get(name)}) for index, name in enumerate(specs)
        ],
        specs=list(specs.values()),
    )


def _own_fleet(found: Mapping[str, object]) -> Fleet:
    _check_keys(found, ("backend",))
    entries = found.get("backend")
    if not isinstance(entries, list) or not entries:
        raise UsageError('it must hold [[backend]] entries, or fleet = "..." to name a fleet')
    backends: list[Backend] = []
    specs: list[BackendSpec] = []
    for number, entry in enumerate(cast("list[object]", entries), start=1):
        try:
            keys = _entry(entry)
            names = _names(keys["name"], keys.get("count", 1))
            backends += [_backend(index, name, keys) for index, name in enumerate(names, len(backends))]
            specs += [_spec(keys)] * len(names)
        except (UsageError, ValueError) as error:
            raise UsageError(f"backend {number}: {error}") from None
        if len(backends) > MAX_BACKENDS:
            raise UsageError(f"there are more than {MAX_BACKENDS} backends")
    names = [backend.name for backend in backends]
    for name, after in zip(sorted(names), sorted(names)[1:], strict=False):
        if name == after:
            raise UsageError(f"two backends have the name {name!r}")
    return Fleet(backends=backends, specs=specs)


def _entry(entry: object) -> dict[str, Any]:
    """Return the values of an entry, of the right types and ranges."""
    if not isinstance(entry, dict):
        raise UsageError(f"it is {entry!r:.80}; it must be a [[backend]] table")
    found = cast("dict[str, object]", entry)
    _check_keys(found, tuple(KEYS))
    keys = {key: _read(key, item) for key, item in found.items()}
    if "name" not in keys:
        raise UsageError("name is missing")
    ways = [key for key in ("gpu", "engine", "step_s") if key in keys]
    if len(ways) != 1:
        given = f"{' and '.join(ways)} are given" if ways else "it is not said how fast it is"
        raise UsageError(f"{given}; give one of gpu, engine and step_s")
    of_a_speed = [key for key in ("prefill_s_per_token", "batch_slope", "entry_s") if key in keys]
    if ways != ["step_s"] and of_a_speed:
        raise UsageError(f"{of_a_speed[0]} is given with {ways[0]}, which has a speed of its own")
    if ways == ["step_s"] and "prefill_s_per_token" not in keys:
        raise UsageError("prefill_s_per_token is missing beside step_s")
    return keys


def _names(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]


def _backend(index: int, name: str, keys: Mapping[str, Any]) -> Backend:
    return Backend(
        f"http://backend-{index}.invalid/v1",
        name=name,
        models=keys.get("models"),
        max_concurrency=keys.get("max_concurrency"),
    )


def _spec(keys: Mapping[str, Any]) -> BackendSpec:
    if "gpu" in keys:
        spec = gpus.backend(keys["gpu"])
    elif "engine" in keys:
        spec = engines.backend(keys["engine"])
    else:
        own = {
            "prefill_s_per_token": "prefill_s",
            "step_s": "step_s",
            "batch_slope": "batch_slope",
            "entry_s": "entry_s",
        }
        spec = BackendSpec(speed=Speed(**{field: keys[key] for key, field in own.items() if key in keys}))
    limits = {key: keys[key] for key in ("max_num_seqs", "max_model_len") if key in keys}
    if "kv_tokens" in keys:
        limits["kv_blocks"] = keys["kv_tokens"] // spec.block_tokens
    return replace(spec, **limits)


# -- keys --------------------------------------------------------------------------------------------------


def _check_keys(found: Mapping[str, object], known: Sequence[str]) -> None:
    for key in found:
        if key not in known:
            raise UsageError(f"no key is called {key!r:.80} here; there are {', '.join(known)}")


def _read(key: str, item: object) -> Any:
    fits, right = KEYS[key]
    if not fits(item):
        raise UsageError(f"{key} is {item!r:.80}; it must be {right}")
    return item


def _whole(least: int, most: int) -> Callable[[object], bool]:
    return lambda item: isinstance(item, int) and not isinstance(item, bool) and least <= item <= most


def _number(least: float) -> Callable[[object], bool]:
    return lambda item: (
        isinstance(item, (int, float)) and not isinstance(item, bool) and least <= item <= MAX_SPEED_S
    )


def _names_models(item: object) -> bool:
    return isinstance(item, list) and all(isinstance(name, str) for name in cast("list[object]", item))


_ABOVE_0 = f"a number of seconds from {MIN_S:.0e} to {MAX_SPEED_S:.0e}"
_FROM_1 = f"a whole number from 1 to {MAX_WHOLE}"

KEYS: Mapping[str, tuple[Callable[[object], bool], str]] = MappingProxyType(
    {
        "name": (lambda item: isinstance(item, str), "text"),
        "gpu": (lambda item: item in list(gpus.STAGE_TIMES), f"one of {', '.join(gpus.STAGE_TIMES)}"),
        "engine": (lambda item: item in list(engines.STEPS_MS), f"one of {', '.join(engines.STEPS_MS)}"),
        "prefill_s_per_token": (_number(0.0), f"a number of seconds from 0 to {MAX_SPEED_S:.0e}"),
        "step_s": (_number(MIN_S), _ABOVE_0),
        "batch_slope": (_number(0.0), f"a share of step_s from 0 to {MAX_SPEED_S:.0e}"),
        "entry_s": (_number(MIN_S), _ABOVE_0),
        "kv_tokens": (_whole(16, MAX_WHOLE), f"a whole number from 16 to {MAX_WHOLE}"),
        "max_model_len": (_whole(1, MAX_WHOLE), _FROM_1),
        "max_num_seqs": (_whole(1, MAX_SEQS), f"a whole number from 1 to {MAX_SEQS}"),
        "max_concurrency": (_whole(1, MAX_WHOLE), _FROM_1),
        "count": (_whole(1, MAX_BACKENDS), f"a whole number from 1 to {MAX_BACKENDS}"),
        "models": (_names_models, "a list of names"),
    }
)
"""What a value of each key must satisfy, and how that is said."""
