"""Traces: what can be read is played as it was, and what cannot be read is one clear error."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.engine import Engine, Journal
from agentsched.engine.commands import Start
from agentsched.engine.events import (
    Cancelled,
    Event,
    Failed,
    Finished,
    Progressed,
    QueryClosed,
    QueryOpened,
    Submitted,
)
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Query, Request, Usage
from agentsched.policy import Policy
from agentsched.sim import gathering
from agentsched.sim.journaltrace import LeftOut
from agentsched.sim.plan import Node, Plan, check_plan
from agentsched.sim.player import Player
from agentsched.sim.server import TimedServer
from agentsched.sim.trace import MAX_LINE, read_trace

HEAD = "time_s,input_tokens,output_tokens"


def read(text: str) -> list[tuple[float, Plan]]:
    return read_trace(io.StringIO(text), "calls")


def waits(plan: Plan) -> list[tuple[tuple[int, ...], float]]:
    return [(node.after, round(node.delay_s, 6)) for node in plan.nodes]


# -- what waits for what -----------------------------------------------------------------------------------


def test_calls_without_a_query_are_queries_of_their_own() -> None:
    assert read(f"{HEAD}\n0,10,1\n2.5,20,0\n") == [
        (0.0, Plan(nodes=[Node(model=None, input_tokens=10, output_tokens=1)])),
        (2.5, Plan(nodes=[Node(model=None, input_tokens=20, output_tokens=0)])),
    ]


def test_every_column_is_heeded() -> None:
    row = {
        "time_s": 1,
        "input_tokens": 10,
        "output_tokens": 5.0,
        "query": 7,
        "workflow": "support",
        "step": "plan",
        "tenant": "acme",
        "model": "large",
        "priority": -2,
        "slo_s": 30,
        "max_tokens": 100,
        "duration_s": 0,
    }
    node = Node(step="plan", model="large", input_tokens=10, output_tokens=5, max_tokens=100)
    plan = Plan(nodes=[node], workflow="support", tenant="acme", priority=-2, slo_s=30.0)
    assert read(json.dumps(row)) == [(1.0, plan)]
    assert read(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n") == [(1.0, plan)]
    assert read(json.dumps({**row, "tenant": None, "slo_s": ""}))[0][1].tenant is None


def test_a_call_waits_for_what_had_ended_but_not_for_what_that_waited_for() -> None:
    rows = """time_s,query,input_tokens,output_tokens,duration_s
    0,a,1,1,1
    0.5,a,1,1,2
    1,a,1,1,1
    4,a,1,1,1
    5,b,1,1,0
    5,b,1,1,0
    5,a,1,1,1
    """
    (_, a), (at, b) = read(rows)
    assert waits(a) == [((), 0.0), ((), 0.5), ((0,), 0.0), ((1, 2), 1.5), ((3,), 0.0)]
    assert at == 5.0
    assert waits(b) == [((), 0.0), ((0,), 0.0)]


def test_without_durations_calls_follow_each_other_and_equal_times_are_siblings() -> None:
    rows = [(0, "a"), (1, "b"), (1, "a"), (1, "a"), (3, "a"), (3, "a")]
    text = "time_s,query,input_tokens,output_tokens\n" + "".join(f"{at},{query},1,1\n" for at, query in rows)
    (_, a), (_, b) = read(text)
    assert waits(a) == [((), 0), ((0,), 0), ((0,), 0), ((1, 2), 0), ((1, 2), 0)]
    assert waits(b) == [((), 0)]


def test_an_end_that_was_rounded_up_counts_as_before() -> None:
    rows = "time_s,query,input_tokens,output_tokens,duration_s\n0.1,a,1,1,0.2\n0.3,a,1,1,1\n"
    assert 0.1 + 0.2 > 0.3
    assert waits(read(rows)[0][1]) == [((), 0), ((0,), 0)]


calls = st.tuples(
    st.integers(0, 10_000).map(lambda ms: ms / 1_000), st.sampled_from("abc"), st.integers(0, 3_000)
)


@given(st.lists(calls, min_size=1, max_size=20), st.booleans())
@settings(max_examples=80)
def test_with_the_same_durations_every_call_is_made_again_when_it_was(
    made: list[tuple[float, str, int]], as_json: bool
) -> None:
    made.sort(key=lambda call: call[0])
    rows = [
        {
            "time_s": at,
            "query": query,
            "step": f"call {number}",
            "input_tokens": 1,
            "output_tokens": 1,
            "duration_s": ms / 1_000,
        }
        for number, (at, query, ms) in enumerate(made)
    ]
    arrivals = read(written(rows, as_json=as_json))
    durations = {row["step"]: row["duration_s"] for row in rows}
    server = TimedServer(lambda node: durations[node.step])
    player = Player([(Backend("http://a/v1", models=["m"]), server)], policy=Policy.fcfs())
    for at, plan in arrivals:
        player.arrive(at, plan)
    player.run()
    assert all(run.completed for run in player.runs)
    found = {call.node.step: call.submitted_at for call in player.calls}
    assert found == {row["step"]: pytest.approx(row["time_s"], abs=1e-5) for row in rows}


def written(rows: Sequence[dict[str, Any]], *, as_json: bool) -> str:
    if as_json:
        return "".join(json.dumps(row) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def test_blank_lines_spaces_quotes_and_a_mark_at_the_start_are_no_matter() -> None:
    text = f'\ufeff\n\n {HEAD.replace(",", " , ")},step\r\n\r\n 1 , 2 ,3,"a, ""b"""\r\n\n'
    ((_, plan),) = read(text)
    assert plan.nodes[0].step == 'a, "b"'


