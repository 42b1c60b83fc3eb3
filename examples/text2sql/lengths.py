"""How long are a text-to-SQL agent's answers? Two published systems' lengths, in tokens.

`rsl`: RSL-SQL answers with bare SQL or JSON, measured for each BIRD question (see `bird.py`). `chess`: CHESS
thinks aloud; these are log-normal fits to 123 traced queries, drawn by hash so that the same call always gets
the same length.
"""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist
from typing import Literal

from .bird import BirdQuestion
from .prompts import Stage

Style = Literal["rsl", "chess"]

CHESS = {
    Stage.LINK: NormalDist(3.64, 0.43),
    Stage.DRAFT: NormalDist(6.34, 0.29),
    Stage.CORRECT: NormalDist(4.52, 0.99),
    Stage.EVALUATE: NormalDist(3.22, 0.44),
}
"""The logarithm of the output tokens of CHESS's extract_keywords, generate_candidate, revise and evaluate."""
LONGEST = 1500
"""Tokens. The longest answer in those traces has 1,041; the fit's tail would go on."""


def unit(*key: object) -> float:
    """Hash a key to a number evenly spread between 0 and 1, both excluded."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return (int.from_bytes(digest[:6]) + 0.5) / 2**48


def chess(stage: Stage, *key: object) -> int:
    return min(LONGEST, round(math.exp(CHESS[stage].inv_cdf(unit("length", stage, *key)))))


def rsl(question: BirdQuestion, stage: Stage, candidate: int) -> int:
    match stage:
        case Stage.LINK:
            return question.link
        case Stage.DRAFT:
            return question.augmented if candidate % 2 else question.draft
        case Stage.CORRECT:
            return question.final
        case Stage.EVALUATE:
            return question.choice
