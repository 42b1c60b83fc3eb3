"""Servers of real engines as child processes on loopback."""

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(
    command: Sequence[str],
    url: str,
    log: Path,
    *,
    start_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a server until the block is left, which begins when its `/health` answers."""
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + start_s
        while not _answers(f"{url}/health"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[2]} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)  # a process of its own is waited for
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False
