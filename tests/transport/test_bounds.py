"""Whatever a backend sends and for as long as it likes, what is kept of it is bounded, and reading stops."""

import gc
import tracemalloc
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.model import FailureKind
from agentsched.transport import eventstream, exchange, sse
from tests.doubles import EVENTS_TYPE, JSON_TYPE, STACKS, Script, delta, event, incoming
from tests.transport.ran import Ran, run

BOUND = 50_000
"""Bytes of an answer, of an event, of an error: all bounds, made small."""

ENDLESS = 100
"""How many times its bound a backend would send."""

KEPT = 8
"""Bytes of memory per byte of an answer: tool calls of one letter each take five."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstream, "MAX_BYTES", BOUND)
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", BOUND)
    monkeypatch.setattr(exchange, "MAX_WHOLE_BYTES", BOUND)
    monkeypatch.setattr(exchange, "MAX_ERROR_BYTES", BOUND)


def endless(*pieces: bytes, times: int = ENDLESS) -> list[bytes]:
    return [piece for piece, _ in zip(cycle(pieces), range(times * BOUND // len(pieces[0])), strict=False)]


def measured(script: Script, **asked: Any) -> tuple[Ran, int]:
    """Run an attempt, and return the most memory it took."""
    call = incoming(**asked)
    run(STACKS["httpx"], Script(), call)  # what is imported and remembered once
    gc.collect()
    tracemalloc.start()
    try:
        ran = run(STACKS["httpx"], script, call)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return ran, peak


NEW_FIELDS: list[bytes] = [event({f"field-{n}": 1, "choices": []}) for n in range(2_000)]
NEW_ANSWERS: list[bytes] = [
    event({"choices": [{"index": n, "delta": {"content": "x"}}]}) for n in range(2_000)
]
NEW_CALLS: list[bytes] = [
    event(
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": n, "function": {"arguments": "x"}}]}}]}
    )
    for n in range(2_000)
]
CHOICE: dict[str, Any] = {
    "index": 0,
    "logprobs": {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": []}]},
}

STREAMS: dict[str, list[bytes]] = {
    "one event": endless(b"data: {" + b"x" * 1_000),
    "no line": endless(b"x" * 1_000),
    "comments": endless(b": ping\n\n" * 100),
    "text": endless(event(delta("x"))),
    "text in other forms": endless(event(delta("x")), event(delta("x", created=2))),
    "reasoning": endless(event({"choices": [{"index": 0, "delta": {"reasoning_content": "x"}}]})),
    "logprobs": endless(event({"choices": [{**CHOICE, "delta": {"content": "x"}}]})),
    "fields": endless(*NEW_FIELDS),
    "answers": endless(*NEW_ANSWERS),
    "tool calls": endless(*NEW_CALLS),
    "nested": endless(event({"choices": [], "x": {"y": [[[[{}]]]] * 50}})),
    "newlines": endless(b"\n\r\n" * 300),
    "after the finish": [event(delta("x", finish="stop")), *endless(event(delta(role="assistant")))],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("sent", STREAMS.values(), ids=STREAMS)
def test_an_endless_stream(sent: list[bytes], stream: bool) -> None:
    ran, peak = measured(Script(headers=EVENTS_TYPE, pieces=sent), stream=stream)
    assert ran.ended is None or ran.kind is FailureKind.PROTOCOL
    assert sum(map(len, sent[: ran.seen.sent])) < 2 * BOUND, "it stops reading"
    kept = peak - sum(map(len, ran.sink.chunks))
    assert kept < KEPT * BOUND


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("status", [200, 400, 503])
def test_an_endless_body(status: int, stream: bool) -> None:
    sent = endless(b'{"error":{"message":"' + b"x" * 1_000)
    ran, peak = measured(Script(status=status, headers=JSON_TYPE, pieces=sent), stream=stream)
    assert ran.ended is not None
    assert ran.seen.sent * 1_000 < 2 * BOUND, "it stops reading"
    assert peak < KEPT * BOUND


pieces = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from(
            [event(delta("x")), b"data: ", b"\n\n", b"\r", b'{"choices":[{"index":', b"[" * 50, b"\xff"]
        ),
        st.text(max_size=20).map(lambda text: event(delta(text))),
    ),
    min_size=1,
    max_size=8,
)


@given(sent=pieces, stream=st.booleans())
@settings(max_examples=15)
def test_anything_for_ever(sent: list[bytes], stream: bool) -> None:
    unit = b"".join(sent)
    ran, peak = measured(Script(headers=EVENTS_TYPE, pieces=endless(unit, times=4)), stream=stream)
    assert ran.seen.sent * len(unit) < 2 * BOUND + len(unit), "it stops reading"
    assert peak - sum(map(len, ran.sink.chunks)) < KEPT * BOUND
