"""One llama.cpp server for all tests that want a real engine."""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import tiny_gguf

START_S = 60.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="session")
def llama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with generated weights; its model is called `tiny`, it has four slots."""
    folder: Path = tmp_path_factory.mktemp("llama")
    tiny_gguf.write(folder / "tiny.gguf")
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "tests.real.llama_server",
        str(folder / "tiny.gguf"),
        "tiny",
        str(port),
        "4",
    ]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(f"http://127.0.0.1:{port}/health"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"llama.cpp did not start: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)
