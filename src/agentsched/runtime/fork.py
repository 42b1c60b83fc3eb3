"""What survives a fork: in the child every scheduler goes on empty, in the parent nothing is touched."""

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forkable(Protocol):
    """What has a lock, and state that belongs to the process it was made in."""

    def hold(self) -> None:
        """Take the lock: nothing may be half-done at the fork."""
        ...

    def let_go(self) -> None:
        """Release it."""
        ...

    def start_anew(self) -> None:
        """Be empty: this is the child; the lock is held."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(one: Forkable) -> None:
    """Keep it consistent over forks for as long as it lives."""
    _watched.add(one)


def _each(act: Callable[[Forkable], None]) -> None:
    for one in sorted(_watched, key=id):
        act(one)


def _hold() -> None:
    _each(lambda one: one.hold())


def _let_go() -> None:
    _each(lambda one: one.let_go())


def _start_anew() -> None:
    _each(lambda one: one.start_anew())
    _let_go()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_start_anew)
