"""`step`: name a node of the app's workflow, as a decorator or around a block."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Never, TypeVar, overload

from agentsched.errors import UsageError
from agentsched.model.options import refuse
from agentsched.runtime.options import label
from agentsched.runtime.scope import Bound, Marker, current_step
from agentsched.runtime.wrap import wrap

F = TypeVar("F", bound=Callable[..., Any])


class Step:
    """A named step: a decorator (``@step("draft")``) and a context manager (``with step("draft"):``).

    One object may surround several blocks, nested and in several tasks at a time: it keeps no state itself.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name

    def __call__(self, fn: F) -> F:
        name = self._name if self._name is not None else getattr(fn, "__name__", type(fn).__name__)
        if not callable(fn):
            raise UsageError(f"step decorates functions, not {type(fn).__name__}")
        return wrap(fn, lambda: _StepFrame(name))

    def __enter__(self) -> None:
        if self._name is None:
            raise UsageError('a step around a block needs a name: with step("rerank"):')
        current_step.set(Marker(self._name, current_step.get()))

    def __exit__(self, *exc: object) -> None:
        marker = current_step.get()
        current_step.set(marker.outer if marker is not None else None)

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()


class _StepFrame:
    def __init__(self, name: str) -> None:
        self._name = name

    def open(self) -> None: ...

    def active(self) -> AbstractContextManager[None]:
        return Bound(current_step, Marker(self._name, current_step.get()))

    def close(self) -> None: ...


@overload
def step(target: F, /) -> F: ...
@overload
def step(target: str | None = None, /, *, name: str | None = None) -> Step: ...
def step(target: Any = None, /, *, name: str | None = None, **unknown: Never) -> Any:
    """Mark a step of a workflow.

    Use it bare (``@step``, named after the function), with a name (``@step("draft")``,
    ``@step(name="draft")``) or around a block (``with step("rerank"):``). It works on functions of every kind
    and passes straight through outside of any query. In LangGraph the graph names its nodes; a step inside is
    more specific and wins.

    Raises:
        UsageError: for a name that is not a printable string, or an unknown option.
    """
    refuse(unknown, step, "step")
    if callable(target):
        return Step(None)(target) if name is None else Step(label(name, "step: name"))(target)
    if target is not None and name is not None:
        raise UsageError(f"step has two names, {target!r} and {name!r}; give one")
    given = target if target is not None else name
    return Step(None if given is None else label(given, "step: name"))
