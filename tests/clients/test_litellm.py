"""LiteLLM as a client, and DSPy through it: installed beside openai 3 only."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL

pytestmark = pytest.mark.filterwarnings("ignore")
litellm: Any = pytest.importorskip("litellm")
MESSAGES: Any = [{"role": "user", "content": "Hi"}]


async def test_with_a_client(scheduled: Scheduled) -> None:
    client = scheduled.scheduler.openai()
    answer = await litellm.acompletion(f"openai/{MODEL}", MESSAGES, client=client)
    assert answer.choices[0].message.content == HELLO
    stream = await litellm.acompletion(f"openai/{MODEL}", MESSAGES, client=client, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == HELLO

    def sync() -> Any:
        return litellm.completion(f"openai/{MODEL}", MESSAGES, client=scheduled.scheduler.openai_sync())

    assert (await asyncio.to_thread(sync)).choices[0].message.content == HELLO
    assert len(scheduled.bodies) == 3


async def test_through_its_session_and_from_dspy(
    scheduled: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take an httpx client for all calls of the process; LiteLLM is built on httpx alone."""
    dspy: Any = pytest.importorskip("dspy")
    monkeypatch.setattr(litellm, "aclient_session", scheduled.scheduler.http_async_client(httpx))
    monkeypatch.setattr(litellm, "disable_aiohttp_transport", True)
    options = {"api_key": "app", "api_base": "http://agentsched.invalid/v1"}
    answer = await litellm.acompletion(f"openai/{MODEL}", MESSAGES, **options)
    assert answer.choices[0].message.content == HELLO
    lm = dspy.LM(f"openai/{MODEL}", engine="litellm", cache=False, **options)
    found = await lm.acall("Hi")
    assert HELLO in str(found)
    assert len(scheduled.bodies) == 2
