"""An engine that begins with a profile: it is recorded, happens again, and a journal teaches what it has learned."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import Backend, Policy, UsageError
from agentsched.engine import Engine, Journal, replay
from agentsched.engine.commands import Resolve
from agentsched.engine.events import BackendJoined, Event
from agentsched.engine.reader import read_journal
from agentsched.model import Outcome
from agentsched.predict import Learned, Measured, Profile
from agentsched.sim.journalprofile import Following, journal_profile
from tests.engine.play import Play
from tests.strategies import fleets, learned, profiles, taught

POLICY = Policy.default()
SLOW = taught([(100, 50, 1.0, 0, 4.0)] * 3, 1_000)
FAST = taught([(100, 50, 1.0, 0, 0.25)] * 3, 9_000)


class Recording(Play):
    """A run whose decisions are recorded too, as shells do."""

    journal: Journal

    def feed(self, event: Event) -> None:
        super().feed(event)
        self.journal.decided(self.engine.commands)


def play(fleet: list[Backend], seed: int, profile: Profile | None) -> tuple[list[str], Play]:
    lines: list[str] = []
    journal = Journal(lines.append, fleet, policy=POLICY, profile=profile)
    run = Recording(Engine(fleet, policy=POLICY, profile=profile, journal=journal), Random(seed))
    run.journal = journal
    run.run(60)
    return lines, run


def profile_of(fleet: list[Backend], *rows: Learned) -> Profile:
    return Profile(
        backends=tuple(
            Measured(base_url=backend.base_url, name="elsewhere", learned=row, source="run")
            for backend, row in zip(fleet, rows, strict=False)
        )
    )


@given(fleets(), st.lists(learned, max_size=3), profiles, st.integers(0, 10**6))
@settings(max_examples=40)
def test_a_run_with_a_profile_replays_to_the_same_commands(
    fleet: list[Backend], rows: list[Learned], more: Profile, seed: int
) -> None:
    profile = more.updated(profile_of(fleet, *rows))
    lines, run = play(fleet, seed, profile)
    assert list(replay(lines, POLICY)) == run.steps
    head, entries = read_journal(lines)
    assert head.profile is not None
    assert head.profile.steps == profile.steps
    assert head.profile.prompts == profile.prompts
    assert {one.name: one.learned for one in head.profile.backends} == {
        spec.name: found for spec in fleet if (found := profile.of(spec)) is not None
    }
    assert next(entries).line == 2 + len(profile.steps)


def test_the_profile_decides() -> None:
    fleet = [Backend(f"http://{name}/v1", name=name, models=["m"], metrics=False) for name in "ab"]
    fast = [
        Engine(fleet, policy=POLICY, profile=profile_of(fleet, *rows))
        for rows in ((FAST, SLOW), (SLOW, FAST))
    ]
    assert [one.backends["a"].speed.pace for one in fast] == [
        one.backends["b"].speed.pace for one in fast[::-1]
    ]
    assert fast[0].backends["a"].budget.told == 9_000
    assert Engine(fleet, policy=POLICY).backends["a"].speed.pace is None


def test_who_joins_later_begins_with_what_the_event_says() -> None:
    engine = Engine([Backend("http://a/v1", name="a")], policy=POLICY)
    engine.handle(BackendJoined(at=1.0, backend=Backend("http://b/v1", name="b"), learned=FAST))
    engine.handle(BackendJoined(at=2.0, backend=Backend("http://c/v1", name="c")))
    assert engine.backends["b"].learned.decode is not None
    assert engine.backends["b"].learned.kv_tokens == 9_000
    assert engine.backends["c"].learned == Learned()


def test_no_address_of_a_profile_is_recorded() -> None:
    fleet = [Backend("https://secret-host/secret-path", name="a")]
    profile = profile_of(fleet, FAST).updated(profile_of([Backend("http://secret-other/v1")], SLOW))
    lines, _ = play(fleet, 1, profile)
    assert "secret" not in "".join(lines)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda head: head.update(profile=[]), "[] is not an object"),
        (lambda head: head["profile"].update(steps=10**6), "its profile is of 1000000 steps; there may be 1000"),
        (lambda head: head["profile"].update(steps=9), "line 2 is no step of its profile: it does not say 'step'"),
        (lambda head: head["profile"].update(prompts=None), "prompts is None; it must be a list"),
        (lambda head: head["profile"]["backends"].update(a={}), "what was learned does not say 'prefill'"),
    ],
)  # fmt: skip
def test_a_broken_profile_in_a_journal_is_one_clear_line(change: Any, why: str) -> None:
    fleet = [Backend("http://a/v1", name="a")]
    lines, _ = play(fleet, 1, profile_of(fleet, FAST))
    head = json.loads(lines[0])
    change(head)
    with pytest.raises(UsageError) as error:
        list(replay([json.dumps(head) + "\n", *lines[1:]], POLICY))
    assert str(error.value) == f"line 1 is not the head of a journal: {why}"


# -- what a journal teaches --------------------------------------------------------------------------------


@given(fleets(), st.none() | profiles, st.integers(0, 10**6))
@settings(max_examples=60)
def test_a_journal_teaches_what_the_engine_has_learned(
    fleet: list[Backend], profile: Profile | None, seed: int
) -> None:
    """By its decisions, so that it does not matter which policy took them."""
    lines, run = play(fleet, seed, profile)
    head, entries = read_journal(lines)
    following = Following(head)
    for entry in entries:
        following.take(entry)
    engine = run.engine
    assert {name: row.learned for name, row in following.rows.items()} == {
        name: row.learned for name, row in engine.backends.items()
    }
    assert following.past.prompts.learned() == engine.past.prompts.learned()
    assert following.past.lengths._means == engine.past.lengths._means


def test_every_answer_of_a_journal_is_counted() -> None:
    fleet = [Backend(f"http://{name}/v1", name=name) for name in "ab"]
    lines, run = play(fleet, 3, None)
    ends = [one for _, commands in run.steps for one in commands if isinstance(one, Resolve)]
    completed = [one for one in ends if one.outcome is Outcome.COMPLETED]
    profile = journal_profile(lines)
    assert len(completed) > 5
    assert sum(row.calls for row in profile.steps) == len(completed)
    for one in profile.backends:
        assert one.calls == sum(end.backend == one.name for end in completed)
    assert {one.name for one in profile.backends} <= {"a", "b"}
    assert all(one.learned.decode is not None or one.learned.prefill is not None for one in profile.backends)


def test_an_old_journal_and_one_without_answers_teach_nothing() -> None:
    fleet = [Backend("http://a/v1", name="a")]
    lines: list[str] = []
    Journal(lines.append, fleet, policy=POLICY)
    with pytest.raises(UsageError, match="line 1: no call in this journal was answered"):
        journal_profile(lines)
    old = lines[0].replace('"agentsched": 3', '"agentsched": 1')
    with pytest.raises(UsageError, match="line 1: a journal of version 1 does not say"):
        journal_profile([old])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ('{"command":"Start","attempt_id":1,"request_id":"r","backend":"z"}', "'r'"),
        ('{"command":"Start","attempt_id":1,"request_id":"r1","backend":"z"}', "'z'"),
    ],
)
def test_decisions_that_cannot_have_been_are_named(command: str, named: str) -> None:
    lines: list[str] = []
    Journal(lines.append, [Backend("http://a/v1", name="a")], policy=POLICY)
    lines.append('{"event":"Submitted","at":0.0,"request":{"id":"r1","model":"m","input_tokens":5}}\n')
    with pytest.raises(UsageError, match=f"line 2: nothing before it names {named}"):
        journal_profile([*lines, f'{{"commands":[{command}]}}\n'])
