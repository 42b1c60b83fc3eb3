"""Agent frameworks that take a client: pydantic-ai and the OpenAI Agents SDK."""

from types import ModuleType
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.openai import OpenAIResponsesModel as PydanticResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL, TRIP, WEATHER
from tests.clients.test_openai import Trip

set_tracing_disabled(True)


def plan(city: str, days: int) -> str:
    """Plan a trip."""
    return f"{days} days in {city}"


@pytest.mark.parametrize("kind", [OpenAIChatModel, PydanticResponsesModel])
async def test_pydantic_ai(scheduled: Scheduled, stack: ModuleType, kind: Any) -> None:
    provider = OpenAIProvider(openai_client=scheduled.scheduler.openai())
    model = kind(MODEL, provider=provider)
    assert (await PydanticAgent(model).run("Hi")).output == HELLO
    async with PydanticAgent(model).run_stream("Hi") as streamed:
        assert await streamed.get_output() == HELLO
    assert (await PydanticAgent(model, tools=[plan]).run("Hi")).output == WEATHER
    assert (await PydanticAgent(model, output_type=Trip).run("Hi")).output == Trip(**TRIP)
    assert len(scheduled.bodies) == 5


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
async def test_openai_agents(scheduled: Scheduled, stack: ModuleType, kind: Any) -> None:
    http = scheduled.scheduler.http_async_client(stack)
    client = openai.AsyncOpenAI(api_key="app", base_url="http://agentsched.invalid/v1", http_client=http)
    model = kind(model=MODEL, openai_client=client)
    assert (await Runner.run(Agent(name="a", model=model), "Hi")).final_output == HELLO
    tools = [function_tool(plan)]
    assert (await Runner.run(Agent(name="a", model=model, tools=tools), "Hi")).final_output == WEATHER
    streamed = Runner.run_streamed(Agent(name="a", model=model), "Hi")
    assert [event async for event in streamed.stream_events()]
    assert streamed.final_output == HELLO
    assert len(scheduled.bodies) == 4
