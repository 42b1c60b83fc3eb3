"""Tree of Thoughts writing: five plans, five votes on them, five passages from the best, five votes again.

The siblings' tokens are real, task by task (GPT-4, princeton-nlp/tree-of-thought-llm). The votes' are not in the logs
one by one: what a task used in all, less its plans and passages, is spread evenly over its ten votes. The
source asks for five answers at once; here they are five calls with the same prompt. What a task read in all
tells how long the prompts are: a quarter of what is not plans and passages for each of the four.
"""

from collections.abc import Iterator
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece
from benchmarks.policy.data import Writing, writings
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import MARK_TOKENS, Draft, shared

WRITE = shared("tot template: make a plan, then write", 90)
VOTE = shared("tot template: vote for the most coherent", 60)
"""Lengths are estimates."""

SIBLINGS = 5
MOST_TOKENS = 1_000
"""The cap that the source sets on an answer."""
MOST_PARTS = 4


def tot(dice: Random) -> Iterator[Plan]:
    """Write one text after the other, each as likely as any."""
    tasks = list(enumerate(writings()))
    while True:
        number, task = dice.choice(tasks)
        yield _plan(dice, number, task)


def _plan(dice: Random, number: int, task: Writing) -> Plan:
    draft = Draft("tot", tag(dice))
    chosen = task.plans[0]
    ends = max(task.prompt - sum(task.plans) - sum(task.passages) - chosen, 0) // MOST_PARTS
    ask = shared(f"four sentences of writing task {number}", max(ends - WRITE.tokens - MARK_TOKENS, 20))
    vote = max((task.output - sum(task.plans) - sum(task.passages)) // (2 * SIBLINGS), 1)
    after = _step(draft, "plan", (WRITE, ask), task.plans, ())
    plans = tuple(draft.own(f"plan {i}", tokens) for i, tokens in enumerate(task.plans))
    after = _step(draft, "vote_plan", (VOTE, ask, *plans), (vote,) * SIBLINGS, after)
    after = _step(draft, "passage", (WRITE, ask, plans[0]), task.passages, after)
    passages = tuple(draft.own(f"passage {i}", tokens) for i, tokens in enumerate(task.passages))
    _step(draft, "vote_passage", (VOTE, ask, *passages), (vote,) * SIBLINGS, after)
    return draft.plan()


def _step(
    draft: Draft, step: str, body: tuple[Piece, ...], outputs: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int, ...]:
    return tuple(draft.call(step, body, tokens, after=after, max_tokens=MOST_TOKENS) for tokens in outputs)
