"""The journal: what is written can be read, what was recorded happens again, and mistakes name their line.

The recorded run under `tests/golden` pins the engine's decisions. A change of them is meant or it is a defect;
if it is meant, record again and read the difference before committing it:

    AGENTSCHED_RECORD=1 pytest tests/engine/test_journal.py
"""

import json
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from math import nan
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.engine import Engine, Journal, replay
from agentsched.engine.commands import Abort, Command, Forget, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.difference import first_difference
from agentsched.engine.events import BackendJoined, BackendLeft, Event, Failed, Woke
from agentsched.engine.journal import encode
from agentsched.engine.reader import decode, read_journal
from agentsched.errors import UsageError
from agentsched.model import Backend, BackendLoad, Failure, FailureKind, Job, Outcome, Reason
from agentsched.policy import Policy
from tests.engine.play import Play
from tests.strategies import events, failures, fleets, labels, maybe, times, tokens

GOLDEN = Path(__file__).parent.parent / "golden"
POLICY = Policy.fcfs()


# -- one event ---------------------------------------------------------------------------------------------


@given(events)
@settings(max_examples=400)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    assert decode(line) == event
    assert type(decode(line)) is type(event)
    assert encode(decode(line)) == line


def test_the_strategy_knows_every_kind_of_event() -> None:
    kinds = {strategy.wrapped_strategy.target for strategy in events.original_strategies}  # type: ignore[attr-defined]
    assert kinds == set(get_args(Event))


def test_defaults_are_left_out() -> None:
    assert encode(Woke(at=1.5)) == '{"event":"Woke","at":1.5}'
    failure = Failure(kind=FailureKind.REFUSED)
    assert json.loads(encode(Failed(at=0.0, attempt_id=3, failure=failure))) == {
        "event": "Failed",
        "at": 0.0,
        "attempt_id": 3,
        "failure": {"kind": "could not connect"},
    }


# -- a run -------------------------------------------------------------------------------------------------


class Recording(Play):
    """A run whose decisions are recorded too, as shells do."""

    journal: Journal

    def feed(self, event: Event) -> None:
        super().feed(event)
        self.journal.decided(self.engine.commands)


def recorded(fleet: Sequence[Backend], seed: int, steps: int, max_queued: int = 5) -> tuple[list[str], Play]:
    lines: list[str] = []
    journal = Journal(lines.append, fleet, policy=POLICY, max_queued=max_queued)
    engine = Engine(fleet, policy=POLICY, max_queued=max_queued, journal=journal)
    play = Recording(engine, Random(seed))
    play.journal = journal
    play.run(steps)
    return lines, play


@given(fleets(), st.integers(0, 10**6), st.sampled_from([0, 3, 1_000]))
@settings(max_examples=40)
def test_a_run_replays_to_the_same_commands(fleet: list[Backend], seed: int, max_queued: int) -> None:
    lines, play = recorded(fleet, seed, 60, max_queued)
    assert list(replay(lines, POLICY)) == play.steps


def test_names_that_look_alike_do_not_collide() -> None:
    names = ["gpu:1", "gpu-1", "gpu_1", "GPU-1", "gpu 1", "[::1]:80", ".", "/", "@", "?"]
    fleet = [Backend(f"http://h{number}/v1", name=name) for number, name in enumerate(names)]
    lines, play = recorded(fleet, seed=1, steps=30)
    assert list(replay(lines, POLICY)) == play.steps


def test_another_policy_may_be_replayed() -> None:
    """That is what a journal is for: the same events, other decisions."""
    fleet = [Backend(f"http://{name}/v1", name=name, models=["small", "large"]) for name in "ab"]
    lines, _ = recorded(fleet, seed=2, steps=60)
    for name in "ab":
        policy = Policy(
            cost=lambda _job, load, name=name: load.name != name, release_control=False, patience=0
        )
        first: dict[str, str] = {}
        for _, commands in replay(lines, policy):
            for command in commands:
                if isinstance(command, Start):
                    first.setdefault(command.request_id, command.backend)
        assert set(first.values()) == {name}


