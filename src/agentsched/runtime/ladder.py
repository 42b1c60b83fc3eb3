"""What a backend is asked in order to measure it: prompts of several lengths, several at a time, none like another."""

import random
from collections.abc import Iterator

from agentsched.model.value import record

ROUNDS = 3
"""Times that the ladder is climbed: what a learner has seen once, early on, it forgets."""

LENGTHS = (64, 256, 1024, 4096)
"""Tokens of prompts that are sent alone."""

WIDTHS = (1, 2, 4, 8, 16)
"""Calls at a time."""

SHORT, LONG = 128, 1024
"""Tokens of prompts that are sent several at a time; both, since steps may grow with what a batch holds."""

ANSWER = 64
"""Tokens of an answer at most; alone, of a prompt that is to be read, a quarter of that will do."""

SHARE = 0.7
"""Of a model's length that a prompt takes at most: how long it is can only be estimated."""

WORDS = (
    "river stone letter garden winter market engine silver window paper summer bridge ocean forest "
    "candle mirror shadow travel music island"
).split()

LETTERS = 4
"""Characters of a token of such words."""


@record
class Rung:
    """Calls that are made at the same time.

    Attributes:
        prompt, answer: tokens of each.
    """

    prompt: int
    calls: int
    answer: int


def ladder(max_tokens: int | None) -> Iterator[Rung]:
    """Yield what is asked, in order.

    Args:
        max_tokens: of a prompt and its answer, if the model takes no more.
    """
    most = LENGTHS[-1] if max_tokens is None else max(int(SHARE * max_tokens) - ANSWER, 1)
    lengths = tuple(dict.fromkeys(min(length, most) for length in LENGTHS))
    for number in range(ROUNDS):
        for length in lengths:
            yield Rung(length, 1, ANSWER // 4)
        for step, width in enumerate(WIDTHS):
            yield Rung(min(SHORT if (step + number) % 2 else LONG, most), width, ANSWER)


def calls_of(max_tokens: int | None, max_calls: int) -> int:
    """Return how many calls a climb makes at most."""
    return min(sum(rung.calls for rung in ladder(max_tokens)), max_calls)


def prompt(tokens: int, dice: random.Random) -> str:
    """Return a prompt of about so many tokens that begins like no other, so that no cache holds a part of it."""
    words = [f"{dice.getrandbits(64):016x}"]
    length = len(words[0])
    while length < LETTERS * tokens:
        words.append(dice.choice(WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)[: max(LETTERS * tokens, 16)]
