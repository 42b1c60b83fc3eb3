"""`agentsched replay`: what was recorded happens again, and where it does not, the reason is told."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran
from tests.cli.test_simulate import MAIN

Run = Callable[..., Ran]


def events_of(path: Path) -> int:
    return sum(line.startswith('{"event"') for line in path.read_text().splitlines())


def test_what_a_scheduler_recorded_happens_again(run: Run, journal: Path) -> None:
    code, out, err = run("replay", journal)
    assert (code, err) == (0, "")
    *lines, verdict = out.splitlines()
    assert len(lines) == events_of(journal)
    assert verdict.startswith(f"no difference: {len(lines)} events led to ")
    assert verdict.endswith(" commands, as recorded")
    for said in (
        "opened: support",
        "submitted: ",
        "-> start ",
        " at fake-1 as attempt ",
        "connection broke",
        "closed",
    ):
        assert any(said in line for line in lines)


def test_only_the_verdict_or_only_some_events(run: Run, journal: Path) -> None:
    code, out, _ = run("replay", journal, "--check")
    assert (code, out.count("\n")) == (0, 1)
    code, out, _ = run("replay", journal, "--limit", 3)
    assert (code, out.count("\n")) == (0, 5)
    assert out.splitlines()[-2] == f"... and {events_of(journal) - 3} more events"
    assert out.splitlines()[-1].startswith(f"no difference: {events_of(journal)} events")


def test_a_changed_decision_names_its_line_and_both_ways(run: Run, journal: Path) -> None:
    lines = journal.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if '"attempt_id":5,"request_id"' in line)
    commands = json.loads(lines[at])["commands"]
    start = next(one for one in commands if one.get("attempt_id") == 5 and one["command"] == "Start")
    then = {"fake-1": "fake-2", "fake-2": "fake-1"}[start["backend"]]
    lines[at] = json.dumps(
        {"commands": [{**one, "backend": then} if one is start else one for one in commands]}
    )
    journal.write_text("\n".join(lines) + "\n")
    code, out, err = run("replay", journal, "--check")
    assert (code, err) == (1, "")
    assert f", line {at}: at " in out.splitlines()[0]
    assert f"  recorded: start {start['request_id']} at {then} as attempt 5\n" in out
    assert f"  now:      start {start['request_id']} at {start['backend']} as attempt 5\n" in out
    assert f"  {start['request_id']}: started, submitted at " in out
    assert "  fake-1: now " in out
    assert "  fake-2: now " in out


def test_another_policy_is_warned_of(run: Run, journal: Path) -> None:
    head, *lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(head.replace(".rank.arrival", ".rank.shortest") + "".join(lines))
    code, out, err = run("replay", journal, "--check")
    assert (code, out.count("\n")) == (0, 1)
    assert err.startswith("note: recorded with another policy (rank agentsched.policy.rank.shortest, cost ")
    assert err.endswith("; replaying with default\n")
    assert run("replay", journal, "--check", "--policy", "fcfs")[2].endswith("; replaying with fcfs\n")


def test_an_old_journal_has_nothing_to_compare(run: Run, journal: Path) -> None:
    head, *lines = journal.read_text().splitlines(keepends=True)
    old = {name: item for name, item in json.loads(head).items() if name != "policy"}
    events = [line for line in lines if line.startswith('{"event"')]
    journal.write_text(json.dumps({**old, "agentsched": 1}) + "\n" + "".join(events))
    code, out, err = run("replay", journal, "--check")
    assert code == 0
    assert out.endswith(" commands; a journal of version 1 holds no commands to compare\n")
    assert err.startswith("note: the journal does not say with which policy it was recorded")
    code, _, err = run("simulate", journal, journal)
    assert (code, err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1 is not the head of a journal"),
        (b"time_s,input_tokens\n", "line 1 is not the head of a journal"),
        (b"\xff\xfe\x00", "line 1: the line holds a NUL byte"),
        (b"\xff\xfe", "line 1: character 1 is not UTF-8 text"),
        (b"[" * 100_000, "line 1 is not the head of a journal"),
        (b"%s\nnot json\n", "line 2: not a journal event"),
        (b'%s\n{"event":"Woke","at":1.0\n', "line 2: not a journal event"),
        (b'%s\n{"event":"Woke","at":1.0}\n\xff\n', "line 3: character 1 is not UTF-8 text"),
        (b'%s\n{"event":"Woke","at":9.0}\n{"event":"Woke","at":1.0}\n', "line 3: at is 1.0 after 9.0"),
        (b"%s\n%s\n", "line 2: not a journal event: '{"),
        (b'%s\n{"commands":[]}\n', "line 2: commands without an event before them"),
        (
            b'%s\n{"event":"ModelsListed","at":1.0,"backend":"z"}\n',
            "line 2: nothing before it names a backend 'z'",
        ),
    ],
)
def test_what_is_no_journal_is_one_line(run: Run, journal: Path, content: bytes, message: str) -> None:
    head = journal.read_bytes().splitlines()[0]
    journal.write_bytes(content.replace(b"%s", head))
    code, _, err = run("replay", journal)
    assert code == 2
    assert err.startswith(f"agentsched: {journal}: {message}")
    assert err.count("\n") == 1


def test_a_mark_blank_lines_and_a_line_that_was_cut_are_no_matter(run: Run, journal: Path) -> None:
    recorded = run("replay", journal, "--check")
    text = journal.read_bytes()
    journal.write_bytes(b"\xef\xbb\xbf\n\n" + text + b"\n\n")
    assert run("replay", journal, "--check") == recorded
    journal.write_bytes(text + b'{"event":"Wo')
    code, out, err = run("replay", journal, "--check")
    assert (code, out) == recorded[:2]
    assert err == (
        f"note: line {text.count(10) + 1}, the last one, was not written to its end and is left out\n"
    )


def test_both_commands_say_the_same_of_what_is_no_journal(run: Run, journal: Path, fleet: Path) -> None:
    head, *lines = journal.read_text().splitlines()
    backends = json.loads(head)["backends"]
    big = lines[0].replace('"at":', '"at":1' + "0" * 400 + ',"then":')
    asked = json.dumps({"event": "Submitted", "at": 0.0, "request": {"id": "r", "model": "m"}})
    for wrong in (
        [json.dumps({**json.loads(head), "backends": []}), *lines],
        [json.dumps({**json.loads(head), "backends": backends * 2}), *lines],
        ["", head, *lines, "x"],
        [head, big],
        [head, asked.replace('"m"', '"m", "input_tokens": 1' + "0" * 400)],
        [head, asked.replace('"m"', '"m", "input_tokens": 1, "max_tokens": 1' + "0" * 400)],
        [head, *lines, '{"event":"Woke","at":5.0}', *lines],
        [head, *lines[:2], "x" * 1_000_001],
    ):
        journal.write_text("\n".join(wrong) + "\n")
        code, _, err = run("replay", journal, "--check")
        assert (code, err.count("\n"), err[:-1].isprintable()) == (2, 1, True)
        assert run("simulate", journal, fleet) == (2, "", err)


def test_a_missing_file_a_folder_and_an_unknown_policy(run: Run, journal: Path) -> None:
    assert run("replay", "missing") == (2, "", "agentsched: cannot read missing: No such file or directory\n")
    assert run("replay", journal.parent)[2].endswith(": Is a directory\n")
    code, _, err = run("replay", journal, "--policy", "best")
    assert (code, err.count("\n")) == (2, 1)


def test_names_cannot_play_with_the_terminal(run: Run, journal: Path) -> None:
    text = '{"event":"QueryOpened","at":1.0,"query":{"id":"\\u001b[2J","workflow":"\\ud800"}}\n'
    head = journal.read_text().splitlines()[0]
    journal.write_text(f"{head}\n{text}")
    code, out, _ = run("replay", journal)
    assert code == 0
    assert "query '\\x1b[2J' opened: '\\ud800'" in out


def test_a_reader_that_leaves_is_no_error(journal: Path) -> None:
    head, *lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(head + '{"event":"Woke","at":0.0}\n' * 20_000 + "".join(lines))
    with subprocess.Popen(
        [*MAIN, "replay", journal], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "woke" in process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 1
