"""The example's data: databases equal everywhere, right SQL right, wrong SQL wrong in the way it says."""

import hashlib
import json
import sqlite3
from pathlib import Path

import pytest
from examples.text2sql import bird, databases, lengths, questions
from examples.text2sql.candidates import Candidate, Trial, agreeing
from examples.text2sql.executor import Outcome, SqliteExecutor
from examples.text2sql.prompts import Stage
from examples.text2sql.questions import Question
from examples.text2sql.rows import DATABASES

COMPLAINTS = {
    "missing_column": "no such column",
    "missing_table": "no such table",
    "missing_function": "no such function",
    "ambiguous": "ambiguous column name",
    "syntax": "syntax error",
    "empty": "returned no rows",
}

EVERY_WRONG = [(q, kind, sql) for q in questions.load() for kind, sql in q.wrong.items()]


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> SqliteExecutor:
    return SqliteExecutor(databases.create_all(tmp_path_factory.mktemp("databases")))


def digest(connection: sqlite3.Connection) -> str:
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    ).fetchall()
    content = {
        name: connection.execute(f"SELECT * FROM {name} ORDER BY rowid").fetchall() for (name,) in tables
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def test_databases_are_equal_on_every_machine() -> None:
    digests = {}
    for name in DATABASES:
        connection = databases.create(name)
        digests[name] = digest(connection)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
    assert digests == {
        "school": "dfebb0a13414cfbe",
        "shop": "1e6c2fb86d4dcf36",
        "library": "71294a038808d96e",
        "bikes": "a1692f84a80ad6fc",
    }


def test_another_seed_gives_other_rows() -> None:
    one, other = databases.create("school"), databases.create("school", seed=databases.SEED + 1)
    assert digest(one) != digest(other)
    one.close()
    other.close()


def test_temporary_databases_go_away() -> None:
    with databases.temporary() as paths:
        assert set(paths) == set(DATABASES)
        assert all(path.exists() for path in paths.values())
    assert not any(path.exists() for path in paths.values())


def test_there_are_enough_questions_of_every_kind() -> None:
    known = questions.load()
    assert len(known) >= 40
    assert (
        len({question.id for question in known}) == len({question.text for question in known}) == len(known)
    )
    assert {question.difficulty for question in known} == {"simple", "moderate", "challenging"}
    assert {kind for _, kind, _ in EVERY_WRONG} == {*COMPLAINTS, "wrong_result"}
    assert all(len(question.wrong) >= 2 for question in known)


@pytest.mark.parametrize("question", questions.load(), ids=lambda question: question.id)
async def test_right_sql_finds_rows(question: Question, executor: SqliteExecutor) -> None:
    outcome = await executor.execute(question.database, question.sql)
    assert outcome.complaint is None
    assert not any(value is None for row in outcome.rows for value in row)


@pytest.mark.parametrize(
    ("question", "kind", "sql"), EVERY_WRONG, ids=[f"{q.id}-{kind}" for q, kind, _ in EVERY_WRONG]
)
async def test_wrong_sql_goes_wrong_as_it_says(
    question: Question, kind: str, sql: str, executor: SqliteExecutor
) -> None:
    outcome = await executor.execute(question.database, sql)
    if kind == "wrong_result":
        right = await executor.execute(question.database, question.sql)
        assert outcome.complaint is None
        assert not outcome.same_rows(right)
    else:
        assert COMPLAINTS[kind] in (outcome.complaint or "")


def test_examples_never_show_the_asked_database() -> None:
    for name in DATABASES:
        shown = questions.examples(name)
        for question in questions.load():
            assert (question.text in shown) == (question.database != name)


# -- what an executor lets through ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE students",
        "DELETE FROM students",
        "UPDATE students SET name = ''",
        "INSERT INTO students VALUES (999, 'x', 9, 'x', 'x')",
        "CREATE TABLE t (x)",
        "ATTACH DATABASE '{tmp}/new.sqlite' AS other",
        "PRAGMA query_only = OFF",
        "VACUUM INTO '{tmp}/new.sqlite'",
        "BEGIN; DROP TABLE students",
        "SELECT 1; DROP TABLE students",
        "/* SELECT */ DROP TABLE students",
        "-- SELECT\nDROP TABLE students",
        "WITH x AS (SELECT 1) DELETE FROM students",
        "WITH x AS (SELECT 1) INSERT INTO students SELECT 999, 'x', 9, 'x', 'x' FROM x",
        "SELECT * FROM pragma_query_only(0)",
        "SELECT load_extension('x')",
        "SELECT zeroblob(500000000)",
        "SELECT 1\0",
        "",
        "I cannot answer that.",
    ],
)
async def test_only_reading_is_let_through(sql: str, executor: SqliteExecutor, tmp_path: Path) -> None:
    question = questions.load()[0]
    before = await executor.execute("school", question.sql)
    outcome = await executor.execute("school", sql.format(tmp=tmp_path))
    assert outcome.error
    assert not outcome.rows
    assert files(tmp_path) == []
    assert (await executor.execute("school", question.sql)).same_rows(before)


