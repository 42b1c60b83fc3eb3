"""Which ways of running code take the query and the step along, and which three do not."""

import asyncio
import operator
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import anyio
import anyio.to_thread
import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from agentsched import step
from tests.clients.conftest import Scheduled
from tests.clients.model import MODEL
from tests.clients.test_openai import MESSAGES

Where = tuple[str | None, str | None]
"""The workflow and the step that a call was made in."""


class Asker:
    """Makes calls and notes where each of them belonged."""

    def __init__(self, scheduled: Scheduled) -> None:
        self.scheduler = scheduled.scheduler
        self.async_client = self.scheduler.openai()
        self.sync_client = self.scheduler.openai_sync()
        self.found: list[Where] = []

    def note(self, request_id: str | None) -> None:
        assert request_id is not None
        facts: Any = self.scheduler.explain(request_id).entries[0].facts
        self.found.append((facts["workflow"], facts["step"]))

    async def ask(self, *_: Any) -> dict[str, Any]:
        answer = await self.async_client.chat.completions.create(model=MODEL, messages=MESSAGES)
        self.note(answer._request_id)
        return {"said": ["x"]}

    def ask_sync(self, *_: Any) -> dict[str, Any]:
        answer = self.sync_client.chat.completions.create(model=MODEL, messages=MESSAGES)
        self.note(answer._request_id)
        return {"said": ["x"]}

    async def inside(self, *_: Any) -> dict[str, Any]:
        """Ask in a step that the code opens just before."""
        with step("inner"):
            return await self.ask()

    def inside_sync(self, *_: Any) -> dict[str, Any]:
        with step("inner"):
            return self.ask_sync()


@pytest.fixture
def asker(scheduled: Scheduled) -> Asker:
    return Asker(scheduled)


# -- plain Python -------------------------------------------------------------------------------------


async def _gather(a: Asker) -> None:
    await asyncio.gather(a.ask(), a.ask())


async def _task_group(a: Asker) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(a.ask())


async def _anyio_group(a: Asker) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(a.ask)


async def _to_thread(a: Asker) -> None:
    await asyncio.to_thread(a.ask_sync)


async def _anyio_thread(a: Asker) -> None:
    await anyio.to_thread.run_sync(a.ask_sync)


async def _run_in_thread(a: Asker) -> None:
    await asyncio.to_thread(lambda: asyncio.run(a.ask()))


async def _on_the_loop(a: Asker) -> None:
    a.ask_sync()


async def _executor(a: Asker) -> None:
    await asyncio.get_running_loop().run_in_executor(None, a.ask_sync)


async def _submitted(a: Asker) -> None:
    with ThreadPoolExecutor(1) as pool:
        await asyncio.wrap_future(pool.submit(a.ask_sync))


async def _thread(a: Asker) -> None:
    thread = threading.Thread(target=a.ask_sync)
    thread.start()
    await asyncio.to_thread(thread.join)


Way = Callable[[Asker], Awaitable[None]]
TAKEN: list[Way] = [
    _gather,
    _task_group,
    _anyio_group,
    _to_thread,
    _anyio_thread,
    _run_in_thread,
    _on_the_loop,
]
LOST: list[Way] = [_executor, _submitted, _thread]


@pytest.mark.parametrize("way", TAKEN)
async def test_python_takes_it_along(asker: Asker, way: Way) -> None:
    async with asker.scheduler.query("outer"):
        with step("outer step"):
            await way(asker)
    assert asker.found
    assert set(asker.found) == {("outer", "outer step")}


@pytest.mark.parametrize("way", LOST)
async def test_bare_threads_do_not(asker: Asker, way: Way) -> None:
    """As the README says: start them with `contextvars.copy_context().run`, or use `asyncio.to_thread`."""
    async with asker.scheduler.query("outer"):
        await way(asker)
    assert asker.found == [(None, None)]


