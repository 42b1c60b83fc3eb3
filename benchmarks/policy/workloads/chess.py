"""What the stages of a text-to-SQL agent in the style of CHESS read and write.

Statistics computed from the 123 distinct queries of the `financial` and `formula1` traces that are published
with the HexGen-Flow simulator (github.com/Relaxed-System-Lab/Hexgen-Flow), and the lengths of the prompt
templates of CHESS (github.com/ShayanTalaei/CHESS) in tokens of cl100k. Two databases and one model: a shape
to build on, not the truth about text-to-SQL.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        calls: mean per query.
        input, output: mean tokens of a call.
        mu, sigma: of the lognormal distribution fitted to the output tokens.
    """

    calls: float
    input: float
    output: float
    mu: float
    sigma: float


STAGES: Mapping[str, Stage] = {
    "information_retriever": Stage(4, 306, 8, 1.74, 0.59),
    "extract_keywords": Stage(0.86, 665, 42, 3.64, 0.43),
    "generate_candidate": Stage(2, 10_484, 590, 6.34, 0.29),
    "revise": Stage(0.92, 6_772, 161, 4.52, 0.99),
    "unit_tester": Stage(3, 275, 5, 1.52, 0.19),
    "generate_unit_test": Stage(0.94, 1_032, 93, 4.48, 0.32),
    "evaluate": Stage(4.5, 927, 30, 3.22, 0.44),
}

AGENT, KEYWORDS, FIRST, SECOND, REVISE, UNIT_TESTS, EVALUATE = 147, 630, 9_183, 5_314, 3_066, 441, 318
"""Tokens of the templates: of an agent that routes, and of the other stages; candidates have one each."""

SMALLEST_SCHEMA, LARGEST_SCHEMA = 1_900, 4_500
"""Tokens of a database as candidates and revisions see it: what, with the templates above, gives their inputs."""

REVISIONS = (0.71, 0.13, 0.04, 0.02, 0.02, 0.02, 0.015, 0.015, 0.01, 0.01, 0.01)
"""How often a query has 0 to 10. Measured up to 2; three or more are .12, here with the mean that is measured."""

UNIT_TESTS_SHARE = 0.94
EVALUATIONS = {3: 0.07, 4: 0.35, 5: 0.31, 6: 0.16, 7: 0.03, 8: 0.01, 9: 0.005, 11: 0.005}
"""How often a query has so many; none at all where no unit tests are made. Above 6 the sum is measured."""

PAIR_CORRELATION = 0.71
"""Of the logarithms of the lengths of a query's two candidates."""

PAIR_OFFSET = 0.19
"""How far the candidates' logarithms are from their common mean, the first above, the second below.

With it the fitted sigma, the correlation of the pair, the longer's ratio to the mean (1.19) and the correlation
of input and output (.63) hold together; without it, the ratio would be 1.09.
"""

REWRITTEN_SHARE, REWRITTEN_TOKENS = 0.07, 1_015
"""Revisions that write the whole answer again: the tail of the measured lengths (P95 1,009, P99 1,041)."""
REVISION_MU, REVISION_SIGMA = 4.43, 0.55
"""The others; with the tail, mean and P95 are those measured and the median is near: no single lognormal fits."""