# -- what is no trace --------------------------------------------------------------------------------------

QUERIES = f"{HEAD},query,tenant,slo_s,duration_s\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "calls: the file is empty; a trace begins with"),
        ("\n \n", "calls: the file is empty; a trace begins with"),
        (HEAD, "calls: there is a line of column names and no row below it"),
        (
            "time_s,input_tokens\n1,2\n",
            "line 1: the column output_tokens is missing; it holds a whole number",
        ),
        (f"{HEAD},tokens\n1,2,3,4", "line 1: no column is called 'tokens'; there are time_s, input_tokens, "),
        (f"{HEAD},step,step\n1,2,3,4,5", "line 1: the column step is there twice"),
        (HEAD.replace(",", ";"), "line 1: no column is called 'time_s;input_tokens;output_tokens'"),
        (f"{HEAD}\n1,2\n", "line 2: 2 fields instead of 3: time_s, input_tokens, output_tokens"),
        (f"{HEAD}\n1,2,3,4\n", "line 2: 4 fields instead of 3"),
        (f"{HEAD}\n\n2,1,1\n1,1,1\n", "line 4: time_s is 1.0 after 2.0; rows must be in the order of time_s"),
        (f"{HEAD}\n-1,2,3", "line 2: time_s is '-1'; it must be a number of seconds from 0 to 1e+12"),
        (f"{HEAD}\nnan,2,3", "line 2: time_s is 'nan'"),
        (f"{HEAD}\ninf,2,3", "line 2: time_s is 'inf'"),
        (f"{HEAD}\n1e13,2,3", "line 2: time_s is '1e13'"),
        (f"{HEAD}\n1_0,2,3", "line 2: time_s is '1_0'"),
        (f"{HEAD}\n١,2,3", "line 2: time_s is '١'"),
        (f"{HEAD}\n,2,3", "line 2: time_s is empty; it must be a number of seconds"),
        (f"{HEAD}\n1,-2,3", "line 2: input_tokens is '-2'; it must be a whole number from 1 to 2147483648"),
        (f"{HEAD}\n1,0,3", "line 2: input_tokens is '0'"),
        (f"{HEAD}\n1,2.5,3", "line 2: input_tokens is '2.5'"),
        (f"{HEAD}\n1,2,many", "line 2: output_tokens is 'many'; it must be a whole number from 0 to"),
        (f"{HEAD}\n1,2,3000000000", "line 2: output_tokens is '3000000000'"),
        (f"{HEAD}\n1,2,1" + "0" * 400, "line 2: output_tokens is '1000"),
        (f"{HEAD},slo_s\n1,2,3,0", "line 2: slo_s is '0'; it must be a number of seconds above 0"),
        (f"{HEAD},priority\n1,2,3,1e10", "line 2: priority is '1e10'"),
        (f"{HEAD},max_tokens\n1,2,3,0", "line 2: max_tokens is '0'"),
        (f"{HEAD},duration_s\n1,2,3,-0.1", "line 2: duration_s is '-0.1'"),
        (f"{HEAD},step\n1,2,3,a\tb", "line 2: step is 'a\\tb'; it must be printable text"),
        (f"{HEAD},step\n1,2,3," + "x" * 1001, "line 2: step is 'xxx"),
        (
            f'{HEAD}\n1,2,"3\n4,5,6',
            "line 2: the line is not CSV: a quoted field does not end on it; each call has one line",
        ),
        (f'{HEAD}\n1,2,"3"4', "line 2: the line is not CSV: ',' expected"),
        (f"{HEAD}," + "step," * 150_000 + "step\n", "line 1: the column step is there twice"),
        (
            f"{HEAD},max_tokens\n1,2,4,3",
            "line 2: output_tokens is 4, above max_tokens, 3, where an engine stops",
        ),
        (f"{HEAD}\n" + '{"time_s": 1}', "line 2: 1 fields instead of 3"),
        (f"{HEAD}\n1,2,\0", "line 2: the line holds a NUL byte; a trace is text"),
        (f"{HEAD}\n1,2,\udcff", "line 2: character 5 is not UTF-8 text"),
        (f"{HEAD}\n1,2,3" + " " * MAX_LINE, "line 2: the line is longer than 1000000 characters"),
        (QUERIES + "1,2,3,q,a,,\n1,2,3,q,b,,", "line 3: tenant of the query 'q' is 'b', but line 2 says 'a'"),
        (
            QUERIES + "1,2,3,q,,,\n1,2,3,q,,5,\n1,2,3,q,,6,",
            "line 4: slo_s of the query 'q' is 6.0, but line 3",
        ),
        (
            QUERIES + "1,2,3,q,,,1\n1,2,3,q,,,",
            "line 3: duration_s must be given for all calls of the query 'q'",
        ),
        ('{"time_s": 1, "input_tokens": "x", "output_tokens": 1}', "line 1: input_tokens is 'x'"),
        ('{"time_s": 1, "input_tokens": true, "output_tokens": 1}', "line 1: input_tokens is True"),
        ('{"time_s": 1, "input_tokens": [1], "output_tokens": 1}', "line 1: input_tokens is [1]"),
        ('{"time_s": null, "input_tokens": 1, "output_tokens": 1}', "line 1: time_s is empty"),
        ('{"time_s": NaN, "input_tokens": 1, "output_tokens": 1}', "line 1: time_s is nan"),
        ('{"time_s": 1' + "0" * 400 + ', "input_tokens": 1, "output_tokens": 1}', "line 1: time_s is 1000"),
        ('{"time_s": 1, "input_tokens": 1, "output_tokens": 1, "step": 1.5}', "line 1: step is 1.5"),
        (
            '{"time_s": 1, "input_tokens": 1, "output_tokens": 1, "step": "\\ud800"}',
            "line 1: step is '\\ud800'",
        ),
        ('{"time_s": 1, "input_tokens": 1}', "line 1: the column output_tokens is missing"),
        (
            '{"time_s": 1, "input_tokens": 1, "output_tokens": 1, "time_s": 2}',
            'line 1: the line is not JSON, \'{"time_s": 1, ',
        ),
        ('{"time_s": 1, "step": {"a": 1, "a": 2}}', ": 'a' is there twice"),
        ('{"time_s": 1' + "0" * 5_000 + "}", ": a number in it has too many digits"),
        ('{"time_s": 1, "tokens": 1}', "line 1: no column is called 'tokens'"),
        (
            '{"time_s": 1, "input_tokens": 1, "output_tokens": 1}\n1,2,3',
            "line 2: the line is not JSON, '1,2,3'",
        ),
        (
            '{"time_s": 1, "input_tokens": 1, "output_tokens": 1}\n7',
            "line 2: a row is a JSON object on one line",
        ),
        (
            '[{"time_s": 1, "input_tokens": 1, "output_tokens": 1}]',
            "line 1: a row is a JSON object on one line",
        ),
        ('{"time_s": 1,\n"input_tokens": 1}', "line 1: the line is not JSON"),
        ("{" * 100_000, "line 1: the line is not JSON"),
        ('{"a":' * 100_000, "line 1: the line is not JSON"),
        ('{"agentsched": 2}', "line 1 is not the head of a journal"),
        ('{"agentsched": 9}', "line 1 is not the head of a journal"),
    ],
)
def test_a_bad_trace_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith("calls: ")
    assert message in said
    assert len(said) < 600
    assert "\n" not in said


