"""Text-to-SQL in the style of CHESS: two candidates, revisions where they fail, and unit tests to choose.

Questions are real ones (BIRD), as likely to be put to any of its databases. A question's hardness is where
the SQL that was measured for it stands among all: long candidates come from hard questions, so that the
question's text tells something about what is to come. Assumed is that each revision goes to either candidate
with equal chance and that evaluations run at the same time: the source does not tell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import exp, sqrt
from random import Random

from agentsched.sim.plan import Plan
from agentsched.sim.prompt import Piece
from benchmarks.policy.data import bird
from benchmarks.policy.draws import Odds, length, normal_scores, tag
from benchmarks.policy.prompts import MARK_TOKENS, Draft, shared
from benchmarks.policy.workloads import chess

RETRIEVER = "information_retriever"
RETRIEVER_TOKENS = (300, 304, 308, 312)
TESTER_TOKENS = 275
STATE_TOKENS = 4

KEYWORDS_RHO = 0.91
"""Correlation of the lengths of a question and of its keywords."""

CLUSTERS_TOKENS, CLUSTERS_SIGMA = 500, 0.44
"""Median tokens of the candidates as the unit tests' stages see them: what is missing in these stages' inputs."""
UNIT_TEST_TOKENS = 20
ERROR_TOKENS = (40, 300)
"""What the database says of a candidate that fails: least and most."""

WRITERS = ((chess.FIRST, chess.PAIR_OFFSET), (chess.SECOND, -chess.PAIR_OFFSET))
PAIR_SIGMA = sqrt(chess.STAGES["generate_candidate"].sigma ** 2 - chess.PAIR_OFFSET**2)
COMMON, APART = sqrt(chess.PAIR_CORRELATION), sqrt(1 - chess.PAIR_CORRELATION)

REVISIONS = Odds(chess.REVISIONS)
EVALUATIONS = Odds(chess.EVALUATIONS.values())
EVALUATION_COUNTS = tuple(chess.EVALUATIONS)


@dataclass(frozen=True, slots=True)
class Question:
    """A question; hardness and wordiness are normal scores among all."""

    piece: Piece
    schema: Piece
    hardness: float
    wordiness: float


@cache
def questions() -> tuple[tuple[Question, ...], ...]:
    """Return the questions by database."""
    rows = bird()
    sizes = sorted({(row.schema_tokens, row.database) for row in rows})
    step = (chess.LARGEST_SCHEMA - chess.SMALLEST_SCHEMA) / (len(sizes) - 1)
    schemas = {name: round(chess.SMALLEST_SCHEMA + i * step) for i, (_, name) in enumerate(sizes)}
    hardness = normal_scores([row.final for row in rows])
    wordiness = normal_scores([row.question_tokens + row.evidence_tokens for row in rows])
    found: dict[str, list[Question]] = {name: [] for _, name in sizes}
    for row, hard, wordy in zip(rows, hardness, wordiness, strict=True):
        piece = Piece(f"{row.question}\n{row.evidence}", row.question_tokens + row.evidence_tokens)
        tokens = schemas[row.database]
        schema = shared(f"schema of {row.database} with examples, {tokens} tokens", tokens)
        found[row.database].append(Question(piece, schema, hard, wordy))
    return tuple(tuple(group) for group in found.values())


class Journey:
    """One question on its way through the stages."""

    def __init__(self, dice: Random, question: Question) -> None:
        self._dice = dice
        self._question = question
        self._draft = Draft("text2sql", tag(dice))

    def plan(self) -> Plan:
        """Add all stages, one after the other."""
        at = self._retrieve()
        ends = self._candidates(at)
        self._test(ends)
        return self._draft.plan()

    def _route(self, step: str, number: int, tokens: int, after: tuple[int, ...]) -> int:
        """Let an agent choose its next tool; the length of what it knows is set by what such calls take in all."""
        template = shared(f"chess template: agent {step}", chess.AGENT)
        state = (number + 1) * STATE_TOKENS
        tools = shared(f"chess tools: {step}", tokens - state - chess.AGENT - MARK_TOKENS)
        known = self._draft.own(f"{number} steps of {self._question.piece.text}", state)
        return self._draft.call(step, (template, tools, known), self._length(step), after=after)

    def _length(self, step: str) -> int:
        stage = chess.STAGES[step]
        return length(self._dice, stage.mu, stage.sigma)

    def _retrieve(self) -> int:
        dice, stage = self._dice, chess.STAGES["extract_keywords"]
        at = self._route(RETRIEVER, 0, RETRIEVER_TOKENS[0], ())
        if dice.random() < stage.calls:
            body = (shared("chess template: keywords", chess.KEYWORDS), self._question.piece)
            mu = stage.mu + KEYWORDS_RHO * stage.sigma * self._question.wordiness
            tokens = length(dice, mu, stage.sigma * sqrt(1 - KEYWORDS_RHO**2))
            at = self._draft.call("extract_keywords", body, tokens, after=(at,))
        for number in (1, 2, 3):
            at = self._route(RETRIEVER, number, RETRIEVER_TOKENS[number], (at,))
        return at

    def _candidates(self, after: int) -> tuple[int, ...]:
        """Add both candidates and the revisions of each; return the last calls."""
        dice, question, stage = self._dice, self._question, chess.STAGES["generate_candidate"]
        ends, written = [], []
        for number, (template, offset) in enumerate(WRITERS):
            body = (shared(f"chess template: candidate {number}", template), question.schema, question.piece)
            mean = stage.mu + offset + PAIR_SIGMA * COMMON * question.hardness
            tokens = length(dice, mean, PAIR_SIGMA * APART)
            ends.append(self._draft.call("generate_candidate", body, tokens, after=(after,)))
            written.append(self._sql(f"candidate {number}", tokens))
        for number in range(REVISIONS.draw(dice)):
            which = dice.randrange(len(WRITERS))
            template = shared("chess template: revise", chess.REVISE)
            said = self._draft.own(f"error {number}", dice.randint(*ERROR_TOKENS))
            body = (template, question.schema, question.piece, written[which], said)
            tokens = self._revision()
            ends[which] = self._draft.call("revise", body, tokens, after=(ends[which],))
            written[which] = self._sql(f"revision {number}", tokens)
        return tuple(ends)

    def _revision(self) -> int:
        if self._dice.random() < chess.REWRITTEN_SHARE:
            return chess.REWRITTEN_TOKENS
        return length(self._dice, chess.REVISION_MU, chess.REVISION_SIGMA)

    def _sql(self, answer: str, answer_tokens: int) -> Piece:
        """Take the SQL out of an answer: about a quarter, the rest is reasoning."""
        return self._draft.own(f"SQL of {answer}", max(answer_tokens // 4, 10))

    def _test(self, after: tuple[int, ...]) -> None:
        dice, question, draft = self._dice, self._question, self._draft
        at = self._route("unit_tester", 0, TESTER_TOKENS, after)
        ends: tuple[int, ...] = (at,)
        tested = dice.random() < chess.UNIT_TESTS_SHARE
        spread = COMMON * question.hardness + APART * dice.gauss(0.0, 1.0)
        clusters = draft.own("candidates", round(CLUSTERS_TOKENS * exp(CLUSTERS_SIGMA * spread)))
        if tested:
            body = (shared("chess template: unit tests", chess.UNIT_TESTS), question.piece, clusters)
            at = draft.call("generate_unit_test", body, self._length("generate_unit_test"), after=ends)
            ends = (at,)
        at = self._route("unit_tester", 1, TESTER_TOKENS, ends)
        ends = (at,)
        if tested:
            body = (shared("chess template: evaluate", chess.EVALUATE), question.piece, clusters)
            ends = tuple(
                draft.call(
                    "evaluate",
                    (*body, draft.own(f"unit test {number}", UNIT_TEST_TOKENS)),
                    self._length("evaluate"),
                    after=(at,),
                )
                for number in range(EVALUATION_COUNTS[EVALUATIONS.draw(dice)])
            )
        self._route("unit_tester", 2, TESTER_TOKENS, ends)


def text2sql(dice: Random) -> Iterator[Plan]:
    """Ask one question after the other."""
    groups = questions()
    while True:
        yield Journey(dice, dice.choice(dice.choice(groups))).plan()
