"""The example's agent end to end: prompts, scripted model, graph, command line."""

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from examples.text2sql import answers, bird, databases, prompts, questions, script
from examples.text2sql.__main__ import main
from examples.text2sql.agent import MAX_CANDIDATES, build
from examples.text2sql.bird import BirdQuestion, MeasuredExecutor
from examples.text2sql.candidates import Trial
from examples.text2sql.executor import Executor, Outcome, SqliteExecutor
from examples.text2sql.prompts import Stage
from examples.text2sql.questions import Question
from examples.text2sql.run import Result, ask_all, table
from langchain_core.messages import BaseMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agentsched import Backend, Scheduler
from agentsched.testing import FakeFleet, FakeRequest, Reply, VirtualClock
from agentsched.testing.responder import reply_to
from agentsched.testing.tokens import render_chat, to_cells

ROLES = {"system": "system", "human": "user", "ai": "assistant"}


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> SqliteExecutor:
    return SqliteExecutor(databases.create_all(tmp_path_factory.mktemp("databases")))


def fake_fleet(responder: Callable[[FakeRequest], Reply]) -> FakeFleet:
    return FakeFleet.fast(2, models=("scripted",), responder=responder)


def plain_llm(fleet: FakeFleet) -> ChatOpenAI:
    """Return a client that knows nothing of agentsched."""
    transport: Any = fleet.transport()
    client = openai.DefaultAsyncHttpxClient(transport=transport)
    return ChatOpenAI(
        model="scripted",
        base_url=fleet.base_urls[0],
        api_key=SecretStr("none"),
        http_async_client=client,
        max_retries=0,
    )


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def started() -> Any:
        return await main()

    return VirtualClock().run(started())


def messages(prompt: list[BaseMessage], begun: str = "") -> list[dict[str, Any]]:
    sent = [{"role": ROLES[message.type], "content": message.content} for message in prompt]
    return [*sent, {"role": "assistant", "content": begun}] if begun else sent


def said(prompt: list[BaseMessage], *, style: script.Style = "rsl", begun: str = "") -> str:
    cells = render_chat(messages(prompt, begun), unfinished=bool(begun))
    body = {"messages": messages(prompt, begun)}
    request = FakeRequest(backend="fake", kind="chat", model="m", body=body, headers={}, cells=cells)
    return reply_to(request, script.script(style).reply).text


def asked(question: Question | BirdQuestion, schema: str = "CREATE TABLE t (x);") -> prompts.Asked:
    return prompts.Asked(question.text, question.evidence, schema)


# -- prompts ---------------------------------------------------------------------------------------------


