"""Retrieval with rewriting and reranking: rewrite into queries, search, rank the passages, answer.

The steps are those of a published example (rewrite into three queries, 20 passages found, rank by an LLM,
answer). Questions and the answers' lengths are real: short prompts of OpenAssistant and Arena-Hard, GPT-4.
Assumed are the rest: questions come up by Zipf's law with exponent 0.8; passages have 250 tokens; those that
a topic's questions find are the more alike the more popular the passages are; searching takes 0.2 s in the
median. What is found for a question is always the same, so that rewriting and ranking it twice is the same
work; answers differ, since each is for somebody with a context of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import log
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece
from benchmarks.policy.data import prompts
from benchmarks.policy.draws import Odds, length, tag
from benchmarks.policy.prompts import Draft, shared

REWRITE = shared("rag template: rewrite into three search queries", 200)
RANK = shared("rag template: rank passages", 220)
ANSWER = shared("rag template: answer from passages", 160)
"""Lengths are estimates."""

POPULARITY = 0.8
LONGEST_QUESTION = 64
TOPICS, PASSAGES_PER_TOPIC = 80, 60
PASSAGE_MU, PASSAGE_SIGMA = log(250), 0.25
FOUND, GROUP, USED = 20, 5, 5
"""Passages found, ranked in one call, and given to the answer."""

REWRITE_MU, REWRITE_SIGMA, REWRITE_CAP = log(48), 0.3, 200
"""Three queries; the cap is the example's."""
RANK_TOKENS, RANK_CAP = (15, 35), 64
"""A number and a score for each of five passages."""
USER_TOKENS = (20, 60)
ANSWER_SIGMA, ANSWER_CAP = 0.2, 1_024
"""Spread of the logarithm of the answers to one question: what is left of it when the prompt is known."""
SEARCH_S, SEARCH_SIGMA = 0.2, 0.4


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is always the same when it is asked.

    Attributes:
        groups: passages that are ranked together, with the tokens of the ranking.
        used: those that the answer is made from.
        answer: tokens measured.
    """

    piece: Piece
    rewritten: int
    groups: tuple[tuple[tuple[Piece, ...], int], ...]
    used: tuple[Piece, ...]
    answer: int


@cache
def questions() -> tuple[Question, ...]:
    """Return the questions, the most popular first."""
    known = [
        *prompts("oasst_sampling", "gpt-4@2023-04-16", "sample"),
        *prompts("arena_hard_v01", "gpt-4-0314", "greedy"),
    ]
    short = [prompt for prompt in known if prompt.tokens <= LONGEST_QUESTION]
    Random("rag: which are popular").shuffle(short)
    likely = Odds.zipf(PASSAGES_PER_TOPIC, POPULARITY)
    return tuple(_question(prompt.text, prompt.tokens, prompt.answers[0], likely) for prompt in short)


def _question(text: str, tokens: int, answer: int, likely: Odds) -> Question:
    dice = Random(f"rag: {text}")
    topic = dice.randrange(TOPICS)
    found = [_passage(topic, number) for number in likely.sample(dice, FOUND)]
    groups = [tuple(found[at : at + GROUP]) for at in range(0, FOUND, GROUP)]
    used = sorted(dice.sample(range(FOUND), USED))
    return Question(
        piece=Piece(text, tokens),
        rewritten=length(dice, REWRITE_MU, REWRITE_SIGMA, most=REWRITE_CAP),
        groups=tuple((group, dice.randint(*RANK_TOKENS)) for group in groups),
        used=tuple(found[number] for number in used),
        answer=answer,
    )


def _passage(topic: int, number: int) -> Piece:
    text = f"passage {number} about topic {topic}"
    return shared(text, length(Random(f"rag: {text}"), PASSAGE_MU, PASSAGE_SIGMA))


def rag(dice: Random) -> Iterator[Plan]:
    """Ask one question after the other."""
    known = questions()
    popular = Odds.zipf(len(known), POPULARITY)
    while True:
        yield _plan(dice, known[popular.draw(dice)])


def _plan(dice: Random, question: Question) -> Plan:
    draft = Draft("rag", tag(dice))
    asked = question.piece
    rewrite = draft.call(
        "rewrite",
        (REWRITE, asked),
        question.rewritten,
        max_tokens=REWRITE_CAP,
        signature=f"rag rewrite {asked.text}",
    )
    search_s = dice.lognormvariate(log(SEARCH_S), SEARCH_SIGMA)
    ranked = tuple(
        draft.call(
            "rank",
            (RANK, *group, asked),
            tokens,
            after=(rewrite,),
            delay_s=search_s,
            max_tokens=RANK_CAP,
            signature=f"rag rank {number} {asked.text}",
        )
        for number, (group, tokens) in enumerate(question.groups)
    )
    whose = draft.own("who asks", dice.randint(*USER_TOKENS))
    tokens = length(dice, log(question.answer), ANSWER_SIGMA, most=ANSWER_CAP)
    draft.call("answer", (ANSWER, *question.used, asked, whose), tokens, after=ranked, max_tokens=ANSWER_CAP)
    return draft.plan()
