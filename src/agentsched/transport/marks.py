"""The marks of a prompt: what it shares with others from its beginning on, without a word of it.

Hashes are those of Python's own strings, salted anew in every process: they tell equal from unequal, and nothing else,
and those of two runs have nothing in common.
"""

from agentsched.predict.prefixes import MARK_TOKENS

CHARS_PER_TOKEN = 4
"""As estimated for text of any kind."""

MOST_MARKS = 2_000
"""Most marks of one prompt: 256,000 tokens, beyond which it is not followed."""

MASK = 2**52 - 1
"""Journals hold whole numbers up to 2**53."""


def marks_of(seed: str, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    """Return hashes of a prompt from its beginning up to every 128th token; none if it is shorter.

    Args:
        seed: what keeps prompts apart that begin alike, such as the model's name; not empty.
        prompt: its text, or its token ids.
    """
    width = MARK_TOKENS * CHARS_PER_TOKEN if isinstance(prompt, str) else MARK_TOKENS
    mark = hash(seed)
    marks: list[int] = []
    for end in range(width, min(len(prompt), width * MOST_MARKS) + 1, width):
        mark = hash((mark, prompt[end - width : end]))
        marks.append(mark & MASK)
    return tuple(marks)
