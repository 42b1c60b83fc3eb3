"""LlamaIndex's OpenAI models and workflows' agents, and instructor: installed beside openai 2 only."""

import asyncio
from typing import Any

import pytest

from tests.clients.conftest import Scheduled
from tests.clients.model import HELLO, MODEL, TRIP, WEATHER
from tests.clients.test_context import Asker
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


async def test_workflows_take_query_and_step_along(llm: Any, scheduled: Scheduled) -> None:
    """Fanned-out steps, a sync one, and an agent's own tool."""
    from llama_index.core.agent.workflow import FunctionAgent
    from workflows import Context, Workflow
    from workflows import step as workflow_step
    from workflows.events import Event, StartEvent, StopEvent

    asker = Asker(scheduled)

    class Part(Event):
        pass

    class Done(Event):
        pass

    class Fan(Workflow):
        @workflow_step
        async def split(self, ctx: Context, ev: StartEvent) -> Part | None:
            for _ in range(3):
                ctx.send_event(Part())
            return None

        @workflow_step(num_workers=3)
        async def work(self, ev: Part) -> Done:
            await asker.inside()
            return Done()

        @workflow_step
        def join(self, ctx: Context, ev: Done) -> StopEvent | None:
            if ctx.collect_events(ev, [Done] * 3) is None:
                return None  # the run would end before the others are done
            asker.ask_sync()
            return StopEvent()

    async def ask(city: str, days: int) -> str:
        """Plan a trip."""
        await asker.ask()
        return city

    async with asker.scheduler.query("outer"):
        await Fan().run()
        await FunctionAgent(tools=[ask], llm=llm, streaming=False).run("Hi")
    assert {workflow for workflow, _ in asker.found} == {"outer"}
    assert asker.found.count(("outer", "inner")) == 3
    assert len(asker.found) >= 5
