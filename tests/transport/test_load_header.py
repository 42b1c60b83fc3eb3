"""The load that an answer tells in its head: read, and kept from an app that did not ask for it."""

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend
from agentsched.model import Signals
from agentsched.transport.head import Head
from agentsched.transport.metrics import told_load
from tests.doubles import Script, incoming, said, whole
from tests.transport.ran import Ran, run

VALUE = "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0"
TOLD = Signals(waiting=3, kv_usage=0.4)
NAMES = ["endpoint-load-metrics", "Endpoint-Load-Metrics"]
FORMAT = (b"endpoint-load-metrics-format", b"JSON")
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}}]}
ERROR = {"error": {"message": "no"}}


def telling(script: Script, value: str, name: str = NAMES[0]) -> Script:
    return replace(script, headers=[*script.headers, (name, value)])


def shown(ran: Ran) -> list[tuple[bytes, bytes]]:
    """What the app sees of such headers."""
    head = ran.sink.head
    if head is None:
        assert ran.ended is not None
        assert ran.ended.refusal is not None
        head = ran.ended.refusal[0]
    return [pair for pair in head.headers if pair[0].lower().startswith(b"endpoint-load")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("answer", "fields"),
    [(whole(ANSWER), {"tools": []}), (said("fine"), {}), (said("fine"), {"stream": True})],
    ids=["whole", "put together", "stream"],
)
def test_it_is_read_and_not_handed_on(stack: ModuleType, answer: Script, fields: Any, name: str) -> None:
    ran = run(stack, telling(answer, VALUE, name), incoming(**fields))
    assert ran.ended is None
    assert ran.sink.signals == [TOLD]
    assert shown(ran) == []


def test_of_an_answer_that_comes_whole_it_tells_what_is_left(stack: ModuleType) -> None:
    """The engine writes it when the call has ended, so it is heard after the end."""
    assert run(stack, telling(whole(ANSWER), VALUE), incoming(tools=[])).sink.log == [
        "begin",
        "put",
        "finished",
        "signalled",
    ]


def test_of_a_stream_it_tells_what_there_was_before(stack: ModuleType) -> None:
    log = run(stack, telling(said("fine"), VALUE), incoming(stream=True)).sink.log
    assert log.index("signalled") < log.index("put")


@pytest.mark.parametrize(
    "value", ["", "TEXT", "BIN Cg4K", "JSON {", "TEXT kv_cache_usage_perc=NaN", "0" * 10_000]
)
@pytest.mark.parametrize("fields", [{"tools": []}, {"stream": True}])
def test_what_says_nothing_is_ignored(stack: ModuleType, fields: Any, value: str) -> None:
    answer = said("fine") if "stream" in fields else whole(ANSWER)
    ran = run(stack, telling(answer, value), incoming(**fields))
    assert ran.ended is None
    assert ran.sink.signals == []
    assert [value for _, value in shown(ran)] == ([b""] if value == "" else [])


def test_bytes_that_are_no_text_say_nothing() -> None:
    head = Head(200, [(b"endpoint-load-metrics", b"\xff\xfeTEXT kv_cache_usage_perc=0.5"), (b"x-a", b"b")])
    assert told_load(head) == (Head(200, [(b"x-a", b"b")]), None)


@pytest.mark.parametrize(
    ("call", "backend"),
    [
        (incoming(tools=[], headers=[(b"content-type", b"application/json"), FORMAT]), None),
        (incoming(tools=[]), Backend("http://b:1/v1", metrics=False)),
        (incoming(path="/v1/rerank"), None),
    ],
    ids=["the app asked", "nobody is to ask", "not understood"],
)
def test_what_we_did_not_ask_for_is_handed_on_unread(
    stack: ModuleType, call: Any, backend: Backend | None
) -> None:
    ran = run(stack, telling(whole(ANSWER), VALUE), call, backend)
    assert ran.sink.signals == []
    assert shown(ran) == [(b"endpoint-load-metrics", VALUE.encode())]


@pytest.mark.parametrize("status", [400, 503])
def test_an_error_hands_it_on_as_little_and_tells_nothing(stack: ModuleType, status: int) -> None:
    ran = run(stack, telling(whole(ERROR, status=status), VALUE), incoming())
    assert ran.sink.signals == []
    assert shown(ran) == []


def test_an_answer_that_is_none_tells_nothing(stack: ModuleType) -> None:
    ran = run(stack, telling(whole(b"<html>"), VALUE), incoming(tools=[]))
    assert ran.ended is not None
    assert ran.sink.signals == []


def test_redirects_go_on_asking(stack: ModuleType) -> None:
    seen: list[Any] = []

    def answer(request: Any) -> Script:
        seen.append(request.headers.get("endpoint-load-metrics-format"))
        if len(seen) == 1:
            return telling(Script(status=307, headers=[("location", "/v1/x")]), VALUE)
        return telling(said("fine"), VALUE)

    assert run(stack, answer, incoming()).sink.signals == [TOLD]
    assert seen == ["TEXT", "TEXT"]
