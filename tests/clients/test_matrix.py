"""What is installed beside which openai, so that no client is skipped everywhere."""

from importlib.util import find_spec

import openai
import pytest

ANYWHERE = ("langchain", "langchain_openai", "langgraph", "pydantic_ai", "agents", "fastapi")
BESIDE = {"3": ("litellm", "dspy"), "2": ("llama_index", "instructor")}


@pytest.mark.parametrize("name", [*ANYWHERE, *BESIDE[openai.__version__[0]]])
def test_it_is_installed(name: str) -> None:
    assert find_spec(name) is not None
