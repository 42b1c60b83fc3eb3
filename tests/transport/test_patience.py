"""Three bounds on an attempt: to its first token, between events, altogether."""

import asyncio
from types import ModuleType
from typing import Any

import pytest

from agentsched import Limits, UsageError
from agentsched.model import FailureKind
from tests.doubles import Script, Sink, counts, delta, events, incoming, said, whole
from tests.transport.ran import run

STREAM = {"stream": True}
STUCK = 3_600.0


@pytest.mark.parametrize(
    "answer",
    [
        Script(before=[STUCK]),
        events(STUCK, delta("a")),
        events(delta(role="assistant"), STUCK, delta("a")),
        events(*[b": still here\n\n", 3.0] * 9, delta("a")),
        events(*[delta(role="assistant"), 3.0] * 9, delta("a")),
    ],
    ids=["no head", "no event", "nothing but a role", "keep-alives", "roles"],
)
@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
def test_a_first_token_that_is_late(stack: ModuleType, answer: Script, fields: dict[str, Any]) -> None:
    ran = run(stack, answer, incoming(**fields), limits=Limits(first_token_s=10))
    assert ran.kind is FailureKind.TIMEOUT
    assert ran.ended is not None
    assert ran.ended.failure.detail == "no first token in 10 s (first_token_s)"
    assert ran.at == pytest.approx(10)


def test_empty_pieces_are_no_first_token(stack: ModuleType) -> None:
    script = events(delta("", role="assistant"), *[delta("")] * 4, 60.0)
    ran = run(stack, script, limits=Limits(first_token_s=5.0))
    assert ran.kind is FailureKind.TIMEOUT
    assert ran.at == 5.0


def test_an_early_first_token_ends_that_bound(stack: ModuleType) -> None:
    answer = events(9.0, delta("a"), 100.0, delta("b"), delta(finish="stop"), counts())
    assert run(stack, answer, limits=Limits(first_token_s=10)).ended is None


def test_case_44_a_stall_in_mid_stream(stack: ModuleType) -> None:
    """The connection stays open, even kept alive, and nothing more comes."""
    kept_alive = [b": ping\n\n", 1.0] * 30
    answer = events(delta("one "), 4.0, delta("two"), *kept_alive, delta("late"), delta(finish="stop"))
    for fields in ({}, STREAM):
        ran = run(stack, answer, incoming(**fields), limits=Limits(idle_s=5))
        assert ran.kind is FailureKind.TIMEOUT
        assert ran.ended is not None
        assert ran.ended.failure.detail == "nothing more in 5 s (idle_s)"
        assert ran.ended.partial_text == "one two"
        assert ran.ended.failure.delivered == bool(fields)
        assert ran.at == pytest.approx(9)


def test_pauses_shorter_than_the_bound_are_none(stack: ModuleType) -> None:
    answer = events(20.0, *[delta("a"), 4.9] * 50, delta(finish="stop"), counts())
    assert run(stack, answer, limits=Limits(idle_s=5)).ended is None


def test_a_slow_reader_is_no_stalled_backend(stack: ModuleType) -> None:
    class Slow(Sink):
        async def room(self) -> None:
            await asyncio.sleep(30.0)

    answer = events(*[delta("a"), 1.0] * 5, delta(finish="stop"), counts())
    ran = run(stack, answer, incoming(**STREAM), limits=Limits(idle_s=5), sink=Slow())
    assert ran.ended is None
    assert ran.at > 100


def test_a_total_holds_for_streams_and_whole_answers(stack: ModuleType) -> None:
    endless = events(*[delta("a"), 1.0] * 100)
    slow = Script(before=[STUCK])
    tools = incoming(tools=[])
    for answer, call, text in ((endless, incoming(), "a" * 10), (slow, incoming(), ""), (slow, tools, "")):
        ran = run(stack, answer, call, limits=Limits(total_s=9.5))
        assert ran.kind is FailureKind.TIMEOUT
        assert ran.ended is not None
        assert ran.ended.failure.detail == "not done in 9.5 s (total_s)"
        assert ran.ended.partial_text == text
        assert ran.at == pytest.approx(9.5)


def test_whole_answers_have_no_first_token_and_no_pauses(stack: ModuleType) -> None:
    answer = whole({"choices": [{}]})
    answer.before = [100.0]
    ran = run(stack, answer, incoming(tools=[]), limits=Limits(first_token_s=1, idle_s=1))
    assert ran.ended is None


def test_an_answer_that_is_complete_is_not_late(stack: ModuleType) -> None:
    """What is still missing when the time is up is its usage and its [DONE]."""
    answer = events(delta("all"), delta(finish="stop"), STUCK, counts())
    for limits in (Limits(total_s=3), Limits(idle_s=3)):
        ran = run(stack, answer, limits=limits)
        assert ran.answer["choices"][0]["message"]["content"] == "all"
        assert ran.at == pytest.approx(3)


def test_a_quick_answer_leaves_no_timer(stack: ModuleType) -> None:
    ran = run(stack, said("hi"), limits=Limits(first_token_s=5, idle_s=5, total_s=5))
    assert ran.ended is None
    assert ran.at < 1


@pytest.mark.parametrize("name", ["first_token_s", "idle_s", "total_s"])
@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "5", True, 10**400])
def test_bounds_are_positive_seconds(name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"Limits: {name} must be a positive finite number of seconds"):
        Limits(**{name: wrong})


def test_an_unknown_bound_is_named() -> None:
    with pytest.raises(UsageError, match="did you mean idle_s"):
        Limits(idle=3)  # type: ignore[call-arg]
