"""Cases of apps around the scheduler: a sync call in a running loop, a browser that leaves, cancel scopes."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import anyio
import httpx
import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from langgraph.graph import END, START, StateGraph

from agentsched import Backend, Scheduler, step
from tests.doubles import ASK, MODEL, Rig, Script, assert_idle, begun, delta, events, said, upstream

LONG = 10_000


async def test_case_73_a_sync_wrapper_inside_a_running_loop() -> None:
    """As in a notebook's cell: the call is served, and belongs to the query and step around it."""
    async with Scheduler(
        [Backend("http://b:1/v1", models=[MODEL])], upstream=upstream(httpx2, said("hi"))
    ) as scheduler:

        def helper() -> Any:
            return scheduler.openai_sync().chat.completions.create(**ASK)

        async with scheduler.query("cell"):
            with step("draft"):
                answer = helper()
        assert answer.choices[0].message.content == "hi"
        facts = scheduler.explain(answer._request_id).entries[0].facts
        assert (facts["workflow"], facts["step"]) == ("cell", "draft")


class State(TypedDict):
    said: str


def nested_graph(scheduler: Scheduler) -> Any:
    """A graph whose node runs another graph whose node calls the model."""

    async def call(_: State) -> dict[str, str]:
        stream = await scheduler.openai().chat.completions.create(**ASK, stream=True)
        return {"said": "".join([chunk.choices[0].delta.content or "" async for chunk in stream])}

    def around(node: Any) -> Any:
        graph = StateGraph(State)
        graph.add_node("node", node)
        graph.add_edge(START, "node")
        graph.add_edge("node", END)
        return graph.compile()

    inner = around(call)

    async def run_inner(state: State) -> Any:
        return await inner.ainvoke(state)

    return around(run_inner)


def endless() -> Script:
    """An answer that goes on for minutes; it waits on real timers, in small steps."""
    return events(*[delta("word "), 0.01] * 30_000, done=False)


async def test_case_74_a_browser_leaves_while_a_nested_graph_calls_the_model() -> None:
    """FastAPI over a real socket: all upstream connections of the run are closed, and its room free, in 0.5 s."""
    transport = upstream(httpx2, endless())
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL], max_concurrency=1)], upstream=transport)
    graph, app = nested_graph(scheduler), FastAPI()

    @app.get("/ask")
    async def ask() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"one moment\n"
            found = await graph.ainvoke({"said": ""})
            yield found["said"].encode()

        return StreamingResponse(pieces())

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(trust_env=False) as browser, scheduler:
        async with browser.stream("GET", f"http://127.0.0.1:{port}/ask") as answer:
            body = answer.aiter_bytes()
            await anext(body)
            while not transport.seen.open:
                await asyncio.sleep(0.01)
        left = time.monotonic()
        while transport.seen.open or scheduler.snapshot().running:
            assert time.monotonic() < left + 0.5
            await asyncio.sleep(0.01)
        assert_idle(scheduler)
        server.should_exit = True
        await serving


def test_case_74_a_plain_task_that_is_cancelled() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        run = asyncio.create_task(nested_graph(rig.scheduler).ainvoke({"said": ""}))
        while not rig.in_flight:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await asyncio.sleep(0.01)
        assert rig.in_flight == 0
        assert (await rig.say()).choices[0].message.content

    rig.run(main)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("queued", [False, True])
def test_a_cancel_scope_ends_what_is_inside(stream: bool, queued: bool) -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        other = rig.begun(LONG) if queued else None
        await begun()
        with anyio.move_on_after(2) as scope:
            answer = await rig.say(LONG, stream=stream)
            async for _ in answer:
                pass
        assert scope.cancelled_caught
        assert rig.clock() == pytest.approx(2, abs=0.1)
        await asyncio.sleep(0.01)
        assert rig.scheduler.snapshot().queued == 0
        assert rig.in_flight == (other is not None)
        if other is not None:
            other.cancel()
            await asyncio.wait([other])

    rig.run(main)


def test_one_branch_that_fails_cancels_its_siblings() -> None:
    rig = Rig(1, limit=3)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with anyio.create_task_group() as group:
                group.start_soon(rig.say, LONG)
                group.start_soon(rig.say, LONG)
                group.start_soon(fails)
        assert rig.clock() == pytest.approx(1, abs=0.1)
        await asyncio.sleep(0.01)
        assert rig.in_flight == 0

    rig.run(main)
