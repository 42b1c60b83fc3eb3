"""The openai SDK, async and sync, over the HTTP stack that it brings and over the other one."""

import json
from types import ModuleType
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL, TRIP

MESSAGES: Any = [{"role": "user", "content": "Where to?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "plan",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class Trip(pydantic.BaseModel):
    city: str
    days: int


@pytest.fixture
def client(scheduled: Scheduled, stack: ModuleType) -> openai.AsyncOpenAI:
    http = scheduled.scheduler.http_async_client(stack)
    return openai.AsyncOpenAI(api_key="app", base_url="http://agentsched.invalid/v1", http_client=http)


@pytest.fixture
def sync(scheduled: Scheduled, stack: ModuleType) -> openai.OpenAI:
    http = scheduled.scheduler.http_client(stack)
    return openai.OpenAI(api_key="app", base_url="http://agentsched.invalid/v1", http_client=http)


async def test_async_chat(client: openai.AsyncOpenAI, scheduled: Scheduled) -> None:
    chat = client.chat.completions
    answer = await chat.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == HELLO
    assert answer._request_id is not None
    assert scheduled.scheduler.explain(answer._request_id).outcome == "completed"
    raw = await chat.with_raw_response.create(model=MODEL, messages=MESSAGES)
    assert raw.headers["x-agentsched-backend"]
    assert raw.parse().choices[0].message.content == HELLO
    async with chat.with_streaming_response.create(model=MODEL, messages=MESSAGES) as streaming:
        assert HELLO in await streaming.text()
    pieces = [c async for c in await chat.create(model=MODEL, messages=MESSAGES, stream=True)]
    assert "".join(c.choices[0].delta.content or "" for c in pieces) == HELLO
    async with chat.stream(model=MODEL, messages=MESSAGES) as events:
        assert (await events.get_final_completion()).choices[0].message.content == HELLO
    called = await chat.create(model=MODEL, messages=MESSAGES, tools=[TOOL])
    assert json.loads(called.choices[0].message.tool_calls[0].function.arguments) == TRIP  # type: ignore[union-attr,index]
    parsed = await chat.parse(model=MODEL, messages=MESSAGES, response_format=Trip)
    assert parsed.choices[0].message.parsed == Trip(**TRIP)
    short = client.with_options(timeout=3.0, max_retries=0).chat.completions
    assert (await short.create(model=MODEL, messages=MESSAGES)).choices[0].message.content == HELLO


async def test_async_responses_and_embeddings(client: openai.AsyncOpenAI) -> None:
    assert (await client.responses.create(model=MODEL, input="Hi")).output_text == HELLO
    kinds = [e.type async for e in await client.responses.create(model=MODEL, input="Hi", stream=True)]
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    async with client.responses.stream(model=MODEL, input="Hi") as events:
        assert (await events.get_final_response()).output_text == HELLO
    parsed = await client.responses.parse(model=MODEL, input="Hi", text_format=Trip)
    assert parsed.output_parsed == Trip(**TRIP)
    embedded = await client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [e.embedding for e in embedded.data] == [[0.25, -1.0]] * 2


def test_sync_chat(sync: openai.OpenAI) -> None:
    chat = sync.chat.completions
    answer = chat.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == HELLO
    assert answer._request_id is not None
    assert chat.with_raw_response.create(model=MODEL, messages=MESSAGES).headers["x-agentsched-backend"]
    pieces = [*chat.create(model=MODEL, messages=MESSAGES, stream=True)]
    assert "".join(c.choices[0].delta.content or "" for c in pieces) == HELLO
    with chat.stream(model=MODEL, messages=MESSAGES) as events:
        assert events.get_final_completion().choices[0].message.content == HELLO
    called = chat.create(model=MODEL, messages=MESSAGES, tools=[TOOL])
    assert called.choices[0].finish_reason == "tool_calls"
    assert chat.parse(model=MODEL, messages=MESSAGES, response_format=Trip).choices[0].message.parsed == Trip(
        **TRIP
    )


def test_sync_responses_and_embeddings(sync: openai.OpenAI) -> None:
    assert sync.responses.create(model=MODEL, input="Hi").output_text == HELLO
    kinds = [e.type for e in sync.responses.create(model=MODEL, input="Hi", stream=True)]
    assert kinds[-1] == "response.completed"
    assert sync.responses.parse(model=MODEL, input="Hi", text_format=Trip).output_parsed == Trip(**TRIP)
    assert len(sync.embeddings.create(model=MODEL, input="a").data[0].embedding) == 2
