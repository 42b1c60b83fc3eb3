"""How is a question answered? A LangGraph agent that asks a model for SQL and lets the database have its say.

    link --> candidate 1: draft -> execute -> (correct -> execute)* --> evaluate --> answer
         \\-> candidate 2: draft -> execute -> (correct -> execute)* -/

`link` picks tables and columns. Each candidate is a run of its own sub-graph, so a quick one never waits for
a slow one: it drafts SQL, runs it, and corrects it by what the database said, a bounded number of times.
`evaluate` lets the results vote and asks the model only where they disagree.

The agent knows nothing about scheduling and takes any `ChatOpenAI`. `@step` names its steps for agentsched;
outside a query of a scheduler it passes straight through.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send

from agentsched import step

from . import answers, prompts, questions
from .candidates import Candidate, Trial, agreeing
from .executor import Executor, Outcome

MAX_CANDIDATES = 8
MAX_CORRECTIONS = 3
"""What three tries do not repair, more tries rarely do: the model goes round in circles."""
TEMPERATURE = 0.7
"""Warm enough for candidates to differ; what has one right answer is asked at 0."""

Linked = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The chosen SQL and its rows, or the error that was left at the end."""

    sql: str
    outcome: Outcome
    chosen_by: Literal["only", "vote", "judge"]
    """`only`: nothing else was left; `vote`: most results agreed; `judge`: the model was asked."""


class Asked(TypedDict):
    """What the user gives."""

    question: str
    database: str
    evidence: NotRequired[str]


class State(Asked):
    """What a run knows."""

    linked: NotRequired[Linked]
    candidates: Annotated[list[Candidate], operator.add]
    answer: NotRequired[Answer]


class Line(Asked):
    """What the run of one candidate knows."""

    number: int
    linked: Linked
    pending: NotRequired[str]
    """SQL that is yet to be run."""
    trials: Annotated[list[Trial], operator.add]


class Finished(TypedDict):
    """What the run of one candidate hands back."""

    candidates: list[Candidate]


class Steps:
    """The steps of the agent, over one model and one executor."""

    def __init__(self, llm: ChatOpenAI, executor: Executor, examples: Callable[[str], str]) -> None:
        self._exact = llm.bind(temperature=0)
        self._varied = llm.bind(temperature=TEMPERATURE)
        self._executor = executor
        self._examples = examples

    @step
    async def link(self, state: State) -> dict[str, Linked]:
        answer = await self._exact.ainvoke(prompts.link(self._asked(state)))
        return {"linked": answers.tables(answer.text)}

    @step
    async def draft(self, state: Line) -> dict[str, str]:
        prompt = prompts.draft(
            self._asked(state),
            examples=self._examples(state["database"]),
            linked=state["linked"],
            candidate=state["number"],
        )
        answer = await self._varied.ainvoke(prompt)
        return {"pending": answers.sql(answer.text)}

    @step
    async def execute(self, state: Line) -> dict[str, list[Trial]]:
        sql = state.get("pending", "")
        return {"trials": [Trial(sql, await self._executor.execute(state["database"], sql))]}

    @step
    async def correct(self, state: Line) -> dict[str, str]:
        prompt = prompts.correct(self._asked(state), trials=state["trials"], candidate=state["number"])
        answer = await self._varied.ainvoke(prompt)
        return {"pending": answers.sql(answer.text)}

    @step
    async def evaluate(self, state: State) -> dict[str, Answer]:
        groups = agreeing(state["candidates"])
        rivals = [group[0] for group in groups]
        if sum(map(len, groups)) == 1:
            return _answer(rivals[0], "only")
        if 2 * len(groups[0]) > sum(map(len, groups)):
            return _answer(rivals[0], "vote")
        answer = await self._exact.ainvoke(prompts.evaluate(self._asked(state), rivals))
        chosen = answers.choice(answer.text, among=len(rivals))
        return _answer(rivals[chosen or 0], "judge")

    def _asked(self, asked: Asked) -> prompts.Asked:
        schema = self._executor.schema(asked["database"])
        return prompts.Asked(asked["question"], asked.get("evidence", ""), schema)


def _answer(trial: Trial, chosen_by: Literal["only", "vote", "judge"]) -> dict[str, Answer]:
    return {"answer": Answer(trial.sql, trial.outcome, chosen_by)}


def build(
    llm: ChatOpenAI,
    executor: Executor,
    *,
    candidates: int = 2,
    max_corrections: int = MAX_CORRECTIONS,
    examples: Callable[[str], str] = questions.examples,
) -> CompiledStateGraph[State, None, Asked, State]:
    """Build the agent; run it with `await agent.ainvoke({"question": …, "database": …, "evidence": …})`.

    `examples` gives the few-shot block for a database; pass your own, or `lambda database: ""` for none.
    """
    if not 1 <= candidates <= MAX_CANDIDATES:
        raise ValueError(f"candidates must be between 1 and {MAX_CANDIDATES}, not {candidates}")
    steps = Steps(llm, executor, examples)

    async def fan_out(state: State) -> list[Send]:
        line = Line(
            question=state["question"],
            database=state["database"],
            evidence=state.get("evidence", ""),
            linked=state.get("linked", {}),
            number=0,
            trials=[],
        )
        return [Send("candidate", {**line, "number": number}) for number in range(candidates)]

    graph = StateGraph(State, input_schema=Asked)
    graph.add_node("link", steps.link)
    graph.add_node("candidate", _candidate(steps, max_corrections))
    graph.add_node("evaluate", steps.evaluate)
    graph.add_edge(START, "link")
    graph.add_conditional_edges("link", fan_out, ["candidate"])
    graph.add_edge("candidate", "evaluate")
    graph.add_edge("evaluate", END)
    return graph.compile()


def _candidate(steps: Steps, max_corrections: int) -> CompiledStateGraph[Line, None, Line, Finished]:
    async def verdict(state: Line) -> Literal["correct", "finish"]:
        failed = state["trials"][-1].outcome.complaint
        return "correct" if failed and len(state["trials"]) <= max_corrections else "finish"

    async def finish(state: Line) -> Finished:
        return {"candidates": [Candidate(state["number"], tuple(state["trials"]))]}

    graph = StateGraph(Line, output_schema=Finished)
    graph.add_node("draft", steps.draft)
    graph.add_node("execute", steps.execute)
    graph.add_node("correct", steps.correct)
    graph.add_node("finish", finish)
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "execute")
    graph.add_conditional_edges("execute", verdict, ["correct", "finish"])
    graph.add_edge("correct", "execute")
    graph.add_edge("finish", END)
    return graph.compile()