def test_too_many_rows_and_too_many_calls_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_ROWS", 3)
    with pytest.raises(UsageError, match="line 5: the trace has more than 3 rows; play a part of it"):
        read(HEAD + "\n1,2,3" * 9)
    monkeypatch.setattr(gathering, "MAX_CALLS", 2)
    with pytest.raises(UsageError, match="line 4: the query 'q' has more than 2 calls"):
        read(f"{HEAD},query" + "\n1,2,3,q" * 9)


cells = st.sampled_from(["", "0", "1", "2.5", "-1", "nan", "1e400", "q", '"', "'", "{", "\r", "\ud800", "\0"])
lines = st.one_of(
    st.text(),
    st.just(HEAD),
    st.just(f"{HEAD},query,duration_s"),
    st.lists(cells, min_size=2, max_size=6).map(",".join),
    st.dictionaries(
        st.sampled_from(["time_s", "input_tokens", "output_tokens", "query", "agentsched", "duration_s"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    ).map(json.dumps),
)


@given(st.lists(lines))
@settings(max_examples=200)
def test_whatever_stands_there_it_is_a_trace_or_a_usage_error(text: list[str]) -> None:
    try:
        arrivals = read_trace(text, "calls")
    except UsageError as error:
        assert str(error).startswith("calls: ")
    else:
        assert arrivals
        for _, plan in arrivals:
            check_plan(plan)


# -- journals ----------------------------------------------------------------------------------------------

FLEET = [Backend("http://a/v1", name="a", models=["m"]), Backend("http://b/v1", name="b", models=["m"])]


def journal(
    play: Callable[[Callable[[Event], list[Start]]], None], policy: Policy | None = None
) -> list[str]:
    """Return the journal of what `play` feeds; feeding returns the attempts that start."""
    lines: list[str] = []
    policy = policy if policy is not None else Policy.fcfs()
    written = Journal(lines.append, FLEET, policy=policy)
    engine = Engine(FLEET, policy=policy, journal=written)

    def feed(event: Event) -> list[Start]:
        commands = engine.handle(event)
        written.decided(commands)
        return [command for command in commands if isinstance(command, Start)]

    play(feed)
    return lines


def asked(request_id: str, at: float, **facts: Any) -> Submitted:
    facts = {"model": "m", "input_tokens": 10, "workflow": "w", **facts}
    return Submitted(at=at, request=Request(id=request_id, **facts))


def test_a_journal_is_read_whatever_the_policy_was() -> None:
    def play(feed: Callable[[Event], list[Start]]) -> None:
        feed(QueryOpened(at=1.0, query=Query(id="q", workflow="w", tenant="t", slo_s=9.0, deadline=61.0)))
        (first,) = feed(asked("r1", 1.5, query="q", step="plan", max_tokens=64))
        feed(Progressed(at=2.0, attempt_id=first.attempt_id, output_tokens=7))
        feed(Finished(at=2.5, attempt_id=first.attempt_id, usage=Usage(input_tokens=12, output_tokens=8)))
        (second,) = feed(asked("r2", 3.0, query="q", step="draft"))
        (third,) = feed(asked("r3", 3.0, workflow=None))
        feed(QueryClosed(at=3.0, query_id="q"))
        feed(Progressed(at=3.5, attempt_id=second.attempt_id, output_tokens=5))
        (again,) = feed(Failed(at=4.0, attempt_id=third.attempt_id, failure=Failure(kind=FailureKind.BROKEN)))
        feed(Finished(at=4.5, attempt_id=second.attempt_id, usage=Usage()))
        feed(Finished(at=5.0, attempt_id=again.attempt_id, usage=Usage(output_tokens=3)))

    node = Node(
        step="plan", input_tokens=12, output_tokens=8, estimated_tokens=10, max_tokens=64, delay_s=0.5
    )
    then = Node(step="draft", input_tokens=10, output_tokens=5, estimated_tokens=10, after=(0,), delay_s=0.5)
    alone = Node(input_tokens=10, output_tokens=3, estimated_tokens=10)
    for policy in (Policy.fcfs(), Policy(cost=lambda _job, load: load.name == "a")):
        assert read_trace(journal(play, policy), "run") == [
            (1.0, Plan(nodes=[node, then], workflow="w", tenant="t", slo_s=9.0, timeout_s=60.0)),
            (3.0, Plan(nodes=[alone])),
        ]


def test_what_was_not_answered_or_not_counted_is_left_out_and_told() -> None:
    def play(feed: Callable[[Event], list[Start]]) -> None:
        attempts = [feed(asked(f"r{number}", 1.0 + number))[0].attempt_id for number in range(6)]
        feed(Finished(at=9.0, attempt_id=attempts[0], usage=Usage(output_tokens=1)))
        feed(Finished(at=9.0, attempt_id=attempts[1], usage=Usage()))
        feed(Finished(at=9.0, attempt_id=attempts[2], usage=Usage(output_tokens=-3)))
        feed(Failed(at=9.0, attempt_id=attempts[3], failure=Failure(kind=FailureKind.INVALID)))
        feed(Cancelled(at=9.0, request_id="r4"))

    left_out = LeftOut()
    arrivals = read_trace(journal(play), "run", left_out=left_out)
    assert [at for at, _ in arrivals] == [1.0]
    assert (left_out.dropped, left_out.shortened, left_out.torn) == (5, 0, None)
    assert left_out.calls == [
        (4, "its output was not counted"),
        (6, "its output was not counted"),
        (8, "failed"),
        (10, "cancelled"),
        (12, "not answered when the journal ended"),
    ]


def test_queries_that_lack_calls_and_queries_that_lack_all_are_counted() -> None:
    def play(feed: Callable[[Event], list[Start]]) -> None:
        for name, outputs in {"a": (1, 1), "b": (1, None), "c": (None, None), "d": ()}.items():
            feed(QueryOpened(at=1.0, query=Query(id=name, workflow="w")))
            for number, output in enumerate(outputs):
                (start,) = feed(asked(f"{name}{number}", 1.0, query=name))
                feed(Finished(at=2.0, attempt_id=start.attempt_id, usage=Usage(output_tokens=output)))
            feed(QueryClosed(at=2.0, query_id=name))

    left_out = LeftOut()
    lines = journal(play)
    assert [len(plan.nodes) for _, plan in read_trace(lines, "run", left_out=left_out)] == [2, 1]
    assert (len(left_out.calls), left_out.dropped, left_out.shortened) == (3, 2, 1)


def test_a_journal_that_was_cut_with_a_mark_and_blank_lines_is_a_trace() -> None:
    def play(feed: Callable[[Event], list[Start]]) -> None:
        (start,) = feed(asked("r1", 1.0))
        feed(Finished(at=2.0, attempt_id=start.attempt_id, usage=Usage(output_tokens=3)))

    lines = journal(play)
    left_out = LeftOut()
    torn = ["\ufeff\n", "\n", *lines, "\n", lines[1][:-5]]
    assert read_trace(torn, "run", left_out=left_out) == read_trace(lines, "run")
    assert left_out.torn == len(torn)
    with pytest.raises(UsageError, match=rf"run: line {len(lines) + 1}: at is 0.5 after 2.0"):
        read_trace([*lines, lines[1].replace(":1.0", ":0.5")], "run")


def test_a_journal_without_answers_or_without_commands_is_no_trace() -> None:
    lines = journal(lambda feed: feed(asked("r1", 1.0)))
    with pytest.raises(UsageError, match="run: line 1: no call in this journal was answered"):
        read_trace(lines, "run")
    head = {**json.loads(lines[0]), "agentsched": 1}
    with pytest.raises(UsageError, match="run: line 1: a journal of version 1 does not say which answer"):
        read_trace([json.dumps(head), lines[1]], "run")
    with pytest.raises(UsageError, match="run: line 3: not a journal event"):
        read_trace([*lines[:2], "x"], "run")
    for wrong in ({"backends": []}, {"backends": json.loads(lines[0])["backends"] * 2}):
        with pytest.raises(UsageError, match="run: line 1 is not the head of a journal"):
            read_trace([json.dumps({**json.loads(lines[0]), **wrong}), *lines[1:]], "run")
    with pytest.raises(UsageError, match="run: line 2: at is inf; it must be seconds"):
        read_trace([lines[0], '{"event":"Woke","at":Infinity}'], "run")
