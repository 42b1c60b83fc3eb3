"""ReAct agents that answer questions by searching: a thought, an action, a search, and again, with all before it.

Every question, with the tokens of each call and of what was found in between, is a real one of the logs
published with Reflexion (HotPotQA), from either run. Of a question's trials the first is taken and those that
begin with a reflection; most others are exact repeats. The questions' text is not in the data.

A search takes 0.6 s in the median, between the 0.2 s of a fetch and the 1.9 s of a web search that were timed
in a trace of DeerFlow (github.com/bytedance/deer-flow); the spread is assumed.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from math import log
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece, tokens_of
from benchmarks.policy import data
from benchmarks.policy.data import ReactCall
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import Draft, shared

TEMPLATE_TOKENS = 1_600
"""Of the instructions and the examples."""
SEARCH_S, SEARCH_SIGMA = 0.6, 0.6


@cache
def _questions() -> tuple[tuple[str, tuple[tuple[ReactCall, ...], ...]], ...]:
    """Return each question with its trials."""
    found: list[tuple[str, tuple[tuple[ReactCall, ...], ...]]] = []
    for (_, question), calls in data.react().items():
        numbers = list(dict.fromkeys(call.trial for call in calls))
        trials = [tuple(call for call in calls if call.trial == number) for number in numbers]
        kept = [trial for i, trial in enumerate(trials) if not i or trial[0].kind == "reflect"]
        found.append((question, tuple(kept)))
    return tuple(found)


def react(dice: Random) -> Iterator[Plan]:
    """Ask one question after the other, each as likely as any."""
    asked = _questions()
    while True:
        question, trials = dice.choice(asked)
        draft = Draft("react", tag(dice))
        after: tuple[int, ...] = ()
        for calls in trials:
            after = _trial(dice, draft, question, calls, after)
        yield draft.plan()


def _trial(
    dice: Random, draft: Draft, question: str, calls: Sequence[ReactCall], after: tuple[int, ...]
) -> tuple[int, ...]:
    if calls[0].kind == "reflect":
        body = _opening(
            "react template: reflection", f"question {question} and what was done", calls[0].prompt
        )
        after = (draft.call("reflect", body, calls[0].output, after=after),)
        calls = calls[1:]
    body = _opening("react template: question", f"question {question}", calls[0].prompt)
    delay_s = 0.0
    for number, call in enumerate(calls):
        grown = call.prompt - tokens_of(body)
        if grown > 0:
            body = (*body, draft.own(f"observation {number}", grown))
        after = (draft.call(call.kind, body, call.output, after=after, delay_s=delay_s),)
        body = (*body, draft.own(f"{call.kind} {number}", call.output))
        delay_s = dice.lognormvariate(log(SEARCH_S), SEARCH_SIGMA) if call.kind == "action" else 0.0
    return after


def _opening(template: str, rest: str, tokens: int) -> tuple[Piece, ...]:
    return shared(template, TEMPLATE_TOKENS), shared(rest, tokens - TEMPLATE_TOKENS)
