"""The measurements that workloads and arrivals are made from, as rows; `benchmarks/data/README.md` has sources."""

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True, slots=True)
class Window:
    """How one client of a service sent in ten minutes: its rate, and the form of the gaps between its requests."""

    rate: float
    family: str
    shape: float


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt and how many tokens one model answered, once or in several samples."""

    text: str
    group: str
    tokens: int
    answers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BirdRow:
    """A question to a database, and the tokens of each stage of RSL-SQL with GPT-4o."""

    database: str
    schema_tokens: int
    question: str
    evidence: str
    question_tokens: int
    evidence_tokens: int
    link: int
    draft: int
    extras: int
    """Keywords and conditions together."""
    augmented: int
    choice: int
    final: int
    corrected: bool


@dataclass(frozen=True, slots=True)
class ReactCall:
    """A call of a ReAct agent: a thought, an action or a reflection."""

    trial: int
    kind: str
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class EditCall:
    """A call of a coding agent; attempts begin `started_s` seconds after the first one."""

    attempt: int
    started_s: float
    number: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Writing:
    """A Tree of Thoughts writing task: tokens of its plans, of the passages, and used in all."""

    plans: tuple[int, ...]
    passages: tuple[int, ...]
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Research:
    """Tokens that a deep-research agent wrote and read: plans, calls of tools, texts, reports; what tools found."""

    plans: tuple[int, ...]
    calls: tuple[int, ...]
    texts: tuple[int, ...]
    reports: tuple[int, ...]
    searches: tuple[int, ...]
    fetches: tuple[int, ...]


def _table(name: str) -> Iterator[dict[str, str]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _objects(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


@cache
def times(which: str) -> tuple[float, ...]:
    """Return the seconds at which requests came to the `conv` or `code` service of Azure in 2023."""
    return tuple(float(row["t_s"]) for row in _table(f"traces/azure2023_{which}.csv.gz"))


@cache
def windows() -> tuple[tuple[Window, ...], ...]:
    """Return per ten minutes of ServeGen's large model the clients that sent something, in order of time."""
    found: dict[int, list[Window]] = {}
    for row in _table("traces/servegen_mlarge_windows.csv.gz"):
        window = Window(float(row["rate_rps"]), row["family"], float(row["shape"]))
        found.setdefault(int(row["t_s"]), []).append(window)
    return tuple(tuple(found[at]) for at in sorted(found))


@cache
def papers() -> tuple[tuple[int, int], ...]:
    """Return tokens of papers and of their abstracts."""
    rows = _table("traces/arxiv_summarization_lengths.csv.gz")
    return tuple((int(row["input_tokens"]), int(row["output_tokens"])) for row in rows)


@cache
def prompts(name: str, model: str, sampling: str) -> tuple[Prompt, ...]:
    """Return the prompts of a set that a model answered, with its answers' tokens."""
    found: list[Prompt] = []
    for row in _objects(f"prompts/{name}.jsonl.gz"):
        answers = [out["n"] for out in row["out"] if out["m"] == model and out["s"] == sampling]
        if answers:
            found.append(Prompt(row["prompt"], row["group"], row["in_tokens"], tuple(answers[0])))
    return tuple(found)


@cache
def bird() -> tuple[BirdRow, ...]:
    """Return the questions of the BIRD development set."""
    return tuple(_bird(row) for row in _objects("bird/text2sql_bird_dev.jsonl.gz"))


def _bird(row: dict[str, Any]) -> BirdRow:
    out = row["out"]["rsl-gpt-4o"]
    return BirdRow(
        database=row["db_id"],
        schema_tokens=row["schema_tokens"],
        question=row["question"],
        evidence=row["evidence"],
        question_tokens=row["question_tokens"],
        evidence_tokens=row["evidence_tokens"],
        link=out["link"],
        draft=out["draft"],
        extras=out["aug"],
        augmented=out["augsql"],
        choice=out["binary"],
        final=out["final"],
        corrected=bool(out["corrected"]),
    )


@cache
def react() -> dict[tuple[str, str], tuple[ReactCall, ...]]:
    """Return per run and question the calls of a ReAct agent, in order."""
    found: dict[tuple[str, str], list[ReactCall]] = {}
    for row in _table("workflows/react_hotpotqa_calls.csv.gz"):
        call = ReactCall(
            int(row["trial"]), row["kind"], int(row["prompt_tokens_est"]), int(row["output_tokens"])
        )
        found.setdefault((row["run"], row["question"]), []).append(call)
    return {key: tuple(calls) for key, calls in found.items()}


@cache
def edits() -> dict[str, tuple[EditCall, ...]]:
    """Return per SWE-bench instance the calls that Aider made for it, in order."""
    found: dict[str, list[EditCall]] = {}
    for row in _table("workflows/swe_aider_calls.csv.gz"):
        call = EditCall(
            int(row["attempt"]),
            float(row["attempt_start_s"]),
            int(row["call"]),
            int(row["prompt_tokens"]),
            int(row["completion_tokens"]),
        )
        found.setdefault(row["instance"], []).append(call)
    return {instance: tuple(calls) for instance, calls in found.items()}


@cache
def writings() -> tuple[Writing, ...]:
    """Return the tasks of the Tree of Thoughts writing run."""
    run = "text/1.0_generate_sample_select_greedy_sample5"
    samples: dict[tuple[str, str], list[int]] = {}
    for row in _table("workflows/tot_gpt4_samples.csv.gz"):
        if row["run"] == run:
            samples.setdefault((row["task"], row["step"]), []).append(int(row["output_tokens"]))
    return tuple(
        Writing(
            tuple(samples[row["task"], "0"]),
            tuple(samples[row["task"], "1"]),
            int(row["prompt_tokens"]),
            int(row["completion_tokens"]),
        )
        for row in _table("workflows/tot_gpt4_usage.csv.gz")
        if row["run"] == run
    )


@cache
def research() -> Research:
    """Return the lengths of DeerFlow's messages by what they are; of each thread the longest is its report."""
    rows = list(_table("workflows/deep_research_messages.csv.gz"))
    asked = [row for row in rows if row["type"] == "ai"]
    reports: dict[str, int] = {}
    for row in asked:
        reports[row["thread"]] = max(int(row["tokens"]), reports.get(row["thread"], 0))

    def wrote(*tools: str) -> tuple[int, ...]:
        mine = (row for row in asked if row["tool"] in tools and int(row["tokens"]))
        return tuple(int(row["tokens"]) + int(row["reasoning_tokens"]) for row in mine)

    def read(tool: str) -> tuple[int, ...]:
        return tuple(int(row["tokens"]) for row in rows if row["type"] == "tool" and row["tool"] == tool)

    return Research(
        plans=wrote("write_todos"),
        calls=wrote("web_search", "web_fetch"),
        texts=wrote(""),
        reports=tuple(reports.values()),
        searches=read("web_search"),
        fetches=read("web_fetch"),
    )
