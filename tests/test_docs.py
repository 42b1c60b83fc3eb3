"""What the documents show runs."""

import ast
import asyncio
import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

import agentsched
from agentsched.testing import FakeFleet, VirtualClock

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MESSAGES = [{"role": "user", "content": "Where is my parcel?"}]


def run(source: str, names: dict[str, Any], clock: VirtualClock) -> dict[str, Any]:
    """Execute a block of a document, with await where it stands alone."""
    code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def block() -> None:
        waiting = eval(code, names)
        if inspect.isawaitable(waiting):
            await waiting

    clock.run(block())
    return names


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], VirtualClock, FakeFleet]:
    """Return the names that a reader has: our servers are fakes that answer at any address."""
    clock, fleet = VirtualClock(), FakeFleet.fast(2, models=("qwen3", "Qwen/Qwen3-32B-AWQ"))
    for fake, host in zip(fleet, "ab", strict=True):
        monkeypatch.setattr(fake, "base_url", f"http://gpu-{host}:8000/v1", raising=False)
    scheduler = partial(agentsched.Scheduler, upstream=fleet.transport(), clock=clock)
    monkeypatch.setattr(agentsched, "Scheduler", scheduler)
    return {"ChatOpenAI": ChatOpenAI, "messages": MESSAGES, "key": "secret"}, clock, fleet


def test_there_are_four_blocks() -> None:
    assert len(BLOCKS) == 4


def test_the_first_screen_runs(stage: tuple[dict[str, Any], VirtualClock, FakeFleet]) -> None:
    names, clock, _ = stage
    answer = run(BLOCKS[0], names, clock)["answer"]
    assert answer.choices[0].message.content


def test_the_fleet_of_ones_own_can_be_built(stage: tuple[dict[str, Any], VirtualClock, FakeFleet]) -> None:
    names, clock, _ = stage
    run(BLOCKS[0].split("\n\n")[0] + "\n" + BLOCKS[1], names, clock)


def test_the_test_of_an_agent_runs() -> None:
    async def my_agent(scheduler: agentsched.Scheduler) -> None:
        client = scheduler.openai()
        ask = client.chat.completions.create
        await asyncio.gather(*(ask(model="qwen3", messages=MESSAGES) for _ in range(50)))
        await scheduler.aclose()

    names: dict[str, Any] = {"my_agent": my_agent}
    exec(BLOCKS[2], names)
    names["test_my_agent"]()


def test_the_fakes_say_and_fail_as_they_are_told() -> None:
    names: dict[str, Any] = {}
    exec(BLOCKS[3], names)
    clock, fleet = VirtualClock(), names["fleet"]
    ask = [{"role": "user", "content": "the answer?"}]

    async def main(scheduler: agentsched.Scheduler) -> list[str | None]:
        create = scheduler.openai().chat.completions.create
        answers = [await create(model="fake-model", messages=ask) for _ in range(6)]
        await scheduler.aclose()
        return [answer.choices[0].message.content for answer in answers]

    fleet.heal()
    fleet["fake-1"].fail(names["faults"].Status(code=429, retry_after_s=2), nth=1)
    backends = [agentsched.Backend(fake.base_url, models=["fake-model"]) for fake in fleet]
    scheduler = agentsched.Scheduler(backends, upstream=fleet.transport(), clock=clock)
    assert clock.run(main(scheduler)) == ["42"] * 6
    assert scheduler.snapshot().backends[0].failed == 1


def test_files_that_are_linked_exist() -> None:
    documents = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "docs/adr/README.md"]
    for document in documents:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links {target}"


def test_the_figures_of_the_readme_are_those_of_the_bench() -> None:
    quoted = README.partition("<!-- bench -->")[2].partition("<!-- /bench -->")[0].split("\n")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8").split("\n")
    rows = [line for line in quoted if line.startswith("|")]
    assert len(rows) == 2 + 8
    assert set(rows) <= set(page)
