"""LangGraph around the scheduler: its node timeouts, its cancellation."""

import asyncio
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langgraph.errors import NodeTimeoutError
from langgraph.graph import END, START, StateGraph
from langgraph.types import TimeoutPolicy

from tests.doubles import Rig, begun, outcome


class State(TypedDict):
    said: str


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """One slot, and LangGraph's clock in virtual time like the loop's timers."""
    rig = Rig(1, limit=1)
    monkeypatch.setattr(
        "langgraph.pregel._retry.time", SimpleNamespace(**{**vars(time), "monotonic": rig.clock})
    )
    return rig


def graph_of(rig: Rig, timeout: TimeoutPolicy, tokens: int = 3) -> Any:
    """A graph of one node that makes one call."""

    async def node(_: State) -> dict[str, str]:
        answer = await rig.say(tokens)
        return {"said": answer.choices[0].message.content}

    graph = StateGraph(State)
    graph.add_node("node", node, timeout=timeout)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


def test_time_in_the_queue_is_no_idleness(rig: Rig) -> None:
    async def main() -> None:
        long = rig.begun(4_000)  # 20 s
        await begun()
        graph = graph_of(rig, TimeoutPolicy(idle_timeout=timedelta(seconds=2)))
        assert (await graph.ainvoke({"said": ""}))["said"]
        assert rig.clock() > 20
        await long

    rig.run(main)


def test_an_idle_backend_is_idleness(rig: Rig) -> None:
    async def main() -> None:
        graph = graph_of(rig, TimeoutPolicy(idle_timeout=timedelta(seconds=2)), tokens=4_000)
        assert isinstance(await outcome(graph.ainvoke({"said": ""})), NodeTimeoutError)
        assert rig.clock() == pytest.approx(2, abs=0.5)

    rig.run(main)


def test_the_run_timeout_counts_the_queue(rig: Rig) -> None:
    async def main() -> None:
        long = rig.begun(4_000)
        await begun()
        graph = graph_of(rig, TimeoutPolicy(run_timeout=timedelta(seconds=3)))
        assert isinstance(await outcome(graph.ainvoke({"said": ""})), NodeTimeoutError)
        assert rig.scheduler.snapshot().queued == 0
        long.cancel()
        await asyncio.wait([long])

    rig.run(main)
