"""Run a function's body inside a frame: plain, async, generator or async generator alike."""

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

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
    kind = _called(fn)
    if inspect.isasyncgenfunction(kind):
        wrapper = _async_generator(fn, new_frame)
    elif inspect.isgeneratorfunction(kind):
        wrapper = _generator(fn, new_frame)
    elif inspect.iscoroutinefunction(kind):
        wrapper = _coroutine(fn, new_frame)
    else:
        wrapper = _plain(fn, new_frame)
    wrapper = functools.wraps(fn)(wrapper)
    wrapper.__wrapped__ = inspect.unwrap(fn)
    return wrapper  # type: ignore[return-value]


def _called(fn: Any) -> Any:
    """Return the function that runs when `fn` is called: a node of LangGraph may be an object."""
    if inspect.isroutine(fn) or isinstance(fn, (type, functools.partial)):
        return cast("Any", fn)
    return fn.__call__


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
        result: Any = None
        try:
            with frame.active():
                result = fn(*args, **kwargs)
        finally:
            if not inspect.iscoroutine(result):
                frame.close()
        return _rest(frame, result) if inspect.iscoroutine(result) else result

    return run


async def _rest(frame: Frame, begun: Coroutine[Any, Any, Any]) -> Any:
    """Run what a plain function left to be awaited: its frame goes on."""
    try:
        with frame.active():
            return await begun
    finally:
        frame.close()


def _async_generator(fn: Callable[..., Any], new_frame: Callable[[], Frame]) -> Any:
    async def run(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        frame = new_frame()
        frame.open()
        inner = fn(*args, **kwargs)
        resume, given = inner.asend, None
        try:
            while True:
                try:
                    with frame.active():
                        item = await resume(given)
                except StopAsyncIteration:
                    return
                try:
                    resume, given = inner.asend, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    resume, given = inner.athrow, thrown
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
        resume, given = inner.send, None
        try:
            while True:
                try:
                    with frame.active():
                        item = resume(given)
                except StopIteration as stop:
                    return stop.value
                try:
                    resume, given = inner.send, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    resume, given = inner.throw, thrown
        finally:
            try:
                with frame.active():
                    inner.close()
            finally:
                frame.close()

    return run
