"""Two HTTP stacks that share no types."""

from types import ModuleType

import httpx
import httpx2
import openai
import pytest

from agentsched import Backend, Scheduler, UsageError
from agentsched.transport.stack import default_stack, stack_of


def test_the_stack_is_read_off_the_transport(stack: ModuleType) -> None:
    class Mine(stack.AsyncBaseTransport):
        pass

    assert stack_of(Mine()) is stack
    assert stack_of(stack.AsyncHTTPTransport()) is stack
    assert stack_of(stack.MockTransport(lambda request: stack.Response(200))) is stack


@pytest.mark.parametrize(
    "wrong", [None, "http://a", object(), httpx.HTTPTransport(), httpx2.HTTPTransport(), httpx2.Client()]
)
def test_anything_else_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(UsageError, match=f"or a function that makes one, not {type(wrong).__name__}"):
        stack_of(wrong)


def test_a_scheduler_says_so_at_once() -> None:
    with pytest.raises(UsageError, match="upstream must be an async transport"):
        Scheduler([Backend("http://a:1/v1")], upstream=object())


def test_the_default_is_what_the_installed_openai_builds_on() -> None:
    expected = httpx2 if openai.__version__ >= "3" else httpx
    assert default_stack() is expected
    assert isinstance(openai.AsyncOpenAI(api_key="x")._client, expected.AsyncClient)
