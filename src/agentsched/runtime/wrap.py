"""Run a function's body inside a frame: plain, async, generator or async generator alike."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Frame(Protocol):
    """What surrounds one run of a function."""

    def open(self) -> None:
        """The run begins."""
        ...

    def active(self) -> AbstractContextManager[None]:
        """Surround a stretch in which the function's own code runs."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def wrap(fn: F, new_frame: Callable[[], Frame]) -> F:
    """Return `fn` with each run inside a new frame.

    Generators hold no frame while their consumer runs: what they set would leak into it. `__wrapped__` is the
    innermost function, since LangGraph looks for sub-graphs one level down only.
    """
    if inspect.isasyncgenfunction(fn):
        wrapper = _async_generator(fn, new_frame)
    elif inspect.isgeneratorfunction(fn):
        wrapper = _generator(fn, new_frame)
    elif inspect.iscoroutinefunction(fn):
        wrapper = _coroutine(fn, new_frame)
    else:
        wrapper = _plain(fn, new_frame)
    wrapper = functools.wraps(fn)(wrapper)
    wrapper.__wrapped__ = inspect.unwrap(fn)
    return wrapper  # type: ignore[return-value]


def _coroutine(fn: Callable[..., Any], new_frame: Callable[[], Frame]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> Any:
        frame = new_frame()
        frame.open()
        try:
            with frame.active():
                return await fn(*args, **kwargs)
        finally:
            frame.close()

    return run


def _plain(fn: Callable[..., Any], new_frame: Callable[[], Frame]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        frame = new_frame()
        frame.open()
        try:
            with frame.active():
                return fn(*args, **kwargs)
        finally:
            frame.close()

    return run


def _async_generator(fn: Callable[..., Any], new_frame: Callable[[], Frame]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        frame = new_frame()
        frame.open()
        inner = fn(*args, **kwargs)
        sent: Any = None
        try:
            while True:
                try:
                    with frame.active():
                        item = await inner.asend(sent)
                except StopAsyncIteration:
                    return
                sent = yield item
        finally:
            try:
                with frame.active():
                    await inner.aclose()
            finally:
                frame.close()

    return run


def _generator(fn: Callable[..., Any], new_frame: Callable[[], Frame]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        frame = new_frame()
        frame.open()
        inner = fn(*args, **kwargs)
        sent: Any = None
        try:
            while True:
                try:
                    with frame.active():
                        item = inner.send(sent)
                except StopIteration as stop:
                    return stop.value
                sent = yield item
        finally:
            try:
                with frame.active():
                    inner.close()
            finally:
                frame.close()

    return run