def test_no_key_no_address_and_no_words_of_a_backend_are_written() -> None:
    fleet = [
        Backend(f"https://secret-host-{name}.example/secret-path", name=name, api_key="sk-secret-key")
        for name in "ab"
    ]
    lines, play = recorded(fleet, seed=3, steps=200)
    text = "".join(lines)
    failures = [event.failure for event, _ in play.steps if isinstance(event, Failed)]
    assert failures
    assert all(failure.detail for failure in failures)
    for secret in ("secret", "example", "http", "words of the backend"):
        assert secret not in text


def test_each_line_is_one_event_in_order() -> None:
    lines, play = recorded([Backend("http://a/v1")], seed=4, steps=30)
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    head, found = read_journal(lines)
    assert head.policy == {
        "rank": "agentsched.policy.rank.arrival",
        "cost": "agentsched.policy.place.finish_time",
        "release_control": "True",
        "patience": "0.25",
    }
    assert [(one.event, one.commands or []) for one in found] == play.steps
    numbers = [number for number, line in enumerate(lines, 1) if line.startswith('{"event"')]
    assert [one.line for one in read_journal(lines)[1]] == numbers


def test_an_event_is_recorded_before_it_is_handled() -> None:
    lines: list[str] = []
    fleet = [Backend("http://a/v1")]
    policy = Policy(rank=lambda _job: nan)
    engine = Engine(fleet, policy=policy, journal=Journal(lines.append, fleet, policy=policy))
    event = decode(SUBMITTED)
    with pytest.raises(UsageError, match="NaN"):
        engine.handle(event)
    assert [decode(line) for line in lines[1:]] == [event]


# -- decisions ---------------------------------------------------------------------------------------------

commands = st.one_of(
    st.builds(Start, attempt_id=tokens, request_id=labels, backend=labels),
    st.builds(Abort, attempt_id=tokens),
    st.builds(
        Resolve,
        request_id=labels,
        outcome=st.sampled_from(Outcome),
        failure=maybe(failures),
        backend=maybe(labels),
        attempts=tokens,
        reason=maybe(st.sampled_from(Reason)),
    ),
    st.builds(ListModels, backend=labels),
    st.builds(LookAt, backend=labels),
    st.builds(WakeAt, at=times),
)


@given(st.lists(st.lists(commands), min_size=1))
@settings(max_examples=100)
def test_commands_are_read_as_they_were_written(decisions: list[list[Command]]) -> None:
    lines: list[str] = []
    journal = Journal(lines.append, [Backend("http://a/v1")], policy=POLICY)
    for decided in decisions:
        journal(Woke(at=1.0))
        journal.decided(decided)
    found = [one.commands for one in read_journal(lines)[1]]
    assert found == [*decisions[:-1], decisions[-1] or None]
    assert {type(command) for decided in found for command in decided or ()} <= set(get_args(Command))


def test_what_is_as_it_was_makes_no_difference() -> None:
    lines, _ = recorded(fleet(), seed=5, steps=100)
    assert first_difference(lines, POLICY) is None
    assert first_difference(lines[:-1], POLICY) is None  # the last event's commands may be missing


@pytest.mark.parametrize("number", [3, 15, 40])
def test_the_first_difference_is_found_and_explained(number: int) -> None:
    lines, _ = recorded(fleet(), seed=5, steps=100)
    starts = [index for index, line in enumerate(lines) if '"command":"Start"' in line]
    at = starts[number % len(starts)]
    decided = json.loads(lines[at])["commands"]
    start = next(one for one in decided if one["command"] == "Start")
    now, then = start["backend"], next(name for name in "abc" if name != start["backend"])
    start["backend"] = then
    lines[at] = json.dumps({"commands": decided})
    found = first_difference(lines, POLICY)
    assert found is not None
    assert found.line == at  # counted from 1: the line before the commands
    call = start["request_id"], start["attempt_id"]
    assert (found.recorded, found.now) == (Start(call[1], call[0], then), Start(call[1], call[0], now))
    assert f"recorded: start {call[0]} at {then} as attempt {call[1]}\n" in str(found)
    assert f"now:      start {call[0]} at {now} as attempt {call[1]}\n" in str(found)
    for name in (then, now):
        assert f"\n  {name}: now " in str(found)
    assert "the policy is the one" in str(found)


