"""What is taken out of a model's answer, whatever stands around it."""

import pytest
from examples.text2sql import answers


@pytest.mark.parametrize(
    ("answer", "sql"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 1;\n```", "SELECT 1"),
        ("```SQLite\nSELECT 1\n```\nDone.", "SELECT 1"),
        ("``` sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql SELECT 1 ```", "SELECT 1"),
        ("First:\n```sql\nSELECT 1\n```\nNo, better:\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\nIt returns:\n```\n1\n```", "SELECT 1"),
        ("```json\n{}\n```\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT a,\n  b FROM t", "SELECT a,\n  b FROM t"),
        ("<think>```sql\nSELECT 0\n```</think>\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("The query is SELECT 1 FROM t; it counts.", "SELECT 1 FROM t"),
        ("I select the rows first.\nSELECT 1\nFROM t\n\nThat is all.", "SELECT 1\nFROM t"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", "WITH x AS (SELECT 1) SELECT * FROM x"),
        ("With joins:\nWITH x(a) AS (SELECT 1) SELECT 2 FROM x", "WITH x(a) AS (SELECT 1) SELECT 2 FROM x"),
        ("```sql\n-- all of them\nSELECT 1\n```", "-- all of them\nSELECT 1"),
        ("```sql\nDROP TABLE t\n```", "DROP TABLE t"),
        ("I cannot answer that.", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_sql_is_taken_out_of_an_answer(answer: str, sql: str) -> None:
    assert answers.sql(answer) == sql


@pytest.mark.parametrize(
    ("answer", "tables"),
    [
        ('```json\n{"t": ["a", "b"]}\n```', {"t": ["a", "b"]}),
        ('Sure: {"t": ["a"]} as asked.', {"t": ["a"]}),
        ('{not json} {"note": 1} {"t": ["a"]}', {"t": ["a"]}),
        ("<think>{}</think>", {}),
        ('{"t": "a"}', {}),
        ('{"t": ["a', {}),
    ],
)
def test_tables_are_taken_out_of_an_answer(answer: str, tables: dict[str, list[str]]) -> None:
    assert answers.tables(answer) == tables


@pytest.mark.parametrize(
    ("answer", "index"),
    [
        ("Answer: B", 1),
        ("Candidate A is wrong, B counts twice.\n\nAnswer: A", 0),
        ("**Answer:** B", 1),
        ("The answer is (b) no, the best candidate is **B**.", 1),
        ('{"answer": "B"}', 1),
        ("Answer: candidate B, since candidate A lacks a condition.", 1),
        ("B", 1),
        ("(B).", 1),
        ("Only candidate B has the right shape.", 1),
        ("Candidate A or candidate B.", None),
        ("Answer: C", None),
        ("I cannot decide.", None),
        ("", None),
    ],
)
def test_a_choice_is_taken_out_of_an_answer(answer: str, index: int | None) -> None:
    assert answers.choice(answer, among=2) == index
