"""What does the scripted model say? Answers for the example's prompts, without a model.

The fake servers call `reply` (or `reply_chess`, which thinks aloud at length) with each request. It reads
from the prompt which step asks about which question, and answers like a model that is good but not perfect:
about a third of the first drafts are wrong in one of the ways written down with the question, corrections
mostly succeed, the judge is mostly right. The dice are hashes of the question: every run says the same.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, cached_property

from agentsched.testing import FakeRequest, Reply
from agentsched.testing.tokens import to_text

from . import bird, lengths, prompts, questions
from .bird import BirdQuestion
from .databases import DATA
from .lengths import Style, unit
from .prompts import Stage
from .questions import Question

CHARS_PER_TOKEN = 4
WRONG_DRAFTS = 0.35
GOOD_REPAIRS = 0.8
GOOD_CHOICES = 0.9

UNKNOWN = "The scripted model knows only this example's prompts and questions. Ask a real server for others."

_CHAT = re.compile(r"<s>(.*?)</><u>(.*)</><a>", re.DOTALL)
_ASKED = re.compile(r"^Question: (.*)(?:\nHint: (.*))?", re.MULTILINE)
_APPROACH = re.compile(r"^Approach (\d+): (.*?)\.", re.MULTILINE)
_TRIED = re.compile(r"^Attempt \d+:\n```sql\n(.*?)\n```\nSQLite: (.*?)$", re.DOTALL | re.MULTILINE)
_RIVAL = re.compile(r"^Candidate [A-Z]:\n```sql\n(.*?)\n```", re.DOTALL | re.MULTILINE)

REPAIRS = {
    r"no such column: (\S+)": "This table has no {0}; the value is under another name.",
    r"no such table: (\S+)": "The schema has no table {0}.",
    r"no such function: (\S+)": "SQLite does not know {0}; its own date functions do the same.",
    r"ambiguous column name: (\S+)": "More than one table here has a {0}, so it needs its alias.",
    r'near "(.+?)": syntax error': "SQLite stopped at {0}, which does not belong there.",
    r"returned no rows": "A condition is never true here; the literals have to match the first rows.",
}

THOUGHTS = (
    "The question asks for a result that can be checked against the first rows of each table.",
    "I start from the table that holds the asked-for value and follow its foreign keys from there.",
    "The hint is taken as a definition, so its literals are copied and not translated.",
    "Every column gets the alias of its table, because key columns appear on both sides of a join.",
    "Rows with a missing value would distort the figure, so they are left out.",
    "A join to a second one-to-many table would multiply rows, so the sum comes before it.",
    "Grouping goes by the key and not by the name, since two things may be called the same.",
    "Dates are stored as text in ISO order, so comparing them as text is correct.",
    "The division needs a real number on one side or SQLite would cut the fraction off.",
    "Nothing is rounded unless the question says so, and the columns come in the order of the question.",
    "One row is expected for a single best item, otherwise all rows that meet the conditions.",
    "With the parts in place they are combined into one statement that only reads.",
)


@dataclass(frozen=True)
class Call:
    """What one prompt asks for."""

    stage: Stage
    asked: tuple[str, str]
    """Question and hint."""
    prompt: str

    @classmethod
    def read(cls, asked: bytes) -> Call | None:
        """Read a tokenised chat; None if it is none of the agent's."""
        chat = _CHAT.fullmatch(to_text(asked))
        stages = [stage for stage, text in prompts.INSTRUCTIONS.items() if chat and text == chat[1]]
        found = _ASKED.search(chat[2]) if chat else None
        if not chat or not stages or not found:
            return None
        return cls(stages[0], (found[1], found[2] or ""), chat[2])

    @cached_property
    def candidate(self) -> int:
        found = _APPROACH.search(self.prompt)
        return int(found[1]) - 1 if found else 0

    @cached_property
    def approach(self) -> str:
        found = _APPROACH.search(self.prompt)
        return found[2].capitalize() if found else ""

    @cached_property
    def tried(self) -> list[tuple[str, str]]:
        """SQL and complaint of each attempt so far."""
        return _TRIED.findall(self.prompt)

    @cached_property
    def rivals(self) -> list[str]:
        return _RIVAL.findall(self.prompt)


