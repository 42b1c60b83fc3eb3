"""Is another thread at work, so that virtual time has to wait for it?

A thread counts as parked while it waits for a lock, for work or for I/O of a loop of its own; it is told by
where it stands. One that works for longer than the clock's patience is no longer waited for until it stands
somewhere else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from pathlib import PurePath
from types import FrameType

PARKED = {
    ("threading.py", "wait"),
    ("threading.py", "join"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("thread.py", "_worker"),
    ("selectors.py", "select"),
}
"""File and function in which a thread has nothing to do."""
FREE_WORKER = ("thread.py", "_worker")


class OtherThreads:
    """Watch the threads beside the one that asks."""

    def __init__(self) -> None:
        self._given_up: Hashable = None

    def at_work(self, jobs: int) -> Hashable:
        """Return a sign of what the others do, None if nothing; `jobs` are out in the loop's executors."""
        if threading.active_count() == 1:
            return None
        frames = sys._current_frames()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  documented
        busy: list[tuple[int, str, int]] = []
        taken = 0
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is threading.current_thread():
                continue
            place = _place(frame)
            taken += place != FREE_WORKER and _is_worker(frame)
            handed: int = thread.queue.qsize() if hasattr(thread, "queue") else 0  # type: ignore[attr-defined]
            if place not in PARKED or handed:  # anyio's workers have a queue each
                busy.append((thread.ident or 0, frame.f_code.co_qualname, frame.f_lasti))
        sign = (tuple(busy), max(jobs - taken, 0))
        return None if sign in (((), 0), self._given_up) else sign

    def give_up(self, sign: Hashable) -> None:
        """Wait no more for what has this sign."""
        self._given_up = sign


def _place(frame: FrameType) -> tuple[str, str]:
    return (PurePath(frame.f_code.co_filename).name, frame.f_code.co_name)


def _is_worker(frame: FrameType | None) -> bool:
    while frame is not None:
        if _place(frame) == FREE_WORKER:
            return True
        frame = frame.f_back
    return False