# -- LangGraph ----------------------------------------------------------------------------------------


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def graph_of(**nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    """Nodes side by side."""
    graph: Any = StateGraph(State)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph


async def _ainvoke(a: Asker, graph: Any) -> None:
    await graph.ainvoke({"said": []})


async def _astream(a: Asker, graph: Any) -> None:
    for mode in ("updates", "messages"):
        async for _ in graph.astream({"said": []}, stream_mode=mode):
            pass


async def _astream_events(a: Asker, graph: Any) -> None:
    async for _ in graph.astream_events({"said": []}, version="v2"):
        pass


async def _invoke_in_thread(a: Asker, graph: Any) -> None:
    await asyncio.to_thread(graph.invoke, {"said": []})


async def _invoke_on_the_loop(a: Asker, graph: Any) -> None:
    graph.invoke({"said": []})


NODES = [
    (False, _ainvoke),
    (False, _astream),
    (False, _astream_events),
    (True, _ainvoke),
    (True, _invoke_in_thread),
    (True, _invoke_on_the_loop),
]


@pytest.mark.parametrize(("sync", "run"), NODES)
async def test_nodes_side_by_side(asker: Asker, sync: bool, run: Any) -> None:
    ask, inside = (asker.ask_sync, asker.inside_sync) if sync else (asker.ask, asker.inside)
    graph = graph_of(left=ask, right=ask, own=inside).compile()
    async with asker.scheduler.query("outer"):
        await run(asker, graph)
    assert set(asker.found) == {("outer", "left"), ("outer", "right"), ("outer", "inner")}


@pytest.mark.parametrize("sync", [False, True])
async def test_a_node_sent_to_three_times(asker: Asker, sync: bool) -> None:
    graph: Any = StateGraph(State)
    graph.add_node("each", asker.ask_sync if sync else asker.ask)
    graph.add_conditional_edges(START, lambda _: [Send("each", {"said": []})] * 3, ["each"])
    async with asker.scheduler.query("outer"):
        await graph.compile().ainvoke({"said": []})
    assert asker.found == [("outer", "each")] * 3


async def test_sub_graphs(asker: Asker) -> None:
    inner = graph_of(deep=asker.ask).compile()

    async def calls_it(state: Any) -> Any:
        return await inner.ainvoke(state)

    async with asker.scheduler.query("outer"):
        await graph_of(sub=inner, caller=calls_it).compile().ainvoke({"said": []})
    assert asker.found == [("outer", "deep")] * 2


async def test_a_step_of_one_node_is_not_the_next_ones(asker: Asker) -> None:
    graph: Any = StateGraph(State)
    graph.add_node("first", asker.inside)
    graph.add_node("second", asker.ask)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    async with asker.scheduler.query("outer"):
        await graph.compile().ainvoke({"said": []})
    assert asker.found == [("outer", "inner"), ("outer", "second")]


async def test_entrypoints_and_tasks(asker: Asker) -> None:
    once, once_sync = task(asker.ask), task(asker.ask_sync)

    @entrypoint()
    async def main(_: int) -> int:
        await once(1)
        return 1

    @entrypoint()
    def main_sync(_: int) -> int:
        once_sync(1).result()
        return 1

    async with asker.scheduler.query("outer"):
        await main.ainvoke(1)
        await asyncio.to_thread(main_sync.invoke, 1)
    assert asker.found == [("outer", "ask"), ("outer", "ask_sync")]


async def test_runnables(asker: Asker) -> None:
    both = RunnableParallel(a=RunnableLambda(asker.ask), b=RunnableLambda(asker.ask_sync, asker.ask))
    async with asker.scheduler.query("outer"):
        await both.ainvoke(1)
        await RunnableLambda(asker.ask_sync).ainvoke(1)
        await RunnableLambda(asker.ask_sync, asker.ask).abatch([1, 2])
        await asyncio.to_thread(RunnableLambda(asker.ask_sync).batch, [1, 2])
    assert asker.found == [("outer", None)] * 7


async def test_an_agents_model_and_tool_calls(asker: Asker, scheduled: Scheduled) -> None:
    @tool
    async def plan(city: str, days: int) -> str:
        """Plan a trip."""
        await asker.ask()
        return f"{days} days in {city}"

    ids: list[str] = []
    llm = ChatOpenAI(model=MODEL, include_response_headers=True, **asker.scheduler.client_kwargs())
    async with asker.scheduler.query("outer"):
        result = await create_agent(llm, [plan]).ainvoke({"messages": [("user", "Hi")]})
    ids = [m.response_metadata["headers"]["x-request-id"] for m in result["messages"] if m.type == "ai"]
    for request_id in ids:
        asker.note(request_id)
    assert sorted(map(str, asker.found)) == sorted(map(str, [("outer", "model")] * 2 + [("outer", "tools")]))
