"""One server of each real engine for all tests that want one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real import tiny_gguf
from tests.real.serving import free_port, served

VLLM = "AGENTSCHED_VLLM"
"""Environment variable: the Python of an environment that has vLLM; `make vllm` sets it."""


@pytest.fixture(scope="session")
def llama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a server with generated weights; its model is called `tiny`, it has four slots."""
    with _llama(tmp_path_factory.mktemp("llama")) as url:
        yield url


@pytest.fixture(scope="session")
def other_llama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a second server with the same weights."""
    with _llama(tmp_path_factory.mktemp("other_llama")) as url:
        yield url


@contextmanager
def _llama(folder: Path) -> Iterator[str]:
    tiny_gguf.write(folder / "tiny.gguf")
    port = free_port()
    command = [
        *(sys.executable, "-m", "tests.real.llama_server"),
        *(str(folder / "tiny.gguf"), "tiny", str(port), "4"),
    ]
    with served(command, f"http://127.0.0.1:{port}", folder / "log", start_s=60) as url:
        yield url


@pytest.fixture(scope="session")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a vLLM with generated weights, called `tiny`, that looks for tools and thoughts."""
    parsers = "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser deepseek_r1"
    with _vllm(tmp_path_factory.mktemp("vllm"), *parsers.split()) as url:
        yield url


@pytest.fixture(scope="session")
def plain_vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of one that does not."""
    with _vllm(tmp_path_factory.mktemp("plain_vllm")) as url:
        yield url


@contextmanager
def _vllm(folder: Path, *options: str) -> Iterator[str]:
    python = os.environ.get(VLLM)
    if not python:
        pytest.skip(f"needs {VLLM}: `make vllm` sets it all up")
    quiet = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    subprocess.run([python, "-m", "tests.real.tiny_hf", str(folder / "tiny")], check=True, env=quiet)
    port = free_port()
    command = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)),
        *("--model", str(folder / "tiny"), "--served-model-name", "tiny", "--dtype", "bfloat16"),
        *("--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "16", "--block-size", "32"),
        *("--num-gpu-blocks-override", "200", "--scheduling-policy", "priority", *options),
    ]
    with served(command, f"http://127.0.0.1:{port}", folder / "log", start_s=300, environment=quiet) as url:
        yield url
