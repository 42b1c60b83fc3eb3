"""Queries in the making: calls whose prompts are put together from pieces that calls may share."""

from collections.abc import Sequence
from functools import cache

from agentsched.predict import prefixes
from agentsched.sim.plan import Node, Plan
from agentsched.sim.prompt import Piece, blocks_of, tokens_of

BLOCK_TOKENS = 64
"""Tokens of a block in the prefix caches of the benchmark's engines."""

BLOCKS_A_MARK = prefixes.MARK_TOKENS // BLOCK_TOKENS

LIMIT_TOKENS = 30_000
"""No prompt and answer are longer together: all fit a context of 32,768 and the memory of the smallest card."""

USER = Piece("<u>", 1)
"""The chat template's mark that begins a prompt."""

TAIL_TOKENS = 2
"""The marks that end one: of the message, and of the answer to come. They are in no piece."""

MARK_TOKENS = USER.tokens + TAIL_TOKENS


@cache
def shared(text: str, tokens: int) -> Piece:
    """Make a piece that many prompts have, once."""
    return Piece(text, tokens)


class Draft:
    """A query to which calls are added one by one.

    Attributes:
        tag: tells what only this query says from what others say.
    """

    def __init__(self, workflow: str, tag: str) -> None:
        self.workflow = workflow
        self.tag = tag
        self._nodes: list[Node] = []

    def own(self, text: str, tokens: int) -> Piece:
        """Make a piece that is in no other query."""
        return Piece(f"{text} of {self.workflow} {self.tag}", tokens)

    def call(
        self,
        step: str,
        body: Sequence[Piece],
        output_tokens: int,
        *,
        after: tuple[int, ...] = (),
        delay_s: float = 0.0,
        max_tokens: int | None = None,
        signature: str | None = None,
    ) -> int:
        """Add a call whose prompt is the template's marks around `body`; return its number.

        Raises:
            ValueError: if it is longer than any engine takes.
        """
        pieces = (USER, *body)
        input_tokens = tokens_of(pieces) + TAIL_TOKENS
        if input_tokens + output_tokens > LIMIT_TOKENS:
            raise ValueError(f"{step} of {self.workflow} has {input_tokens} + {output_tokens} tokens")
        blocks = blocks_of(pieces, BLOCK_TOKENS)
        self._nodes.append(
            Node(
                step=step,
                after=after,
                delay_s=delay_s,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                max_tokens=max_tokens,
                prompt_blocks=blocks,
                marks=blocks[BLOCKS_A_MARK - 1 :: BLOCKS_A_MARK],
                pieces=pieces,
                signature=signature,
            )
        )
        return len(self._nodes) - 1

    def plan(self) -> Plan:
        """Return what has been added."""
        return Plan(nodes=tuple(self._nodes), workflow=self.workflow)