def test_commands_that_are_missing_and_commands_that_are_new_are_differences() -> None:
    lines = [HEAD_2, SUBMITTED, GOOD]
    found = first_difference(lines, POLICY)
    assert found is not None
    assert (found.line, found.recorded, found.now) == (2, None, Start(1, "r1", "a"))
    assert "recorded: nothing more\n" in str(found)
    start = '{"commands":[{"command":"Start","attempt_id":1,"request_id":"r1","backend":"a"}]}'
    lines = [HEAD_2, SUBMITTED, start, GOOD, start, GOOD]
    found = first_difference(lines, POLICY)
    assert found is not None
    assert (found.line, found.recorded, found.now) == (4, Start(1, "r1", "a"), None)


def test_another_policy_is_named_in_the_difference() -> None:
    lines, _ = recorded([Backend(f"http://{n}/v1", name=n, models=["small"]) for n in "ab"], seed=2, steps=60)

    def dislikes_a(_job: Job, load: BackendLoad) -> float:
        return float(load.name == "a")

    found = first_difference(lines, Policy(cost=dislikes_a))
    assert found is not None
    assert "cost of the policy was agentsched.policy.place.finish_time, now it is " in str(found)
    assert "dislikes_a" in str(found)


def test_a_policy_that_raised_leaves_the_commands_that_were_decided() -> None:
    lines: list[str] = []
    fleet = [Backend("http://a/v1")]
    policy = Policy(rank=lambda _job: nan)
    journal = Journal(lines.append, fleet, policy=policy)
    engine = Engine(fleet, policy=policy, journal=journal)
    for event in (decode(SUBMITTED), decode(GOOD)):
        try:
            engine.handle(event)
        except UsageError:
            pass
        journal.decided(engine.commands)
    assert first_difference(lines, policy) is None


def test_a_journal_of_version_1_replays_and_holds_nothing_to_compare() -> None:
    lines, play = recorded(fleet(), seed=6, steps=40)
    head = json.loads(lines[0])
    del head["policy"]
    old = [
        json.dumps({**head, "agentsched": 1}),
        *(line for line in lines[1:] if line.startswith('{"event"')),
    ]
    assert list(replay(old, POLICY)) == play.steps
    assert all(one.commands is None for one in read_journal(old)[1])
    with pytest.raises(UsageError, match="holds no commands"):
        first_difference(old, POLICY)
    with pytest.raises(UsageError, match="line 3: commands without an event"):
        list(replay([*old[:2], '{"commands":[]}'], POLICY))


@pytest.mark.parametrize(
    "line",
    [
        '{"commands":[{"command":"Start","attempt_id":"one","request_id":"r1","backend":"a"}]}',
        '{"commands":[{"command":"Begin"}]}',
        '{"commands":[{"attempt_id":1}]}',
        '{"commands":["Start"]}',
        '{"commands":7}',
        '{"commands":[],"event":"Woke"}',
    ],
)
def test_wrong_commands_are_named(line: str) -> None:
    steps = replay([HEAD_2, SUBMITTED, line, GOOD], POLICY)
    assert next(steps)[1] == [Start(1, "r1", "a")]
    with pytest.raises(UsageError, match=r"^line 3: "):
        next(steps)
    with pytest.raises(UsageError, match=r"^line 2: commands without an event"):
        list(replay([HEAD_2, '{"commands":[]}'], POLICY))


def test_an_event_that_breaks_the_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_engine: Engine, _event: Event) -> None:
        raise ZeroDivisionError("too few")

    monkeypatch.setattr(Engine, "_woke", broken)
    with pytest.raises(UsageError, match=r"^line 3: the engine breaks on this event: ZeroDivisionError"):
        run(HEAD, SUBMITTED, GOOD)


