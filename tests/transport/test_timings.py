"""The times that llama.cpp adds to its answers tell what the usage does not; whatever stands there does no harm."""

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched.model import Usage
from agentsched.transport.usage import MAX_COUNT, counted
from tests.doubles import delta, events, incoming, said, whole
from tests.transport.ran import run

TIMES = {"cache_n": 40, "prompt_n": 60, "prompt_ms": 12.5, "predicted_n": 7, "predicted_ms": 70.0}
USAGE = {"prompt_tokens": 100, "completion_tokens": 7}


@pytest.mark.parametrize(
    ("usage", "timings", "found"),
    [
        (USAGE, TIMES, Usage(100, 7, 40)),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 64}}, TIMES, Usage(100, 7, 64)),
        (USAGE | {"prompt_tokens_details": {"cached_tokens": 0}}, TIMES, Usage(100, 7, 0)),
        (USAGE | {"prompt_tokens_details": None}, TIMES, Usage(100, 7, 40)),
        (None, TIMES, Usage(100, 7, 40)),
        (None, {"prompt_n": 60}, Usage(60, 3, 0)),
        (None, {"cache_n": 40}, Usage(None, 3, 40)),
        (USAGE, {"cache_n": 101}, Usage(100, 7, 0)),
        (USAGE, {"cache_n": 100}, Usage(100, 7, 100)),
        ({"prompt_tokens": 100}, {"predicted_n": 9}, Usage(100, 9, 0)),
        (None, None, Usage(None, 3, 0)),
        (USAGE, None, Usage(100, 7, 0)),
        *(
            (USAGE, {"cache_n": value}, Usage(100, 7, 0))
            for value in (-1, "40", True, 40.5, None, [], 10**30)
        ),
        *((USAGE, {"cache_n": value}, Usage(100, 7, 0)) for value in (float("nan"), float("inf"))),
        *((USAGE, value, Usage(100, 7, 0)) for value in ([], "times", 7, True)),
    ],
)
def test_what_they_tell(usage: Any, timings: Any, found: Usage) -> None:
    assert counted(usage, 3, timings) == found


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([*TIMES, "prompt_tokens", "prompt_tokens_details", "cached_tokens"]), inner
        )
    ),
)


@given(usage=anything, timings=anything)
def test_nothing_makes_it_fail_or_believe_what_cannot_be(usage: Any, timings: Any) -> None:
    found = counted(usage, 0, timings)
    numbers = (found.input_tokens, found.output_tokens, found.cached_tokens)
    assert all(number is None or (type(number) is int and 0 <= number <= 2 * MAX_COUNT) for number in numbers)


FIELDS = [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("last", [False, True], ids=["with the finish reason", "with the usage"])
def test_they_may_come_with_either_of_the_last_events(stack: ModuleType, last: bool, fields: Any) -> None:
    finish, usage = delta(finish="stop"), delta() | {"choices": [], "usage": USAGE}
    (usage if last else finish)["timings"] = TIMES
    ran = run(stack, events(delta("hi"), finish, usage), incoming(**fields))
    assert ran.sink.usage == Usage(100, 7, 40)


@pytest.mark.parametrize("timings", [{"cache_n": "x" * 100}, [1], None, {"cache_n": {"cache_n": 1}}])
def test_the_app_gets_them_as_they_are(stack: ModuleType, timings: Any) -> None:
    events_ = (delta("hi", timings=timings), delta(finish="stop", timings=timings))
    ran = run(stack, events(*events_), incoming(stream=True))
    assert [payload["timings"] for payload in ran.payloads[:2]] == [timings] * 2
    assert run(stack, events(*events_)).answer["timings"] == timings
    answer = {"choices": [{"index": 0, "message": {"content": "hi"}}], "timings": timings, "usage": USAGE}
    ran = run(stack, whole(answer), incoming(tools=[]))
    assert json.loads(ran.sink.content) == answer
    assert ran.sink.usage == Usage(100, 7, 0)


def test_of_an_answer_that_comes_whole(stack: ModuleType) -> None:
    answer = {"choices": [{"index": 0, "message": {"content": "hi"}}], "timings": TIMES}
    assert run(stack, whole(answer), incoming(tools=[])).sink.usage == Usage(100, 7, 40)


def test_without_them_nothing_changes(stack: ModuleType) -> None:
    assert run(stack, said("a", "b")).sink.usage == Usage(3, 2, 0)
