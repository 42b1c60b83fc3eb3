"""What did the model say? Takes SQL, a table list or a choice out of an answer, whatever stands around it."""

from __future__ import annotations

import json
import re

_FENCE = re.compile(r"```[ \t]*(\w*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_INLINE = re.compile(r"```(?:sql|sqlite)?[ \t]*([^`\n]+?)[ \t]*```", re.IGNORECASE)
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_VERB = r"(?:WITH\s+(?:RECURSIVE\s+)?\w+\s*(?:\([^)]*\)\s*)?AS\b|SELECT\b).*"
_QUERY_LINE = re.compile(rf"^[ \t]*{_VERB}", re.DOTALL | re.IGNORECASE | re.MULTILINE)
_QUERY = re.compile(rf"\b{_VERB}", re.DOTALL | re.IGNORECASE)
_CHOICE = re.compile(
    r"""(?i:answer|choice|choose|best)[\s"'*:=({\[]*(?i:is\b|candidate\b|[\s"'*:({\[])*\b([A-Z])\b"""
)
_NAMED = re.compile(r"(?i:candidate)[\s\"'*]*([A-Z])\b")
_ALONE = re.compile(r"^[\s\"'*(]*([A-Z])[\s\"'*).]*$", re.MULTILINE)


def sql(answer: str) -> str:
    """Take the SQL out of an answer; empty if there is none.

    The last fenced block that holds a query wins, because models correct themselves on the way. Without a
    fence it is what follows the first SELECT or WITH, up to a semicolon or an empty line.
    """
    text = _THOUGHT.sub("", answer)
    blocks = [body for language, body in _FENCE.findall(text) if language.lower() in ("", "sql", "sqlite")]
    blocks += _INLINE.findall(text)
    for block in reversed(blocks):
        if block.strip() and (_QUERY.search(block) or len(blocks) == 1):
            return _trim(block)
    found = _QUERY_LINE.search(text) or _QUERY.search(text)
    return _trim(re.split(r";|```|\n\s*\n", found.group())[0]) if found else ""


def tables(answer: str) -> dict[str, list[str]]:
    """Take the tables and their columns out of an answer; empty if there is no such JSON object."""
    text = _THOUGHT.sub("", answer)
    decoder = json.JSONDecoder()
    for start in (found.start() for found in re.finditer(r"\{", text)):
        try:
            value, _ = decoder.raw_decode(text, start)
        except ValueError:
            continue
        named = {
            str(t): [str(c) for c in columns] for t, columns in value.items() if isinstance(columns, list)
        }
        if named:
            return named
    return {}


def choice(answer: str, among: int) -> int | None:
    """Take the index of the chosen candidate out of an answer; None if it is not clearly one of `among`."""
    text = _THOUGHT.sub("", answer)
    for pattern in (_CHOICE, _ALONE, _NAMED):
        named = [i for i in (ord(letter) - ord("A") for letter in pattern.findall(text)) if i < among]
        if named and (pattern is not _NAMED or len(set(named)) == 1):
            return named[-1]
    return None


def _trim(text: str) -> str:
    return text.strip().rstrip(";").strip()
