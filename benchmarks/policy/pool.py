"""Plays many things on several processes; what is found is kept as it comes, so that a run can be resumed."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentsched.engine.jsonline import read_line

ROOT = Path(__file__).parents[2]
SOURCES = ("src/agentsched", "benchmarks/policy", "benchmarks/data")
NOT_PLAYED = (
    *("transport", "runtime", "cli", "pytest_plugin.py"),
    *("report", "__main__.py", "capacity.py", "pool.py", "smoke.py", "tuned.py", "tuning.py"),
)
"""What the figures of a task do not depend on."""

PACKAGES = ("litellm", "openai", "httpx")
"""What routers are played with."""

Figures = Mapping[str, float]


class Playable(ABC):
    """Something with figures: a dataclass, whose fields tell it from everything else."""

    __slots__ = ()

    @property
    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @abstractmethod
    def play(self) -> Figures: ...


class Store:
    """Figures by task, in a file of JSON lines; those of other sources than today's are forgotten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = sources_digest()
        self._found: dict[str, Figures] = {}
        self._torn = False
        if path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
            self._torn = text[-1:] not in ("", "\n")
            for line in text.splitlines():
                match _read(line):
                    case {"sources": self._digest, "task": str(task), "figures": dict(figures)}:
                        self._found[task] = figures

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, task: Playable) -> bool:
        return task.key in self._found

    def get(self, task: Playable) -> Figures:
        """Return what was found."""
        return self._found[task.key]

    def put(self, task: Playable, found: Figures) -> None:
        """Keep what was found."""
        self._found[task.key] = found
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            if self._torn:
                file.write("\n")
                self._torn = False
            file.write(json.dumps({"sources": self._digest, "task": task.key, "figures": found}) + "\n")


class Pool:
    """Plays tasks on several processes, those first that nobody has played."""

    def __init__(
        self, store: Store, jobs: int, told: Callable[[int, int], None] = lambda done, of: None
    ) -> None:
        self._store = store
        self._told = told
        self._executor = ProcessPoolExecutor(jobs, initializer=_die_with_parent)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exc: object) -> None:
        self._executor.shutdown(cancel_futures=True)

    def play(self, tasks: Iterable[Playable]) -> list[Figures]:
        """Return the figures of tasks, in their order."""
        wanted = list(tasks)
        missing = {task.key: task for task in wanted if task not in self._store}
        futures = {self._executor.submit(_play, task): task for task in missing.values()}
        for done, future in enumerate(as_completed(futures), 1):
            self._store.put(futures[future], future.result())
            self._told(done, len(futures))
        return [self._store.get(task) for task in wanted]


def _read(line: str) -> object:
    """Return what a line holds; None for one that was cut off while it was written."""
    try:
        return read_line(line)
    except ValueError:
        return None


def _play(task: Playable) -> Figures:
    return task.play()


def _die_with_parent() -> None:
    """Have this process end when the one that made it does, be it killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def sources_digest() -> str:
    """Return a digest of all that decides the figures."""
    digest = blake2b(repr([sys.version_info, *map(_version, PACKAGES)]).encode(), digest_size=8)
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT / folder).parts
            if path.suffix in {".py", ".gz"} and inside[0] not in NOT_PLAYED:
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
