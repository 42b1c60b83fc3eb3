"""How did it go? Runs the agent on questions, several at a time, and compares its rows with the right ones.

Times are those of the event loop: model seconds where the servers are fakes in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from statistics import quantiles

from langgraph.graph.state import CompiledStateGraph
from openai import OpenAIError

from agentsched import AgentschedError

from .agent import Answer, Asked, State
from .bird import BirdQuestion
from .candidates import Candidate
from .executor import Executor
from .questions import Question

Agent = CompiledStateGraph[State, None, Asked, State]
Query = Callable[[], AbstractAsyncContextManager[object]]
"""Opens one query: `lambda: scheduler.query("text2sql", slo_s=30)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One question's run."""

    question: Question | BirdQuestion
    seconds: float
    answer: Answer | None = None
    candidates: Sequence[Candidate] = ()
    correct: bool | None = None
    """None where there is nothing to compare with."""
    error: str | None = None
    """Why there is no answer at all."""

    @property
    def corrections(self) -> int:
        return sum(candidate.corrections for candidate in self.candidates)

    @property
    def calls(self) -> int:
        """Count the model calls: link, drafts, corrections, and the judge if it was asked."""
        if not self.answer:
            return 0
        return 1 + len(self.candidates) + self.corrections + (self.answer.chosen_by == "judge")


async def ask(agent: Agent, question: Question | BirdQuestion, executor: Executor, query: Query) -> Result:
    """Answer one question as one query; a failure of the servers becomes part of the result."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    asked = Asked(question=question.text, database=question.database, evidence=question.evidence)
    try:
        async with query():
            state = await agent.ainvoke(asked)
    except (AgentschedError, OpenAIError) as error:
        return Result(question=question, seconds=clock() - begun, error=f"{type(error).__name__}: {error}")
    seconds = clock() - begun
    correct = None
    if isinstance(question, Question) and question.sql:
        right = await executor.execute(question.database, question.sql)
        correct = state["answer"].outcome.same_rows(right)
    return Result(
        question=question,
        seconds=seconds,
        answer=state["answer"],
        candidates=state["candidates"],
        correct=correct,
    )


async def ask_all(
    agent: Agent,
    questions: Sequence[Question | BirdQuestion],
    executor: Executor,
    query: Query,
    *,
    at_once: int,
) -> AsyncIterator[Result]:
    """Answer the questions, `at_once` of them at a time, and yield results as they come."""
    free = asyncio.Semaphore(at_once)

    async def one(question: Question | BirdQuestion) -> Result:
        async with free:
            return await ask(agent, question, executor, query)

    async with asyncio.TaskGroup() as group:
        for result in asyncio.as_completed([group.create_task(one(question)) for question in questions]):
            yield await result


def story(result: Result) -> str:
    """Tell one result in a few lines."""
    mark = {True: "right", False: "WRONG", None: "-"}[result.correct]
    question, answer = result.question, result.answer
    lines = [f"{question.id} [{question.difficulty}] {mark}, {result.seconds:.2f} s", f"  {question.text}"]
    if not answer:
        return "\n".join([*lines, f"  no answer: {result.error}"])
    lines += [f"  {line}" for line in answer.sql.splitlines()]
    lines += [f"  | {line}" for line in str(answer.outcome).splitlines()]
    lines.append(f"  {result.calls} calls, {result.corrections} corrections, chosen by {answer.chosen_by}")
    return "\n".join(lines)


def table(results: Sequence[Result]) -> str:
    """Sum up the results by difficulty."""
    levels = sorted({result.question.difficulty for result in results})
    rows = [_row(level, [r for r in results if r.question.difficulty == level]) for level in levels]
    head = "difficulty    questions  failed  accuracy  calls  corrections   p50 s   p95 s"
    return "\n".join([head, *rows, _row("all", results)])


def _row(level: str, results: Sequence[Result]) -> str:
    failed = sum(result.answer is None for result in results)
    judged = [result.correct for result in results if result.correct is not None]
    accuracy = f"{sum(judged)}/{len(judged)}" if judged else "-"
    calls = sum(result.calls for result in results)
    corrections = sum(result.corrections for result in results)
    seconds = [result.seconds for result in results]
    cuts = quantiles(seconds, n=20, method="inclusive") if len(seconds) > 1 else seconds * 19
    counts = f"{len(results):>11}{failed:>8}{accuracy:>10}{calls:>7}{corrections:>13}"
    return f"{level:<12}{counts}{cuts[9]:>8.2f}{cuts[18]:>8.2f}"
