"""The library before engines that say wrong things of their load, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agentsched import Policy
from agentsched.model import Signals
from agentsched.sim.plan import Node
from agentsched.sim.player import Player, Watch
from agentsched.sim.server import News, Server
from benchmarks.policy.contender import Contender, Fleet, Prepare, Setup, Stage
from benchmarks.policy.ours import DEFAULT

Lie = Callable[[Signals | None], Signals | None]
"""From what an engine would say to what it says."""


class Lying:
    """A server that says something else of its load than it has."""

    def __init__(self, inner: Server, lie: Lie) -> None:
        self._inner = inner
        self._lie = lie

    def start(self, now: float, attempt_id: int, node: Node) -> None:
        self._inner.start(now, attempt_id, node)

    def abort(self, now: float, attempt_id: int) -> int:
        return self._inner.abort(now, attempt_id)

    def next_at(self) -> float | None:
        return self._inner.next_at()

    def advance(self, now: float) -> list[News]:
        return self._inner.advance(now)

    def signals(self) -> Signals | None:
        return self._lie(self._inner.signals())


class Frozen:
    """Says for ever what was said first."""

    def __init__(self) -> None:
        self._first: Signals | None = None

    def __call__(self, signals: Signals | None) -> Signals | None:
        if self._first is None:
            self._first = signals
        return self._first


def silent(signals: Signals | None) -> Signals | None:
    """Say nothing."""
    return None


def idle(signals: Signals | None) -> Signals | None:
    """Say that nothing is there."""
    return replace(signals, running=0, waiting=0, kv_usage=0.0) if signals else None


def full(signals: Signals | None) -> Signals | None:
    """Say that all memory is in use."""
    return replace(signals, kv_usage=1.0) if signals else None


def sized(factor: float) -> Lie:
    """Return what says that there is so many times the memory."""

    def lie(signals: Signals | None) -> Signals | None:
        if signals is None or signals.kv_tokens is None:
            return signals
        return replace(signals, kv_tokens=int(factor * signals.kv_tokens))

    return lie


NOTHING = "no metrics"

LIES: Mapping[str, Callable[[], Lie]] = {
    NOTHING: lambda: silent,
    "frozen metrics": Frozen,
    "idle metrics": lambda: idle,
    "full metrics": lambda: full,
    "half the memory told": lambda: sized(0.5),
    "four times the memory told": lambda: sized(4.0),
}
"""Makes what each engine of a fleet says, by how that is called."""


def told(lie: Callable[[], Lie]) -> Prepare:
    """Return what prepares the default policy before a fleet of which every engine lies so."""

    def player(fleet: Fleet, policy: Policy, watches: Sequence[Watch]) -> Player:
        lying = [(backend, Lying(server, lie())) for backend, server in fleet]
        return Player(lying, policy=policy, watches=watches)

    def prepare(stage: Stage) -> Setup:
        return Setup(policy=Policy.default(), player=player)

    return prepare


LIED_TO = tuple(Contender(name=f"{DEFAULT.name}, {name}", prepare=told(lie)) for name, lie in LIES.items())
