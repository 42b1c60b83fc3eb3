"""Ask the agent from the command line: `python -m examples.text2sql --help`."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import math
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

from langchain_openai import ChatOpenAI

from agentsched import Backend, Scheduler, UsageError
from agentsched.testing import FakeFleet, VirtualClock

from . import bird, databases, questions, script
from .agent import MAX_CANDIDATES, build
from .bird import BirdQuestion, MeasuredExecutor
from .executor import Executor, SqliteExecutor
from .questions import Question
from .rows import DATABASES
from .run import ask_all, story, table

T = TypeVar("T")
Asked = Sequence[Question] | Sequence[BirdQuestion]

FAKE_MODEL = "scripted"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.text2sql",
        description="Answer questions with SQL, through agentsched. Without --backend a scripted model "
        "answers on a fake fleet of four GPUs, in virtual time.",
    )
    what = parser.add_argument_group("what to ask")
    either = what.add_mutually_exclusive_group()
    either.add_argument("--questions", type=_count, metavar="N", help="N of the example's own; default: all")
    either.add_argument("--bird", type=_count, metavar="N", help="N of BIRD's: load only, without databases")
    either.add_argument("--question", metavar="TEXT", help="one question, or an id such as school-08")
    what.add_argument("--database", choices=tuple(DATABASES), help="which database --question is about")
    what.add_argument(
        "--sqlite", type=Path, metavar="FILE", help="your own database for --question; only read"
    )
    what.add_argument("--evidence", default="", metavar="TEXT", help="a hint that goes with --question")

    who = parser.add_argument_group("who answers")
    who.add_argument(
        "--backend", action="append", metavar="URL", help="http://gpu-a:8000/v1; may be repeated"
    )
    who.add_argument("--model", help="its name, as the backends list it; needed with --backend")
    who.add_argument(
        "--api-key-env", metavar="NAME", help="environment variable that holds the backends' key"
    )
    who.add_argument(
        "--max-concurrency", type=_count, default=16, metavar="N", help="calls at once per backend"
    )
    who.add_argument("--lengths", choices=("rsl", "chess"), default="chess", help="of the fakes' answers")

    how = parser.add_argument_group("how")
    how.add_argument("--candidates", type=_count, default=2, metavar="N", help=f"up to {MAX_CANDIDATES}")
    how.add_argument("--at-once", type=_count, default=16, metavar="N", help="questions answered at a time")
    how.add_argument(
        "--slo", type=_seconds, default=60.0, metavar="S", help="seconds wished for per question"
    )
    how.add_argument("--quiet", action="store_true", help="print only the summary")
    options = parser.parse_args(arguments)
    if problem := _problem(options):
        parser.error(problem)
    return options


def _problem(options: argparse.Namespace) -> str | None:
    if options.backend and not options.model:
        return "--backend needs --model; a server lists its models at URL/models"
    if options.api_key_env and options.api_key_env not in os.environ:
        return f"--api-key-env: there is no environment variable {options.api_key_env}"
    if options.sqlite and not options.sqlite.is_file():
        return f"--sqlite: there is no file {options.sqlite}"
    if options.candidates > MAX_CANDIDATES:
        return f"--candidates: at most {MAX_CANDIDATES}"
    if (options.database or options.sqlite or options.evidence) and not options.question:
        return "--database, --sqlite and --evidence go with --question"
    if options.sqlite and (options.database or not options.backend):
        return "--sqlite goes with --backend and without --database"
    return None


def chosen(options: argparse.Namespace) -> Asked:
    """Find the questions that the command line asks for."""
    if options.bird:
        return spread(bird.load(), options.bird)
    if options.question:
        return [_one(options)]
    return spread(questions.load(), options.questions or len(questions.load()))


def _one(options: argparse.Namespace) -> Question:
    text, database = options.question, options.sqlite.stem if options.sqlite else options.database
    known = [question for question in questions.load() if text in (question.id, question.text)]
    if known and database in (None, known[0].database):
        return known[0]
    if not options.backend:
        near = difflib.get_close_matches(text, [question.text for question in questions.load()], 3, 0.4)
        hint = "".join(f"\n  {text}" for text in near)
        raise SystemExit(
            f"the scripted model knows only the example's questions; others need --backend{hint}"
        )
    if not database:
        raise SystemExit("which database is the question about? give --database or --sqlite")
    return Question(
        id="asked", database=database, difficulty="-", text=text, evidence=options.evidence, sql=""
    )


def spread(items: Sequence[T], count: int) -> list[T]:
    """Take `count` items at equal distances."""
    count = min(count, len(items))
    return [items[i * len(items) // count] for i in range(count)]


async def answer_all(
    options: argparse.Namespace, asked: Asked, scheduler: Scheduler, executor: Executor
) -> int:
    """Ask everything, print what comes, and return the process's exit status."""
    llm = ChatOpenAI(model=options.model or FAKE_MODEL, **scheduler.client_kwargs())
    agent = build(llm, executor, candidates=options.candidates)
    results = []
    answers = ask_all(
        agent,
        asked,
        executor,
        lambda: scheduler.query("text2sql", slo_s=options.slo),
        at_once=options.at_once,
    )
    async for result in answers:
        results.append(result)
        if not options.quiet or result.error:
            print(story(result), end="\n\n", flush=True)
    print(table(results))
    return 0 if all(result.answer for result in results) else 1


async def serve(options: argparse.Namespace, asked: Asked, clock: VirtualClock | None) -> int:
    """Set up databases and servers, and ask."""
    async with AsyncExitStack() as stack:
        executor: Executor = MeasuredExecutor(bird.load())
        if options.sqlite:
            executor = SqliteExecutor({options.sqlite.stem: options.sqlite})
        elif not options.bird:
            executor = SqliteExecutor(stack.enter_context(databases.temporary()))
        scheduler = fake_scheduler(options, clock) if clock else real_scheduler(options)
        stack.push_async_callback(scheduler.aclose)
        return await answer_all(options, asked, scheduler, executor)


def real_scheduler(options: argparse.Namespace) -> Scheduler:
    key = os.environ.get(options.api_key_env) if options.api_key_env else None
    return Scheduler(
        [Backend(url, api_key=key, max_concurrency=options.max_concurrency) for url in options.backend]
    )


def fake_scheduler(options: argparse.Namespace, clock: VirtualClock) -> Scheduler:
    responder = script.reply if options.lengths == "rsl" else script.reply_chess
    fleet = FakeFleet.gpus("hetero1", models=(FAKE_MODEL,), responder=responder)
    backends = [
        Backend(fake.base_url, name=fake.name, max_concurrency=options.max_concurrency) for fake in fleet
    ]
    return Scheduler(backends, upstream=fleet.transport(), clock=clock)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    asked = chosen(options)
    try:
        if options.backend:
            return asyncio.run(serve(options, asked, None))
        clock = VirtualClock()
        return clock.run(serve(options, asked, clock))
    except UsageError as error:
        raise SystemExit(f"{error}") from error


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return count


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