class Script:
    """A scripted model: equal requests get equal replies."""

    def __init__(self, style: Style = "rsl", *, system: str = "gpt-4o") -> None:
        self._style: Style = style
        known: list[Question | BirdQuestion] = [*questions.load(), *bird.load(system)]
        self._known = {_key(question.text, question.evidence): question for question in known}

    def reply(self, request: FakeRequest) -> Reply:
        """Answer a request."""
        return Reply(self._answer(Call.read(request.cells)))

    def _answer(self, call: Call | None) -> str:
        question = self._known.get(_key(*call.asked)) if call else None
        if not call or not question:
            return UNKNOWN
        core = _own(call, question) if isinstance(question, Question) else _measured(call, question)
        return _padded(core, self._tokens(call, question), unit(question.id, call.stage, call.candidate))

    def _tokens(self, call: Call, question: Question | BirdQuestion) -> int:
        if self._style == "chess":
            return lengths.chess(call.stage, question.id, call.candidate, len(call.tried))
        if isinstance(question, BirdQuestion):
            return lengths.rsl(question, call.stage, call.candidate)
        return 0


def _own(call: Call, question: Question) -> str:
    match call.stage:
        case Stage.LINK:
            return f"```json\n{json.dumps(needed(question))}\n```"
        case Stage.DRAFT:
            wrong = unit("mistake", question.id, call.candidate) < WRONG_DRAFTS
            return f"{call.approach}.\n{_fenced(_wrong(call, question) if wrong else question.sql)}"
        case Stage.CORRECT:
            right = unit("repair", question.id, call.candidate, len(call.tried)) < GOOD_REPAIRS
            return f"{_repair(call.tried)}\n{_fenced(question.sql if right else _wrong(call, question))}"
        case Stage.EVALUATE:
            good = [n for n, sql in enumerate(call.rivals) if _flat(sql) == _flat(question.sql)]
            bad = [n for n in range(len(call.rivals)) if n not in good]
            sharp = unit("judge", question.id) < GOOD_CHOICES
            return _chosen(((good or bad) if sharp else (bad or good))[0])


def _measured(call: Call, question: BirdQuestion) -> str:
    match call.stage:
        case Stage.LINK:
            return json.dumps({question.database: ["column_001"]})
        case Stage.DRAFT | Stage.CORRECT:
            return _fenced(bird.attempt(question, call.candidate, len(call.tried)))
        case Stage.EVALUATE:
            return _chosen(min(int(question.kept_augmented), len(call.rivals) - 1))


def needed(question: Question) -> dict[str, list[str]]:
    """List the tables and columns that the right SQL names."""
    ddl = (DATA / question.database / "schema.sql").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", question.sql))
    return {
        table: [column for column in re.findall(r"^ +(\w+) +[A-Z]", body, re.MULTILINE) if column in words]
        for table, body in re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n\);", ddl, re.DOTALL)
        if table in words
    }


def _wrong(call: Call, question: Question) -> str:
    """Pick a wrong query that was not tried yet, for each candidate another one where there are several."""
    tried = {_flat(sql) for sql, _ in call.tried}
    texts = list(question.wrong.values())
    fresh = [sql for sql in texts if _flat(sql) not in tried] or texts
    return fresh[(int(unit("wrong", question.id) * len(fresh)) + call.candidate) % len(fresh)]


def _repair(tried: list[tuple[str, str]]) -> str:
    complaint = tried[-1][1] if tried else ""
    for pattern, sentence in REPAIRS.items():
        if found := re.search(pattern, complaint):
            return sentence.format(*found.groups())
    return "The last attempt does not answer the question; this one does."


def _chosen(n: int) -> str:
    name = prompts.letter(n)
    return f"Candidate {name} applies every condition and has the shape that is asked for.\n\nAnswer: {name}"


def _key(text: str, evidence: str) -> tuple[str, str]:
    return _flat(text), _flat(evidence)


def _flat(text: str) -> str:
    return " ".join(text.split())


def _fenced(sql: str) -> str:
    return f"```sql\n{sql.strip()}\n```"


def _padded(core: str, tokens: int, start: float) -> str:
    """Think aloud before the answer until the whole has that many tokens; a longer answer stays as it is."""
    room = tokens * CHARS_PER_TOKEN - len(core) - 2
    if room <= 0:
        return core
    first = int(start * len(THOUGHTS))
    prose = " ".join(THOUGHTS[first:] + THOUGHTS[:first]) + " "
    return f"{(prose * (room // len(prose) + 1))[:room]}\n\n{core}"


@cache
def script(style: Style) -> Script:
    return Script(style)


def reply(request: FakeRequest) -> Reply:
    """Answer briefly, with RSL-SQL's lengths where they were measured."""
    return script("rsl").reply(request)


def reply_chess(request: FakeRequest) -> Reply:
    """Think aloud first, with CHESS's lengths."""
    return script("chess").reply(request)
