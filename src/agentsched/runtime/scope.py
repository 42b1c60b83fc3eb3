"""Where a call comes from: the query and the step that the code which makes it runs in."""

import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from agentsched.model import Query


@dataclass(slots=True)
class Scope:
    """The query that surrounds some code.

    Attributes:
        owner: the scheduler it belongs to; calls through another one are outside.
        deadline, slo_at: engine seconds, the earliest of all queries around; None for none.
        outer: the scope around when it was entered.
        ended: whether its block has been left.
    """

    owner: object
    query: Query
    priority: int
    deadline: float | None
    slo_at: float | None
    outer: "Scope | None" = None
    ended: bool = False


class Marker(NamedTuple):
    """A step that surrounds some code, and the one around it."""

    name: str
    outer: "Marker | None"


T = TypeVar("T")

current_scope: ContextVar[Scope | None] = ContextVar("agentsched_scope", default=None)
current_step: ContextVar[Marker | None] = ContextVar("agentsched_step", default=None)


class Bound(Generic[T]):
    """Sets a context variable inside a block.

    It puts the earlier value back instead of resetting a token: a block of an async fixture or generator may
    be left in another context than it was entered in, where a token is of no use.
    """

    __slots__ = ("_earlier", "_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def __enter__(self) -> None:
        self._earlier = self._variable.get()
        self._variable.set(self._value)

    def __exit__(self, *exc: object) -> None:
        self._variable.set(self._earlier)


def step_name() -> str | None:
    """Return the step that the code runs in: the innermost `step`, else the framework's node, else None."""
    explicit = current_step.get()
    if explicit is not None:
        return explicit.name
    for module, read in _SOURCES.items():
        if module in sys.modules:
            name = read()
            if name is not None:
                return name
    return None


def _langgraph_node() -> str | None:
    """Return the running LangGraph node's name; not imported here, since only a loaded one can run nodes."""
    try:
        name = sys.modules["langgraph.config"].get_config()["metadata"]["langgraph_node"]
    except (RuntimeError, KeyError, TypeError, AttributeError):
        return None
    return name if isinstance(name, str) else None


_SOURCES: dict[str, Callable[[], str | None]] = {"langgraph.config": _langgraph_node}


def heartbeat() -> Callable[[], None] | None:
    """Return what keeps the running LangGraph node from its idle timeout; None where there is none to keep it from."""
    module = sys.modules.get("langgraph.runtime")
    if module is None:
        return None
    try:
        beat: Any = module.get_runtime().heartbeat
        default = module.Runtime.__dataclass_fields__["heartbeat"].default
    except (RuntimeError, KeyError, AttributeError):
        return None
    return None if beat is default else beat
