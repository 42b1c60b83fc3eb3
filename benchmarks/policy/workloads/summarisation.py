"""Summaries of papers: one call each, its lengths those of a real paper and of its abstract (arXiv, from Vidur)."""

from collections.abc import Iterator
from random import Random

from agentsched.sim.plan import Plan
from benchmarks.policy.data import papers
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import MARK_TOKENS, Draft, shared

TEMPLATE = shared("summarise the paper in an abstract for readers of its field", 30)


def summarisation(dice: Random) -> Iterator[Plan]:
    """Summarise one paper after the other; none comes twice."""
    lengths = papers()
    while True:
        input_tokens, output_tokens = dice.choice(lengths)
        draft = Draft("summarisation", tag(dice))
        rest = max(input_tokens - TEMPLATE.tokens - MARK_TOKENS, 1)
        draft.call("summarise", (TEMPLATE, draft.own("paper", rest)), output_tokens)
        yield draft.plan()
