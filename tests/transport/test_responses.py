"""Responses and embeddings: understood, streamed where that tells all, ended by their own last event."""

import json
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend
from agentsched.model import FailureKind, Usage
from agentsched.transport.incoming import Incoming
from tests.doubles import EVENTS_TYPE, Script, incoming, whole
from tests.transport.ran import run

RENAMING = Backend("http://a:1/v1", models={"m": "org/m"})
USAGE = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}}


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    said = [{"type": "message", "content": [{"type": "output_text", "text": "Hello"}]}]
    return {
        "id": "r",
        "object": "response",
        "model": "org/m",
        "status": status,
        "output": said,
        "usage": USAGE,
        **more,
    }


def typed(kind: str, **fields: Any) -> bytes:
    payload = json.dumps({"type": kind, **fields}).encode()
    return b"event: " + kind.encode() + b"\ndata: " + payload + b"\n\n"


def script(*ends: Any) -> Script:
    begun = {"id": "r", "object": "response", "model": "org/m", "status": "in_progress", "output": []}
    deltas = [typed("response.output_text.delta", delta=piece) for piece in ("Hel", "lo")]
    return Script(headers=EVENTS_TYPE, pieces=[typed("response.created", response=begun), *deltas, *ends])


def asked(**fields: Any) -> Incoming:
    return incoming({"model": "m", "input": "Hi"}, path="/v1/responses", **fields)


DONE = typed("response.completed", response=response())


@pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled"])
def test_the_whole_response_is_the_one_in_the_last_event(stack: ModuleType, status: str) -> None:
    ended = response(status)
    ran = run(stack, script(typed(f"response.{status}", response=ended)), asked(), RENAMING)
    assert ran.answer == {**ended, "model": "m"}
    assert ran.sink.usage == Usage(5, 2, 4)
    assert ran.seen.bodies == [{"model": "org/m", "input": "Hi", "stream": True}]
    assert ran.sink.progress[0][0] > 0


def test_a_stream_of_typed_events_under_the_apps_name(stack: ModuleType) -> None:
    ran = run(stack, script(DONE), asked(stream=True), RENAMING)
    assert ran.ended is None
    assert [p["response"]["model"] for p in ran.payloads if "response" in p] == ["m", "m"]
    assert ran.sink.content.count(b"event: response.output_text.delta\n") == 2
    assert ran.sink.content.startswith(b"event: response.created\n")
    plain = run(stack, script(DONE), asked(stream=True))
    assert plain.sink.content == b"".join(p for p in script(DONE).pieces if isinstance(p, bytes))


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_that_ends_without_its_last_event(stack: ModuleType, stream: bool) -> None:
    for tail in ([], [b"data: [DONE]\n\n"], [ConnectionResetError()]):
        ran = run(stack, script(*tail), asked(stream=stream))
        assert ran.kind in (FailureKind.PROTOCOL, FailureKind.BROKEN)
        assert ran.ended is not None
        assert ran.ended.partial_text == "Hello"
        assert ran.ended.failure.delivered == stream


def test_a_response_that_failed_may_do_better_elsewhere(stack: ModuleType) -> None:
    error = {"code": "server_error", "message": "no luck"}
    bad = response("failed", output=[], error=error)
    for answer, call in (
        (script(typed("response.failed", response=bad)), asked()),
        (whole(bad), asked(background=True)),
    ):
        ran = run(stack, answer, call, RENAMING)
        assert ran.kind is FailureKind.ERROR
        assert ran.ended is not None
        assert ran.ended.refusal is not None
        head, content = ran.ended.refusal
        assert head.status == 200, "the caller gets what a caller without a scheduler gets"
        assert json.loads(content) == {**bad, "model": "m"}


def test_a_failed_response_of_a_stream_is_its_end(stack: ModuleType) -> None:
    bad = typed("response.failed", response=response("failed", error={"code": "server_error"}))
    ran = run(stack, script(bad), asked(stream=True))
    assert ran.ended is None
    assert ran.payloads[-1]["type"] == "response.failed"


KINDS = {
    "rate_limit_exceeded": FailureKind.OVERLOADED,
    "server_error": FailureKind.ERROR,
    400: FailureKind.INVALID,
}


@pytest.mark.parametrize(("code", "kind"), KINDS.items())
def test_an_error_event(stack: ModuleType, code: Any, kind: FailureKind) -> None:
    ran = run(stack, script(typed("error", code=code, message="no")), asked())
    assert ran.kind is kind


def test_work_in_the_background_is_not_streamed(stack: ModuleType) -> None:
    queued = response("queued", output=[])
    ran = run(stack, whole(queued), asked(background=True))
    assert ran.answer == queued
    assert "stream" not in ran.seen.bodies[0]


def test_embeddings_are_read_and_handed_over(stack: ModuleType) -> None:
    call = incoming({"model": "m", "input": ["a", "b"]}, path="/v1/embeddings")
    listed = {
        "object": "list",
        "model": "org/m",
        "data": [{"index": 0, "embedding": [0.25, -1.0]}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    ran = run(stack, whole(listed), call, RENAMING)
    assert ran.answer == {**listed, "model": "m"}
    assert ran.sink.usage == Usage(7, None, 0)
    assert ran.seen.bodies == [{"model": "org/m", "input": ["a", "b"]}]
    for wrong in ({"object": "list"}, {"data": None}, {"error": {"message": "x"}}, []):
        assert run(stack, whole(wrong), call).ended is not None


def test_null_events_are_none(stack: ModuleType) -> None:
    """llama.cpp begins a stream of several prompts with one."""
    call = incoming({"model": "m", "prompt": ["a", "b"], "stream": True}, path="/v1/completions")
    texts = [{"choices": [{"index": i, "text": "x", "finish_reason": "stop"}]} for i in (0, 1)]
    pieces = [
        b"data: null\n\n",
        *(b"data: %b\n\n" % json.dumps(t).encode() for t in texts),
        b"data: [DONE]\n\n",
    ]
    assert run(stack, Script(headers=EVENTS_TYPE, pieces=pieces), call).ended is None