# -- what is no journal ------------------------------------------------------------------------------------

HEAD = json.dumps(
    {
        "agentsched": 1,
        "max_queued": 10,
        "backends": [{"name": "a", "models": ["m"], "max_concurrency": 1, "rpm": None, "tpm": None}],
    }
)
HEAD_2 = HEAD.replace('"agentsched": 1', '"agentsched": 2, "policy": {}')
GOOD = '{"event":"Woke","at":1.0}'
SUBMITTED = '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m","input_tokens":1}}'


def run(*lines: str) -> list[list[Command]]:
    return [commands for _, commands in replay(lines, POLICY)]


def test_a_journal_written_by_hand() -> None:
    assert run(HEAD, GOOD, SUBMITTED) == [[], [Start(1, "r1", "a")]]
    assert run(HEAD) == []


@pytest.mark.parametrize(
    "head",
    [
        "{}",
        "[]",
        "null",
        "not json",
        GOOD,
        "[" * 100_000,
        HEAD.replace('"agentsched": 1', '"agentsched": 3'),
        HEAD.replace('"agentsched": 1', '"agentsched": 2'),
        HEAD.replace('"agentsched": 1', '"agentsched": 2, "policy": {"rank": 1}'),
        HEAD.replace('"agentsched": 1', '"agentsched": 2, "policy": "fcfs"'),
        HEAD.replace('"agentsched": 1', '"agentsched": true'),
        HEAD.replace('"agentsched": 1, ', ""),
        HEAD.replace('"max_queued": 10', '"max_queued": "ten"'),
        HEAD.replace('"max_queued": 10', '"max_queued": true'),
        HEAD.replace('"max_queued": 10, ', ""),
        HEAD.replace('"a"', "7"),
        HEAD.replace('"name": "a", ', ""),
        HEAD.replace('"name": "a"', '"name": null'),
        HEAD.replace('"rpm": null', '"rpm": 0'),
        HEAD.replace('"rpm": null', '"speed": 9'),
        HEAD.replace('[{"name"', '["b", {"name"'),
        json.dumps({"agentsched": 1, "max_queued": 10, "backends": []}),
        json.dumps({"agentsched": 1, "max_queued": 10, "backends": None}),
        json.dumps({"agentsched": 1, "max_queued": 10, "backends": json.loads(HEAD)["backends"] * 2}),
    ],
)
def test_a_wrong_head_is_named(head: str) -> None:
    with pytest.raises(UsageError, match="line 1 is not the head of a journal"):
        run(head, GOOD)


def test_no_lines_are_no_journal() -> None:
    with pytest.raises(UsageError, match="line 1 is not the head of a journal"):
        run()


BAD = [
    "not json",
    GOOD[:-3],
    "{}",
    "[]",
    "7",
    "null",
    '"Woke"',
    '["event"]',
    "[" * 100_000,
    '{"event":"Slept","at":1.0}',
    '{"event":["Woke"],"at":1.0}',
    '{"event":"Woke"}',
    '{"event":"Woke","at":"soon"}',
    '{"event":"Woke","at":null}',
    '{"event":"Woke","at":true}',
    '{"event":"Woke","at":NaN}',
    '{"event":"Woke","at":1' + "0" * 400 + "}",
    '{"event":"Woke","at":1.0,"mood":"good"}',
    '{"event":"Submitted","at":1.0}',
    '{"event":"Submitted","at":1.0,"request":"r1"}',
    '{"event":"Submitted","at":1.0,"request":null}',
    '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m"}}',
    '{"event":"Submitted","at":1.0,"request":{"id":1,"model":"m","input_tokens":1}}',
    '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m","input_tokens":1.5}}',
    '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m","input_tokens":true}}',
    '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m","input_tokens":1,"query":{"id":"q"}}}',
    '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":"m","input_tokens":1,"deadline":NaN}}',
    '{"event":"Cancelled","at":1.0,"request_id":"r1","reason":"a whim"}',
    '{"event":"Finished","at":1.0,"attempt_id":1,"usage":[1,2]}',
    '{"event":"Finished","at":1.0,"attempt_id":1,"usage":{"output_tokens":"many"}}',
    '{"event":"Failed","at":1.0,"attempt_id":1,"failure":{"kind":"bad luck"}}',
    '{"event":"Failed","at":1.0,"attempt_id":1,"failure":{}}',
    '{"event":"QueryOpened","at":1.0,"query":"q"}',
    '{"event":"ModelsListed","at":1.0,"backend":"a","models":"m"}',
    '{"event":"ModelsListed","at":1.0,"backend":"a","models":[1]}',
    '{"event":"ModelsListed","at":1.0,"backend":"z","models":["m"]}',
    '{"event":"Woke","at":1.0,"at":1.0}',
    '{"event":"Woke","at":-1e13}',
    '{"event":"Woke","at":-0.5}',
    '{"event":"Woke","at":1' + "0" * 5_000 + "}",
    HEAD,
    SUBMITTED,
]