def test_prompts_have_the_size_of_real_ones_and_share_their_beginning(executor: SqliteExecutor) -> None:
    first, second = [
        prompts.draft(
            asked(question, executor.schema("school")),
            examples=questions.examples("school"),
            linked={"students": ["city"]},
            candidate=0,
        )[1].text
        for question in questions.load()[:2]
    ]
    shared = next(n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert 16_000 < len(first) < 24_000
    assert shared > 0.95 * len(first)
    assert first[shared - len("Question: ") : shared].startswith("Question")


# -- the scripted model ----------------------------------------------------------------------------------


def test_the_script_says_the_same_every_time_and_finishes_what_was_begun() -> None:
    for style in ("rsl", "chess"):
        prompt = prompts.link(asked(questions.load()[0]))
        whole = said(prompt, style=style)
        assert said(prompt, style=style) == whole
        assert said(prompt, style=style, begun=whole[:40]) == whole[40:]


def test_the_script_corrects_by_the_complaint() -> None:
    question = next(question for question in questions.load() if "missing_column" in question.wrong)
    trial = Trial(question.wrong["missing_column"], Outcome(error="no such column: town"))
    replies = [said(prompts.correct(asked(question), trials=[trial], candidate=n)) for n in range(8)]
    assert all(reply.startswith("This table has no town;") for reply in replies)
    repaired = sum(answers.sql(reply) == question.sql for reply in replies)
    assert 4 <= repaired <= 8


def test_the_script_does_not_pretend_to_know_other_questions() -> None:
    assert said(prompts.link(prompts.Asked("How many moons has Mars?", "", ""))) == script.UNKNOWN
    request = FakeRequest(
        backend="f", kind="completion", model="m", body={}, headers={}, cells=to_cells("Hi")
    )
    assert script.reply(request).text == script.UNKNOWN


@pytest.mark.parametrize("question", bird.load()[::97], ids=lambda question: question.id)
def test_bird_answers_have_the_measured_length(question: BirdQuestion) -> None:
    trial = Trial(bird.attempt(question, 0, 0), Outcome())
    rival = Trial(bird.attempt(question, 1, 0), Outcome(("candidate",), ((1,),)))
    told = {
        question.link: said(prompts.link(asked(question))),
        question.draft: said(prompts.draft(asked(question), examples="", linked={}, candidate=0)),
        question.augmented: said(prompts.draft(asked(question), examples="", linked={}, candidate=1)),
        question.final: said(prompts.correct(asked(question), trials=[trial], candidate=0)),
    }
    for tokens, text in told.items():
        assert len(text) == tokens * bird.CHARS_PER_TOKEN
    judged = said(prompts.evaluate(asked(question), [trial, rival]))
    assert answers.choice(judged, among=2) == int(question.kept_augmented)


# -- the agent -------------------------------------------------------------------------------------------


def answer_everything(
    fleet: FakeFleet, executor: Executor, known: list[Question] | list[BirdQuestion], **options: Any
) -> list[Result]:
    async def main() -> list[Result]:
        agent = build(plain_llm(fleet), executor, **options)
        return [result async for result in ask_all(agent, known, executor, nullcontext, at_once=8)]

    return run(main)


def test_a_plain_client_answers_nearly_everything(executor: SqliteExecutor) -> None:
    fleet = fake_fleet(script.reply)
    results = answer_everything(fleet, executor, list(questions.load()))
    accuracy = sum(bool(result.correct) for result in results) / len(results)
    assert accuracy >= 0.9
    assert len(results) == len(questions.load())
    assert sum(result.calls for result in results) == len(fleet.calls)

    drafts = [candidate.trials[0] for result in results for candidate in result.candidates]
    failed = sum(trial.outcome.complaint is not None for trial in drafts)
    assert failed >= 5
    mended = [c for r in results for c in r.candidates if c.corrections and c.last.outcome.complaint is None]
    assert len(mended) >= 5
    assert {result.answer.chosen_by for result in results if result.answer} == {"vote", "judge"}
    assert f"{sum(bool(r.correct) for r in results)}/{len(results)}" in table(results).splitlines()[-1]


def test_candidates_are_sampled_and_the_rest_is_greedy(executor: SqliteExecutor) -> None:
    fleet = fake_fleet(script.reply)
    answer_everything(fleet, executor, list(questions.load())[:6], candidates=3)
    warmth: dict[str, set[float]] = {}
    for _, received in fleet.calls:
        system = received.body["messages"][0]["content"]
        stage = next(stage for stage in Stage if prompts.INSTRUCTIONS[stage] == system)
        warmth.setdefault(stage, set()).add(received.body["temperature"])
    assert warmth["link"] == {0}
    assert warmth["draft"] == {0.7}


def test_corrections_end(executor: SqliteExecutor) -> None:
    fleet = fake_fleet(lambda request: Reply("```sql\nSELECT x FROM nowhere\n```"))
    (result,) = answer_everything(fleet, executor, [questions.load()[0]], max_corrections=3)
    assert [candidate.corrections for candidate in result.candidates] == [3, 3]
    assert len(fleet.calls) == result.calls == 1 + 2 * (1 + 3)
    assert result.answer is not None
    assert result.answer.outcome.error == "no such table: nowhere"
    assert result.answer.chosen_by == "only"
    last = fleet.calls[-1][1].body["messages"][1]["content"]
    assert last.count("SQLite: no such table: nowhere") == 3


@pytest.mark.parametrize(
    "text", ["", "no idea", "```sql\nDROP TABLE students\n```", "```sql\nSELECT 1; SELECT 2\n```"]
)
def test_a_useless_model_changes_nothing_and_raises_nothing(text: str, executor: SqliteExecutor) -> None:
    (result,) = answer_everything(fake_fleet(lambda request: Reply(text)), executor, [questions.load()[0]])
    assert result.correct is False
    assert result.answer is not None
    assert result.answer.outcome.error


def test_an_unreadable_judge_leaves_the_first_of_the_largest_groups(executor: SqliteExecutor) -> None:
    def responder(request: FakeRequest) -> Reply:
        call = script.Call.read(request.cells)
        if call is None or call.stage is not Stage.DRAFT:
            return Reply("hard to say")
        return Reply(f"```sql\nSELECT {call.candidate}\n```")

    (result,) = answer_everything(fake_fleet(responder), executor, [questions.load()[0]])
    assert result.answer is not None
    assert (result.answer.sql, result.answer.chosen_by) == ("SELECT 0", "judge")


@pytest.mark.parametrize("candidates", [1, 3, MAX_CANDIDATES])
def test_any_number_of_candidates(candidates: int, executor: SqliteExecutor) -> None:
    (result,) = answer_everything(
        fake_fleet(script.reply), executor, [questions.load()[7]], candidates=candidates
    )
    assert [candidate.number for candidate in result.candidates] == list(range(candidates))


@pytest.mark.parametrize("candidates", [0, MAX_CANDIDATES + 1])
def test_a_silly_number_of_candidates_is_refused(candidates: int, executor: SqliteExecutor) -> None:
    with pytest.raises(ValueError, match="candidates must be between 1 and 8"):
        answer_everything(fake_fleet(script.reply), executor, [], candidates=candidates)


@pytest.mark.parametrize("reply", [script.reply, script.reply_chess])
def test_bird_runs_through_with_the_measured_executor(reply: Callable[[FakeRequest], Reply]) -> None:
    rows = bird.load()
    some = [row for row in rows if row.corrected][:4] + [row for row in rows if not row.corrected][:8]
    results = answer_everything(fake_fleet(reply), MeasuredExecutor(rows), some)
    for result in results:
        row = result.question
        assert isinstance(row, BirdQuestion)
        assert result.answer is not None
        assert result.corrections == int(row.corrected)
        assert result.answer.outcome.rows == ((int(row.kept_augmented),),)
        assert result.correct is None


def test_a_scheduler_runs_the_same_agent(executor: SqliteExecutor) -> None:
    fleet, clock = fake_fleet(script.reply), VirtualClock()

    async def main() -> list[Result]:
        scheduler = Scheduler(
            [Backend(url, max_concurrency=4) for url in fleet.base_urls],
            upstream=fleet.transport(),
            clock=clock,
        )
        agent = build(ChatOpenAI(model="scripted", **scheduler.client_kwargs()), executor)
        known = questions.load()[::4]
        query = partial(scheduler.query, "text2sql", slo_s=30)
        try:
            return [result async for result in ask_all(agent, known, executor, query, at_once=8)]
        finally:
            await scheduler.aclose()

    results = clock.run(main())
    assert sum(bool(result.correct) for result in results) >= 0.8 * len(results)
    assert all(len(backend.calls) > 5 for backend in fleet)
    assert max(backend.log.peak_in_flight for backend in fleet) <= 4


# -- the command line -------------------------------------------------------------------------------------


def test_the_command_line_answers_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--question", "school-08", "--lengths", "rsl"]) == 0
    out = capsys.readouterr().out
    assert "school-08 [moderate] right" in out
    assert "AVG(e.score)" in out
    assert out.splitlines()[-1].split()[:4] == ["all", "1", "0", "1/1"]


def test_the_command_line_runs_bird(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bird", "5", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["all", "5", "0", "-"]


def test_a_backend_that_is_away_is_told_question_by_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--backend", "http://127.0.0.1:9/v1", "--model", "m", "--questions", "2"]) == 1
    out = capsys.readouterr().out
    assert out.count("no answer: BackendUnavailable: 127.0.0.1:9") == 2
    assert out.splitlines()[-1].split()[:3] == ["all", "2", "2"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--backend", "http://a/v1"], "--backend needs --model"),
        (["--questions", "0"], "must be at least 1"),
        (["--questions", "1", "--bird", "1"], "not allowed with"),
        (["--slo", "-1"], "must be above 0"),
        (["--candidates", "99"], "at most 8"),
        (["--database", "shop"], "go with --question"),
        (["--question", "x", "--sqlite", "/nowhere.db"], "there is no file /nowhere.db"),
        (["--question", "x", "--api-key-env", "NO_SUCH_NAME"], "no environment variable NO_SUCH_NAME"),
        (["--question", "How many copies are gone?"], "knows only the example's questions"),
        (["--question", "x", "--backend", "http://a/v1", "--model", "m"], "which database"),
        (["--backend", "nonsense", "--model", "m"], "'nonsense' is not an http(s) URL"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code != 0
    assert complaint in capsys.readouterr().err + str(stop.value)


def test_your_own_sqlite_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zoo.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE animals (name TEXT)")
        connection.execute("INSERT INTO animals VALUES ('okapi')")
    connection.close()
    fleet = fake_fleet(lambda request: Reply("```sql\nSELECT name FROM animals\n```"))

    async def serve() -> int:
        async with fleet.serve():
            arguments = ["--backend", fleet.base_urls[0], "--model", "scripted", "--sqlite", str(path)]
            return await asyncio.to_thread(main, [*arguments, "--question", "Who lives here?"])

    assert asyncio.run(serve()) == 0
    assert "| okapi" in capsys.readouterr().out
    assert "CREATE TABLE animals" in json.dumps(fleet.calls[0][1].body)