async def test_a_query_that_never_ends_is_stopped(tmp_path: Path) -> None:
    executor = SqliteExecutor(databases.create_all(tmp_path), time_limit_s=0.05)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n"
    outcome = await executor.execute("school", endless)
    assert outcome.error == "The query was stopped after 0.05 s."


async def test_rows_are_cut_at_the_limit(tmp_path: Path) -> None:
    executor = SqliteExecutor(databases.create_all(tmp_path), row_limit=10)
    assert (await executor.execute("school", "SELECT name FROM students LIMIT 10")).cut is False
    outcome = await executor.execute("school", "SELECT name FROM students")
    assert (len(outcome.rows), outcome.cut) == (10, True)


async def test_an_unknown_database_is_named(executor: SqliteExecutor) -> None:
    with pytest.raises(KeyError, match=r"no database 'zoo'; there are: bikes, library, school, shop"):
        executor.schema("zoo")


def test_the_schema_shows_tables_and_first_rows(executor: SqliteExecutor) -> None:
    schema = executor.schema("bikes")
    assert schema.count("CREATE TABLE") == schema.count("/* first rows of") == 5
    assert "1 | Town Hall | Centre | " in schema


def test_long_values_and_many_rows_are_shown_in_short() -> None:
    outcome = Outcome(("text", "n"), (("x" * 1000, None), *((str(n), n) for n in range(6))))
    lines = str(outcome).splitlines()
    assert lines[:3] == ["text | n", "x" * 80 + "... | NULL", "0 | 0"]
    assert lines[-1] == "... 2 more rows"


# -- when results agree --------------------------------------------------------------------------------


def test_rows_are_compared_without_order_and_to_four_decimals() -> None:
    some = Outcome(("a", "b"), (("x", 1), ("y", 2.00001)))
    assert some.same_rows(Outcome(("c", "d"), (("y", 2), ("x", 1.0))))
    assert not some.same_rows(Outcome(("a", "b"), (("x", 1),)))
    assert not some.same_rows(Outcome(("a", "b"), (("x", 1), ("x", 1), ("y", 2))))
    assert not Outcome(error="a").same_rows(Outcome(error="a"))


def test_found_rows_shut_out_empty_ones_and_these_the_failed() -> None:
    one, two = Outcome(("n",), ((1,),)), Outcome(("n",), ((2,),))
    empty, failed = Outcome(("n",)), Outcome(error="no")

    def groups(*outcomes: Outcome) -> list[list[str]]:
        line = [Candidate(n, (Trial(str(n), outcome),)) for n, outcome in enumerate(outcomes)]
        return [[trial.sql for trial in group] for group in agreeing(line[::-1])]

    assert groups(one, two, two) == [["1", "2"], ["0"]]
    assert groups(failed, empty, one) == [["2"]]
    assert groups(failed, empty) == [["1"]]
    assert groups(failed, failed) == [["0"]]


# -- BIRD ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", list(bird.SYSTEMS))
def test_bird_rows_are_complete(system: str) -> None:
    rows = bird.load(system)
    assert len(rows) == len({row.id for row in rows}) == 1153
    assert all(min(row.link, row.draft, row.augmented, row.choice, row.final) > 0 for row in rows)
    assert 30 < sum(row.corrected for row in rows) < 45


def test_bird_data_stands_apart_with_its_licence() -> None:
    folder = bird.FILE.parent
    assert {path.name for path in folder.iterdir()} == {"questions.jsonl.gz", "NOTICE.md", "LICENSE"}
    assert "CC BY-SA 4.0" in (folder / "NOTICE.md").read_text(encoding="utf-8")


async def test_the_measured_executor_fails_the_kept_candidate_once() -> None:
    rows = bird.load()
    executor = bird.MeasuredExecutor(rows)
    for row in [next(row for row in rows if row.corrected), next(row for row in rows if not row.corrected)]:
        kept = int(row.kept_augmented)
        first = await executor.execute(row.database, bird.attempt(row, kept, 0))
        assert bool(first.complaint) == row.corrected
        assert not (await executor.execute(row.database, bird.attempt(row, kept, 1))).complaint
        assert not (await executor.execute(row.database, bird.attempt(row, 1 - kept, 0))).complaint


def test_the_stand_in_schema_has_the_measured_length() -> None:
    executor = bird.MeasuredExecutor(bird.load())
    for row in bird.load():
        assert len(executor.schema(row.database)) / bird.CHARS_PER_TOKEN == pytest.approx(
            row.schema_tokens, abs=12
        )


def test_chess_lengths_follow_the_fit() -> None:
    drawn = sorted(lengths.chess(Stage.DRAFT, n) for n in range(2001))
    assert drawn[1000] == pytest.approx(567, rel=0.05)
    assert drawn[1900] == pytest.approx(914, rel=0.07)
    assert lengths.chess(Stage.CORRECT, "some question", 1) == lengths.chess(
        Stage.CORRECT, "some question", 1
    )