@pytest.mark.parametrize("line", BAD)
def test_a_wrong_line_is_named_and_what_came_before_is_replayed(line: str) -> None:
    steps = replay([HEAD, SUBMITTED, line, GOOD], POLICY)
    assert next(steps)[1] == [Start(1, "r1", "a")]
    with pytest.raises(UsageError, match=r"^line 3: ") as caught:
        next(steps)
    assert len(str(caught.value)) < 700


words = st.text().filter(str.strip)


@given(words | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_whatever_stands_there_it_is_an_event_or_a_usage_error(line: str) -> None:
    with pytest.raises(UsageError, match=r"^line 2: "):
        run(HEAD, line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "(Expecting value)"),
        ("7", "(7 is not an object)"),
        ("[" * 100_000, "(it is nested too deeply)"),
        ("{}", "(it does not say 'event')"),
        ('{"event":"Slept","at":1.0}', "(no event is called 'Slept')"),
        ('{"event":7}', "(event is 7; it must be text)"),
        ('{"event":"Woke"}', "(Woke does not say 'at')"),
        ('{"event":"Woke","at":"soon"}', "(at is 'soon'; it must be a number)"),
        ('{"event":"Woke","at":1,"mood":"good"}', "(Woke has no 'mood')"),
        ('{"event":"Woke","at":1,"at":1}', "('at' is there twice)"),
        ('{"event":"Woke","at":1' + "0" * 5_000 + "}", "(a number in it has too many digits)"),
        ('{"event":"Submitted","at":1.0,"request":"r1"}', "(request is 'r1'; it must be an object)"),
        (
            '{"event":"Submitted","at":1.0,"request":{"id":"r1","model":null}}',
            "(Request does not say 'input_tokens')",
        ),
        (
            SUBMITTED.replace('"m"', "[]"),
            "(model is []; it must be text or null)",
        ),
        (
            '{"event":"Cancelled","at":1.0,"request_id":"r1","reason":"a whim"}',
            "(reason is 'a whim'; it must be one of ",
        ),
        (
            '{"event":"ModelsListed","at":1.0,"backend":"a","models":"m"}',
            "(models is 'm'; it must be a list of names or null)",
        ),
        ('{"commands":7}', "(commands is 7; it must be a list)"),
        ('{"commands":["Start"]}', "('Start' is not an object)"),
        ('{"commands":[{"command":"Begin"}]}', "(no command is called 'Begin')"),
        ('{"commands":[],"event":"Woke"}', "(commands stand alone on their line)"),
        (HEAD, "(another journal begins here; give each a file of its own)"),
        ('{"event":"Woke","at":1e13}', "line 3: at is 10000000000000.0; it must be seconds, within ±1e+12"),
        ('{"event":"Woke","at":-0.5}', "line 3: at is -0.5 after 1.0; time cannot go back within a journal"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_in_words(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=r"^line 3: ") as caught:
        run(HEAD_2, SUBMITTED, line)
    assert message in str(caught.value)
    assert not any(raw in str(caught.value) for raw in ("Error(", "__init__", "argument"))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("7", "7 is not an object"),
        ("{}", "it does not say 'agentsched'"),
        (HEAD.replace('"agentsched": 1', '"agentsched": 2'), "it does not say 'policy'"),
        (HEAD.replace('"agentsched": 1', '"agentsched": 4'), "it is of version 4; this reads 1, 2 and 3"),
        (HEAD.replace('"max_queued"', '"agentsched"'), "'agentsched' is there twice"),
        (HEAD.replace('"rpm": null', '"speed": 9'), "a backend has no 'speed'"),
        (HEAD.replace('"rpm": null', '"base_url": "x"'), "a backend has no 'base_url'"),
        (HEAD.replace('"rpm": null', '"rpm": 0'), "Backend: rpm must be a whole number of at least 1"),
        (HEAD.replace('"models": ["m"]', '"models": 7'), "models is 7; it must be a list of names or null"),
        (json.dumps({"agentsched": 1, "max_queued": 1, "backends": []}), "it names no backend"),
        (json.dumps({"agentsched": 1, "max_queued": 1, "backends": ["b"]}), "'b' is not an object"),
        (json.dumps({**json.loads(HEAD), "backends": json.loads(HEAD)["backends"] * 2}), "two backends have"),
    ],
)
def test_what_is_wrong_with_a_head_is_said_in_words(head: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        run("\n", head, GOOD)
    assert str(caught.value).startswith(f"line 2 is not the head of a journal: {message}")


def test_blank_lines_and_a_mark_at_the_start_say_nothing() -> None:
    lines = ["\ufeff\n", " \n", HEAD_2, "\n", SUBMITTED, GOOD, "\n", ""]
    _, found = read_journal(lines)
    assert [one.line for one in found] == [5, 6]
    assert run("\ufeff" + HEAD, GOOD) == [[]]


WHOLES = ["input_tokens", "max_tokens", "priority", "sdk_retry"]


@pytest.mark.parametrize("name", WHOLES)
@pytest.mark.parametrize("whole", [2**53 + 1, -(2**53) - 1, 10**400])
def test_whole_numbers_that_no_engine_can_reckon_with_are_named(name: str, whole: int) -> None:
    event = json.loads(SUBMITTED)
    event["request"][name] = whole
    with pytest.raises(
        UsageError, match=rf"^line 2: .*\({name} is .*; it must be a whole number within ±900"
    ):
        run(HEAD, json.dumps(event))


@given(st.sampled_from(WHOLES), st.integers(-(2**53), 2**53))
def test_all_others_are_reckoned_with(name: str, whole: int) -> None:
    event = json.loads(SUBMITTED)
    event["request"][name] = whole
    assert run(HEAD, json.dumps(event), SUBMITTED.replace("r1", "r2"))


def test_a_clock_that_is_not_quite_monotonic_is_none_of_ours() -> None:
    assert run(HEAD, *(GOOD.replace("1.0", at) for at in ("5.0", "4.0", "4.5", "5.0"))) == [[]] * 4
    with pytest.raises(UsageError, match=r"^line 4: at is 3\.9 after 5\.0"):
        run(HEAD, *(GOOD.replace("1.0", at) for at in ("5.0", "4.5", "3.9")))


@given(st.data())
@settings(max_examples=60)
def test_a_journal_that_was_cut_anywhere_in_its_last_line_is_read_up_to_there(data: st.DataObject) -> None:
    lines, _ = recorded(fleet(), seed=5, steps=8)
    last = data.draw(st.integers(1, len(lines) - 1))
    cut = data.draw(st.integers(1, len(lines[last]) - 2))
    torn: list[int] = []
    _, found = read_journal([*lines[:last], lines[last][:cut]], on_torn=torn.append)
    kept = [(one.line, one.event) for one in found]
    assert kept == [(one.line, one.event) for one in read_journal(lines[:last])[1]]
    assert torn == [last + 1]
    with pytest.raises(UsageError, match=rf"^line {last + 1}: not a journal event"):
        list(read_journal([*lines[:last], lines[last][:cut]])[1])


def test_what_is_wrong_for_another_reason_was_not_cut() -> None:
    for end in (["nonsense"], [GOOD[:-3] + "\n"], [GOOD[:-3], GOOD], ['{"event":"Slept"}'], ["\udcff"]):
        with pytest.raises(UsageError, match=r"^line 2: "):
            list(
                read_journal([HEAD + "\n", *end], on_torn=lambda line: pytest.fail(f"{line} was not cut"))[1]
            )
    _, found = read_journal([HEAD + "\n", GOOD + "\n", GOOD])  # only its line end is missing
    assert len(list(found)) == 2


# -- the recorded run --------------------------------------------------------------------------------------


def fleet() -> list[Backend]:
    return [
        Backend("http://a/v1", name="a", models=["small", "large"], max_concurrency=4),
        Backend("http://b/v1", name="b", max_concurrency=1),
        Backend("http://c/v1", name="c", models={"small": "org/Small"}, rpm=4, tpm=2_000),
    ]


def told(command: Command) -> str:
    match command:
        case Start(attempt_id, request_id, backend):
            return f"start {request_id} as {attempt_id} at {backend}"
        case Abort(attempt_id):
            return f"abort {attempt_id}"
        case Resolve():
            why = command.failure.kind.name if command.failure is not None else command.reason
            end = f"{command.request_id} {command.outcome} after {command.attempts} at {command.backend}"
            return f"{end}: {why}" if why else end
        case ListModels(backend):
            return f"list {backend}"
        case LookAt(backend):
            return f"look at {backend}"
        case WakeAt(at):
            return f"wake at {at!r}"


def as_text(steps: Iterable[tuple[Event, list[Command]]]) -> list[str]:
    lines = ["; ".join(map(told, commands)) for _, commands in steps]
    return [*lines, "sha256 " + sha256("\n".join(lines).encode()).hexdigest()]


def test_the_recorded_run_leads_to_the_same_decisions() -> None:
    journal, decisions = GOLDEN / "mixed.jsonl", GOLDEN / "mixed.commands"
    if os.environ.get("AGENTSCHED_RECORD"):
        lines, play = recorded(fleet(), seed=5, steps=300, max_queued=1)
        journal.write_text("".join(lines), encoding="utf-8")
        decisions.write_text("\n".join(as_text(play.steps)) + "\n", encoding="utf-8")
    lines = journal.read_text(encoding="utf-8").splitlines()
    events = [line for line in lines if line.startswith('{"event"')]
    expected = decisions.read_text(encoding="utf-8").splitlines()
    for number, (found, wanted) in enumerate(zip(as_text(replay(lines, POLICY)), expected, strict=True)):
        event = events[number] if number < len(events) else "the digest"
        assert found == wanted, f"of the journal: {event}"


def test_the_recorded_run_has_everything_in_it() -> None:
    steps = list(replay((GOLDEN / "mixed.jsonl").read_text(encoding="utf-8").splitlines(), POLICY))
    commands = [command for _, commands in steps for command in commands]
    ends = [command for command in commands if isinstance(command, Resolve)]
    of_the_fleet = {BackendJoined, BackendLeft, Forget}  # it changes in `test_fleet_machine.py`
    assert {type(event) for event, _ in steps} == set(get_args(Event)) - of_the_fleet
    assert {type(command) for command in commands} == set(get_args(Command)) - of_the_fleet
    assert {end.outcome for end in ends} == set(Outcome)
    reasons = {Reason.QUEUE_FULL, Reason.CALL_LIMIT, Reason.UNKNOWN_MODEL, Reason.CLOSED, Reason.CALLER_LEFT}
    assert {end.reason for end in ends} == {None, *reasons}
    assert {c.backend for c in commands if isinstance(c, Start)} == {"a", "b", "c"}
    assert any(end.outcome is Outcome.COMPLETED and end.attempts > 1 for end in ends)
