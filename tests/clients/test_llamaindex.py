"""LlamaIndex's OpenAI models and workflows' agents, and instructor: installed beside openai 2 only."""

import asyncio
from typing import Any

import pytest

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL, TRIP, WEATHER
from tests.clients.test_openai import MESSAGES, Trip

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("llama_index.llms.openai_like")
instructor: Any = pytest.importorskip("instructor")


def plan(city: str, days: int) -> str:
    """Plan a trip."""
    return f"{days} days in {city}"


@pytest.fixture
def llm(scheduled: Scheduled) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(
        model=MODEL,
        api_key="app",
        api_base="http://agentsched.invalid/v1",
        is_chat_model=True,
        is_function_calling_model=True,
        async_http_client=scheduled.scheduler.http_async_client(),
        http_client=scheduled.scheduler.http_client(),
        max_retries=0,
    )


async def test_async(llm: Any, scheduled: Scheduled) -> None:
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage("Hi")]
    assert (await llm.achat(messages)).message.content == HELLO
    pieces = [piece.delta async for piece in await llm.astream_chat(messages)]
    assert "".join(pieces) == HELLO
    assert (await llm.as_structured_llm(Trip).achat(messages)).raw == Trip(**TRIP)
    assert len(scheduled.bodies) == 3


def test_sync(llm: Any, scheduled: Scheduled) -> None:
    from llama_index.core.llms import ChatMessage

    messages = [ChatMessage("Hi")]
    assert llm.chat(messages).message.content == HELLO
    assert "".join(piece.delta for piece in llm.stream_chat(messages)) == HELLO
    assert len(scheduled.bodies) == 2


async def test_an_agent(llm: Any) -> None:
    from llama_index.core.agent.workflow import FunctionAgent

    agent = FunctionAgent(tools=[plan], llm=llm, streaming=False)
    assert str(await agent.run("Hi")) == WEATHER


async def test_instructor(scheduled: Scheduled) -> None:
    client = instructor.from_openai(scheduled.scheduler.openai())
    found = await client.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Trip)
    assert found.model_dump() == TRIP  # its class is a subclass made by instructor

    def sync() -> Any:
        made = instructor.from_openai(scheduled.scheduler.openai_sync())
        return made.chat.completions.create(model=MODEL, messages=MESSAGES, response_model=Trip)

    assert (await asyncio.to_thread(sync)).model_dump() == TRIP
