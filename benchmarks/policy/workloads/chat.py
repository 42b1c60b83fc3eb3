"""Chat: real prompts of three sets with the real lengths of one model's answers to each.

A prompt is as likely to be a hard question of users (Arena-Hard, GPT-4-0314), an everyday one
(OpenAssistant, DeepSeek-V3-0324, no cap) or a maths problem (GSM8K, GPT-4-1106). Most are all there is; but
Arena-Hard often has two prompts of one topic, and then half of the conversations that began with one go on,
some queries later, with the other: a query of its own, behind the first turn.
"""

from collections import deque
from collections.abc import Iterator
from functools import cache
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece
from benchmarks.policy.data import Prompt, prompts
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import Draft, shared

ASKED = shared("</><a>", 2)
ANSWERED = shared("</><u>", 2)
"""The chat template's marks between turns."""

GOES_ON = 0.5
NEXT_GOES_ON = 0.2
"""Chance that the next query goes on with a conversation that waits, if one does."""


@cache
def _sets() -> tuple[tuple[Prompt, ...], ...]:
    return (
        prompts("arena_hard_v01", "gpt-4-0314", "greedy"),
        prompts("oasst_sampling", "deepseek-v3-0324@2025-08-10", "sample"),
        prompts("gsm8k_outputs", "gpt-4-1106-preview", "t0"),
    )


@cache
def _mates() -> dict[str, Prompt]:
    """Return for a prompt's text the other prompt of its topic."""
    by_group: dict[str, list[Prompt]] = {}
    for prompt in _sets()[0]:
        by_group.setdefault(prompt.group, []).append(prompt)
    pairs = [group for group in by_group.values() if len(group) == 2]
    return {one.text: other for pair in pairs for one, other in (pair, pair[::-1])}


def chat(dice: Random) -> Iterator[Plan]:
    """Send one prompt after the other."""
    sets, mates = _sets(), _mates()
    waiting: deque[tuple[tuple[Piece, ...], Prompt]] = deque()
    while True:
        if waiting and dice.random() < NEXT_GOES_ON:
            before, prompt = waiting.popleft()
            mate = None
        else:
            before, prompt = (), dice.choice(dice.choice(sets))
            mate = mates.get(prompt.text)
        draft = Draft("chat", tag(dice))
        body = (*before, shared(prompt.text, prompt.tokens))
        answer = dice.choice(prompt.answers)
        draft.call("turn", body, answer)
        if mate is not None and dice.random() < GOES_ON:
            waiting.append(((*body, ASKED, draft.own("answer", answer), ANSWERED), mate))
        yield draft.plan()
