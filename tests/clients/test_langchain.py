"""LangChain's chat models and embeddings: both of their clients, tools, structured output, agents."""

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL, TRIP, WEATHER
from tests.clients.test_openai import Trip


@tool
def plan(city: str, days: int) -> str:
    """Plan a trip."""
    return f"{days} days in {city}"


@pytest.fixture
def llm(scheduled: Scheduled) -> ChatOpenAI:
    return ChatOpenAI(model=MODEL, **scheduled.scheduler.client_kwargs())


async def test_async(llm: ChatOpenAI, scheduled: Scheduled) -> None:
    answer = await llm.ainvoke("Hi")
    assert answer.content == HELLO
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 2
    assert answer.response_metadata["model_name"] == MODEL
    assert "".join([str(piece.content) async for piece in llm.astream("Hi")]) == HELLO
    assert [a.content for a in await llm.abatch(["Hi"] * 3)] == [HELLO] * 3
    called = await llm.bind_tools([plan]).ainvoke("Hi")
    assert called.tool_calls[0]["args"] == TRIP
    assert len(scheduled.bodies) == 6


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_structured(llm: ChatOpenAI, method: Any) -> None:
    shaped = llm.with_structured_output(Trip, method=method)
    assert await shaped.ainvoke("Hi") == Trip(**TRIP)
    assert await asyncio.to_thread(shaped.invoke, "Hi") == Trip(**TRIP)


async def test_responses(scheduled: Scheduled) -> None:
    llm = ChatOpenAI(model=MODEL, use_responses_api=True, **scheduled.scheduler.client_kwargs())
    assert (await llm.ainvoke("Hi")).text == HELLO
    assert "".join([piece.text async for piece in llm.astream("Hi")]) == HELLO
    assert (await asyncio.to_thread(llm.invoke, "Hi")).text == HELLO
    assert {seen.url.path for seen in scheduled.seen.requests} == {"/v1/responses"}


def test_sync(llm: ChatOpenAI, scheduled: Scheduled) -> None:
    assert llm.invoke("Hi").content == HELLO
    assert "".join(str(piece.content) for piece in llm.stream("Hi")) == HELLO
    assert [a.content for a in llm.batch(["Hi"] * 3)] == [HELLO] * 3
    assert llm.bind_tools([plan]).invoke("Hi").tool_calls[0]["args"] == TRIP
    assert len(scheduled.bodies) == 6


async def test_embeddings(scheduled: Scheduled) -> None:
    kwargs = scheduled.scheduler.client_kwargs()
    embed = OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False, **kwargs)
    assert await embed.aembed_documents(["a", "b"]) == [[0.25, -1.0]] * 2
    assert await asyncio.to_thread(embed.embed_query, "a") == [0.25, -1.0]


async def test_the_agent_loop(llm: ChatOpenAI) -> None:
    agent = create_agent(llm, [plan])
    result = await agent.ainvoke({"messages": [{"role": "user", "content": "Hi"}]})
    assert result["messages"][-1].content == WEATHER
