"""Deep research: plan, look into several sub-questions at once, each with one tool after the other, report.

What the agent writes (plans, calls of tools, findings, one huge report) and what tools find is drawn from the
messages of 13 published threads of DeerFlow; its system prompt with the tools' schemas has the length of the
first call in a timed trace of it, and a web search takes 1.9 s and a fetch 0.2 s there, with an assumed spread.
Assumed are the fan-out (the threads themselves work serially): three to five sub-questions, one to four
tools for each after the first search, which with these threads' 18 calls a query in the median agrees; and that
topics (those of Arena-Hard) and their sub-questions come up by Zipf's law. The first search for a sub-question finds
the same each time, so that reading it twice is the same work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import log
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece
from benchmarks.policy import data
from benchmarks.policy.data import Research, prompts
from benchmarks.policy.draws import Odds, tag
from benchmarks.policy.prompts import Draft, shared

SYSTEM = shared("deep research: system prompt and schemas of tools", 9_780)
POPULARITY = 0.8
SUB_QUESTIONS_PER_TOPIC = 8
SUB_QUESTIONS = (3, 5)
TOOLS = (1, 4)
TOPIC_TOKENS, SUB_QUESTION_TOKENS = 25, 30
SEARCH_S, FETCH_S, TOOL_SIGMA = 1.9, 0.2, 0.5
SEARCH_SHARE = 33 / 49
"""Of the searches and fetches in the threads."""


@dataclass(frozen=True, slots=True)
class SubQuestion:
    """A sub-question, what the first search for it finds, and how many tokens sum that up."""

    piece: Piece
    found: Piece
    summary: int


@cache
def _topics() -> tuple[tuple[Piece, tuple[SubQuestion, ...]], ...]:
    """Return the topics, the most popular first, each with its sub-questions in that order."""
    names = sorted({prompt.group for prompt in prompts("arena_hard_v01", "gpt-4-0314", "greedy")})
    Random("research: which are popular").shuffle(names)
    return tuple((Piece(f"Write a report on {name}", TOPIC_TOKENS), _sub_questions(name)) for name in names)


def _sub_questions(topic: str) -> tuple[SubQuestion, ...]:
    dice, measured = Random(f"research: {topic}"), data.research()
    return tuple(
        SubQuestion(
            Piece(f"Question {number} about {topic}", SUB_QUESTION_TOKENS),
            Piece(f"What a search finds on question {number} about {topic}", dice.choice(measured.searches)),
            dice.choice(measured.texts),
        )
        for number in range(SUB_QUESTIONS_PER_TOPIC)
    )


def research(dice: Random) -> Iterator[Plan]:
    """Write one report after the other."""
    topics, measured = _topics(), data.research()
    popular = Odds.zipf(len(topics), POPULARITY)
    asked = Odds.zipf(SUB_QUESTIONS_PER_TOPIC, POPULARITY)
    while True:
        topic, known = topics[popular.draw(dice)]
        draft = Draft("research", tag(dice))
        planned = dice.choice(measured.plans)
        plan = draft.call("plan", (SYSTEM, topic), planned)
        chosen = asked.sample(dice, dice.randint(*SUB_QUESTIONS))
        looked = [_look_into(dice, draft, known[number], number, plan) for number in chosen]
        body = (SYSTEM, topic, draft.own("plan", planned), *(piece for _, piece in looked))
        draft.call("report", body, dice.choice(measured.reports), after=tuple(end for end, _ in looked))
        yield draft.plan()


def _look_into(
    dice: Random, draft: Draft, question: SubQuestion, number: int, after: int
) -> tuple[int, Piece]:
    """Add the calls for a sub-question; return the last one and what it finds."""
    measured = data.research()
    body = (SYSTEM, question.piece, question.found)
    signature = f"research read {question.found.text}"
    search_s = _tool_s(dice, SEARCH_S)
    at = draft.call("read", body, question.summary, after=(after,), delay_s=search_s, signature=signature)
    body = (*body, draft.own(f"summary {number}", question.summary))
    delay_s = 0.0
    for turn in range(dice.randint(*TOOLS)):
        called = dice.choice(measured.calls)
        at = draft.call("choose_tool", body, called, after=(at,), delay_s=delay_s)
        delay_s, seen = _use(dice, measured)
        body = (*body, draft.own(f"call {number}.{turn}", called), draft.own(f"result {number}.{turn}", seen))
    tokens = dice.choice(measured.texts)
    at = draft.call("findings", body, tokens, after=(at,), delay_s=delay_s)
    return at, draft.own(f"findings {number}", tokens)


def _use(dice: Random, measured: Research) -> tuple[float, int]:
    """Return how long a tool takes, in seconds, and how many tokens it finds."""
    if dice.random() < SEARCH_SHARE:
        return _tool_s(dice, SEARCH_S), dice.choice(measured.searches)
    return _tool_s(dice, FETCH_S), dice.choice(measured.fetches)


def _tool_s(dice: Random, median_s: float) -> float:
    return dice.lognormvariate(log(median_s), TOOL_SIGMA)
