"""Text-to-SQL in the style of RSL-SQL: link the schema, write twice with more and more at hand, choose, correct.

Questions, schemas and what each stage wrote are real (BIRD; RSL-SQL with GPT-4o). The measured tokens of
keywords and conditions are of both together; here each call writes half. Not in the data, and thus assumed:
a linked schema has four tokens of DDL per token of the link; the database shows 40 tokens of result; a query
that was corrected needed a further correction each time with one chance in two, five at most. Sample rows and
few-shot pairs of the real prompts are left out.
"""

from collections.abc import Iterator
from random import Random

from agentsched.sim.plan import Plan
from benchmarks.policy.data import BirdRow, bird
from benchmarks.policy.draws import tag
from benchmarks.policy.prompts import Draft, shared

TABLES, SQL, KEYWORDS, CONDITIONS, CHOICE, CORRECTION = (
    shared(f"rsl-sql instructions: {name}", tokens)
    for name, tokens in (
        ("tables", 390),
        ("SQL", 738),
        ("keywords", 533),
        ("conditions", 257),
        ("choice", 42),
        ("correction", 624),
    )
)
"""Tokens (cl100k) of the instructions published with RSL-SQL."""

LINKED_DDL_PER_TOKEN = 4
RESULT_TOKENS = 40
MOST_CORRECTIONS = 5


def rsl_sql(dice: Random) -> Iterator[Plan]:
    """Ask one question after the other, each as likely as any."""
    rows = bird()
    while True:
        yield _plan(dice, dice.choice(rows))


def _plan(dice: Random, row: BirdRow) -> Plan:
    draft = Draft("rsl_sql", tag(dice))
    schema = shared(f"DDL of {row.database}", row.schema_tokens)
    asked = shared(f"{row.question}\n{row.evidence}", row.question_tokens + row.evidence_tokens)
    linked = draft.own("linked schema", min(LINKED_DDL_PER_TOKEN * row.link, row.schema_tokens))
    first, second = draft.own("first SQL", row.draft), draft.own("second SQL", row.augmented)
    link = draft.call("link", (TABLES, schema, asked), row.link)
    half = row.extras // 2
    keywords = draft.call("keywords", (KEYWORDS, schema, asked), max(half, 1))
    conditions = draft.call("conditions", (CONDITIONS, schema, asked), max(row.extras - half, 1))
    extras = draft.own("keywords and conditions", row.extras)
    drafted = draft.call("draft", (SQL, schema, asked, linked), row.draft, after=(link,))
    augmented = draft.call(
        "augmented", (SQL, linked, asked, extras, first), row.augmented, after=(drafted, keywords, conditions)
    )
    shown = (draft.own("first result", RESULT_TOKENS), draft.own("second result", RESULT_TOKENS))
    body = (CHOICE, linked, asked, first, shown[0], second, shown[1])
    at = draft.call("choice", body, row.choice, after=(augmented,))
    body = (CORRECTION, linked, asked, draft.own("chosen SQL", row.choice))
    for number in range(_corrections(dice) if row.corrected else 0):
        body = (*body, draft.own(f"failure {number}", RESULT_TOKENS))
        at = draft.call("correction", body, row.final, after=(at,))
        body = (*body, draft.own(f"corrected SQL {number}", row.final))
    return draft.plan()


def _corrections(dice: Random) -> int:
    count = 1
    while count < MOST_CORRECTIONS and dice.random() < 0.5:
        count += 1
    return count
