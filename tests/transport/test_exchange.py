"""One attempt over a scripted wire: whatever comes, it ends once, says why, and closes the connection."""

import asyncio
import json
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend
from agentsched.model import FailureKind, Usage
from agentsched.testing import VirtualClock
from agentsched.transport import eventstream, sse
from agentsched.transport import exchange as exchange_module
from agentsched.transport.eventstream import DRAIN_S, PROGRESS_TOKENS, YIELD_CHUNKS
from agentsched.transport.exchange import Exchange
from agentsched.transport.outgoing import Addressing
from tests.doubles import (
    EVENTS_TYPE,
    MODEL,
    Script,
    Sink,
    counts,
    delta,
    event,
    events,
    incoming,
    said,
    upstream,
    whole,
)
from tests.transport.ran import run

STREAM = {"stream": True}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
HIDDEN_FROM = {"openai-organization": "acme"}


# -- what is sent -------------------------------------------------------------------------------------


def test_the_request_carries_the_callers_timeouts_but_waits_for_no_pool(stack: ModuleType) -> None:
    call = incoming(timeout={"connect": 1.0, "read": 2.0, "write": 3.0, "pool": 4.0})
    (request,) = run(stack, said("hi"), call).seen.requests
    assert request.extensions["timeout"] == {"connect": 1.0, "read": 2.0, "write": 3.0, "pool": None}
    assert (request.method, str(request.url)) == ("POST", "http://b:1/v1/chat/completions")
    assert request.headers["host"] == "b:1"
    assert request.headers["content-length"] == str(len(request.content))


@pytest.mark.parametrize(("method", "length"), [("POST", "0"), ("PUT", "0"), ("GET", None), ("DELETE", None)])
def test_a_request_without_a_body_says_so_where_one_could_be(
    stack: ModuleType, method: str, length: str | None
) -> None:
    call = incoming(b"", method=method, path="/v1/responses/r1/cancel")
    (request,) = run(stack, whole({}), call).seen.requests
    assert request.headers.get("content-length") == length
    assert request.content == b""


# -- good answers -------------------------------------------------------------------------------------


def test_a_caller_who_asked_for_no_stream_gets_one_object(stack: ModuleType) -> None:
    ran = run(stack, said("Hello", " world"))
    assert ran.answer == {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world"},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    assert ran.sink.usage == Usage(3, 2, 0)
    assert ran.sink.head is not None
    assert dict(ran.sink.head.headers)[b"content-type"] == b"application/json"
    assert ran.sink.log == ["begin", "put", "finished"]


def test_a_caller_who_asked_for_a_stream_gets_it_as_it_comes(stack: ModuleType) -> None:
    script = events(delta(role="assistant"), delta("a"), delta("b"), delta(finish="stop"), counts())
    ran = run(stack, script, incoming(**STREAM))
    sent = [json.loads(p[6:]) for p in script.pieces if isinstance(p, bytes) and b"DONE" not in p]
    assert ran.payloads == [*sent[:-1], "[DONE]"]
    assert ran.sink.usage == Usage(3, 2, 0)
    assert ran.sink.rooms > 0


def test_bytes_that_need_not_change_do_not_change(stack: ModuleType) -> None:
    odd = b'event: x\r\ndata:  { "id" : 1.50,"choices":[{"delta":{"content":"\\u00e9"}}] }\r\n\r\n'
    ran = run(stack, events(odd, delta(finish="stop")), incoming(**WITH_USAGE))
    assert ran.sink.chunks[0] == odd[:-4] + b"\n\n"


def test_the_usage_event_is_the_apps_only_where_it_asked(stack: ModuleType) -> None:
    script = events(delta("a", usage=None), delta(finish="stop", usage=None), counts())
    with_it = run(stack, script, incoming(**WITH_USAGE)).payloads
    assert with_it[-2]["usage"]["total_tokens"] == 5
    without = run(stack, script, incoming(**STREAM)).payloads
    assert without[-1] == "[DONE]"
    assert len(without) == len(with_it) - 1
    assert not any("usage" in payload for payload in without[:-1])


@pytest.mark.parametrize("null", [',"usage":null', ""])
def test_an_event_without_usage_reaches_the_caller_byte_for_byte(stack: ModuleType, null: str) -> None:
    said = '{"id" : "c",  "choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]%s}'
    texts = ['\\",\\"usage\\":null', "é", "x"]
    sent = [b"data: " + (said % (text, null)).encode() + b"\n\n" for text in texts]
    seen = [b"data: " + (said % (text, "")).encode() + b"\n\n" for text in texts]
    ran = run(stack, events(*sent, delta(finish="stop"), counts()), incoming(**STREAM))
    assert ran.sink.content.startswith(b"".join(seen))


@pytest.mark.parametrize("spaced", [b'{"usage": null, "choices": []}', b'{"choices": [], "usage" : null}'])
def test_an_event_that_only_has_no_usage_is_not_our_usage_event(stack: ModuleType, spaced: bytes) -> None:
    filters = delta() | {"choices": [], "prompt_filter_results": [1], "usage": None}
    script = events(filters, b"data: " + spaced + b"\n\n", delta("a"), delta(finish="stop"), counts())
    payloads = run(stack, script, incoming(**STREAM)).payloads
    assert payloads[0]["prompt_filter_results"] == [1]
    assert payloads[1] == {"choices": []}
    assert len(payloads) == 5


def test_the_loop_has_its_turn_while_events_rain(stack: ModuleType) -> None:
    turns = 0

    async def main() -> None:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        script = events(*[delta("w")] * 10 * YIELD_CHUNKS, delta(finish="stop"))
        call = incoming()
        outgoing = Addressing(stack).address(call, Backend("http://b:1/v1"))
        await Exchange(stack, upstream(stack, script), call, outgoing, Sink()).run()
        task.cancel()

    asyncio.run(main())
    assert turns >= 10


@pytest.mark.parametrize("fields", [{}, STREAM, {"tools": []}], ids=["whole", "stream", "not streamed"])
@pytest.mark.parametrize("coding", ["gzip", "br", "deflate, gzip"])
def test_a_compressed_answer_is_none(stack: ModuleType, fields: Any, coding: str) -> None:
    """None was asked for: the bytes may be anything, and what the header says would break the caller's client."""
    headers = [("content-encoding", coding)]
    answer = whole({"choices": [{"message": {}}]}, headers=headers)
    ran = run(stack, answer, incoming(**fields))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert "compressed" in ran.ended.failure.detail
    ran = run(stack, whole({"error": {}}, status=503, headers=headers), incoming(**fields))
    assert ran.kind is FailureKind.OVERLOADED
    assert ran.ended is not None
    assert ran.ended.refusal is not None
    head, content = ran.ended.refusal
    assert head.get(b"content-encoding") == content == b""


def test_an_answer_that_is_not_compressed_may_say_so(stack: ModuleType) -> None:
    answer = whole({"choices": [{"message": {}}]}, headers=[("Content-Encoding", "Identity")])
    assert run(stack, answer).ended is None


def test_the_apps_name_of_the_model_comes_back(stack: ModuleType) -> None:
    backend = Backend("http://b:1/v1", models={"mine": MODEL})
    streamed = run(stack, said("é"), incoming(model="mine", **STREAM), backend)
    assert {payload["model"] for payload in streamed.payloads[:-1]} == {"mine"}
    assert run(stack, said("é"), incoming(model="mine"), backend).answer["model"] == "mine"
    plain = whole({"model": MODEL, "choices": [1]})
    assert run(stack, plain, incoming(model="mine", tools=[]), backend).answer["model"] == "mine"


def test_halves_of_surrogate_pairs_reach_the_caller_as_valid_text(stack: ModuleType) -> None:
    backend = Backend("http://b:1/v1", models={"mine": MODEL})
    script = events(delta("a\ud83d"), delta("\ude00"), delta(finish="stop"))
    for fields in ({}, STREAM):
        content = run(stack, script, incoming(model="mine", **fields), backend).sink.content
        assert "\\ud83d" in content.decode()
    assert run(stack, script).answer["choices"][0]["message"]["content"] == "a😀"


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
def test_eof_after_the_finish_reason_is_an_end(stack: ModuleType, fields: Any) -> None:
    ran = run(stack, events(delta("a"), delta(finish="stop"), done=False), incoming(**fields))
    assert ran.ended is None


def test_the_last_event_may_lack_its_empty_line(stack: ModuleType) -> None:
    script = events(delta("a"), delta(finish="stop"), b"data: [DONE]", done=False)
    assert run(stack, script, incoming(**STREAM)).payloads[-1] == "[DONE]"


def test_an_answer_that_came_whole_although_events_were_asked_for(stack: ModuleType) -> None:
    content = b'{ "choices":[{"message":{}}], "usage": {"prompt_tokens":7,"completion_tokens":8} }'
    ran = run(stack, whole(content, headers=[("x-a", "b")]))
    assert ran.sink.content == content
    assert ran.sink.usage == Usage(7, 8, 0)
    assert ran.sink.head is not None
    assert (b"x-a", b"b") in ran.sink.head.headers
    assert b'"stream":true' in ran.seen.requests[0].content


def test_a_caller_who_wants_events_is_not_given_anything_else(stack: ModuleType) -> None:
    ran = run(stack, whole({"choices": [{"message": {}}]}), incoming(**STREAM))
    assert ran.kind is FailureKind.PROTOCOL
    assert not ran.sink.delivered


def test_comments_are_not_an_answer(stack: ModuleType) -> None:
    ran = run(stack, events(b": ping\n\n", delta("a"), delta(finish="stop")), incoming(**STREAM))
    assert len(ran.payloads) == 3
    ran = run(stack, events(b": ping\n\n", OSError("gone")), incoming(**STREAM))
    assert not ran.sink.delivered


# -- the end is the terminal event, not the end of the bytes ------------------------------------------


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
def test_the_end_is_reported_before_the_connection_ends(stack: ModuleType, fields: Any) -> None:
    reported: list[float] = []
    clock = VirtualClock()

    class Timed(Sink):
        def finished(self, usage: Usage) -> None:
            super().finished(usage)
            reported.append(clock())

    async def main() -> None:
        call, transport = incoming(**fields), upstream(stack, said("a", "b"))
        script = said("a")
        script.pieces = [*script.pieces, 3600.0, b"never read"]
        transport = upstream(stack, script)
        outgoing = Addressing(stack).address(call, Backend("http://b:1/v1"))
        assert await Exchange(stack, transport, call, outgoing, Timed()).run() is None
        assert transport.seen.open == 0

    clock.run(main())
    assert reported == [0.0]
    assert clock() == pytest.approx(DRAIN_S)


def test_what_comes_after_the_end_is_not_the_callers(stack: ModuleType) -> None:
    late = [b"data: [DONE]\n\n" + event(delta("late")), event(delta("later"))]
    ran = run(stack, events(delta("a"), delta(finish="stop"), *late, done=False), incoming(**STREAM))
    assert ran.payloads[-1] == "[DONE]"
    assert b"late" not in ran.sink.content


@pytest.mark.parametrize("error", [OSError("reset"), RuntimeError("odd")])
def test_a_connection_that_breaks_after_the_end_harms_nobody(stack: ModuleType, error: Exception) -> None:
    script = said("a")
    script.pieces = [*script.pieces, error]
    assert run(stack, script).sink.usage is not None


# -- streams that break -------------------------------------------------------------------------------

ERROR = {"error": {"message": "no room", "code": 503}}


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        (503, FailureKind.OVERLOADED, 503),
        (429, FailureKind.OVERLOADED, 429),
        (500, FailureKind.ERROR, 500),
        (400, FailureKind.INVALID, 400),
        ("400", FailureKind.ERROR, 500),
        (None, FailureKind.ERROR, 500),
        (200, FailureKind.ERROR, 500),
        (True, FailureKind.ERROR, 500),
    ],
)
def test_an_error_in_the_stream_before_any_content(
    stack: ModuleType, fields: Any, code: Any, kind: FailureKind, status: int
) -> None:
    ran = run(stack, events({"error": {"message": "no room", "code": code}}), incoming(**fields))
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.refusal is not None
    head, content = ran.ended.refusal
    assert head.status == ran.ended.failure.status == status
    assert json.loads(content)["error"]["message"] == "no room"
    assert not ran.ended.failure.delivered
    assert not ran.sink.delivered
    assert "no room" in ran.ended.failure.detail


@pytest.mark.parametrize("error", ["just a text", ["a"], 7, {"message": {"deep": 1}}])
def test_errors_of_any_shape(stack: ModuleType, error: Any) -> None:
    assert run(stack, events({"error": error}), incoming(**STREAM)).kind is FailureKind.ERROR
    assert run(stack, whole({"error": error})).kind is FailureKind.ERROR


def test_an_error_of_null_is_none(stack: ModuleType) -> None:
    assert run(stack, events(delta("a", error=None), delta(finish="stop"))).ended is None


BREAKS: dict[str, tuple[list[Any], FailureKind]] = {
    "an error event": ([ERROR], FailureKind.OVERLOADED),
    "the end of the bytes": ([], FailureKind.PROTOCOL),
    "[DONE] too early": ([b"data: [DONE]\n\n"], FailureKind.PROTOCOL),
    "no JSON": ([b'data: {"id": "broken\n\n'], FailureKind.PROTOCOL),
    "no object": ([b"data: [1]\n\n"], FailureKind.PROTOCOL),
    "html": ([b"<html>oops</html>\n\ndata: <b>\n\n"], FailureKind.PROTOCOL),
    "a reset": ([OSError("reset")], FailureKind.BROKEN),
    "a foreign error": ([RuntimeError("Event loop is closed")], FailureKind.BROKEN),
    "half an event": ([b'data: {"choices"'], FailureKind.PROTOCOL),
}


@pytest.mark.parametrize(("pieces", "kind"), BREAKS.values(), ids=BREAKS)
def test_a_stream_that_breaks_before_its_first_byte_can_be_tried_elsewhere(
    stack: ModuleType, pieces: list[Any], kind: FailureKind
) -> None:
    ran = run(stack, events(*pieces, done=False), incoming(**STREAM))
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.failure.elsewhere
    assert ran.ended.partial_text == ""
    assert not ran.sink.chunks


@pytest.mark.parametrize(("pieces", "kind"), BREAKS.values(), ids=BREAKS)
def test_a_stream_that_breaks_later_says_what_there_was(
    stack: ModuleType, pieces: list[Any], kind: FailureKind
) -> None:
    script = events(delta("par"), delta("tial"), *pieces, done=False)
    for fields, kept in (({}, 2), ({"logprobs": True}, None)):
        ran = run(stack, script, incoming(**STREAM, **fields))
        assert ran.kind is kind
        assert ran.ended is not None
        failure = ran.ended.failure
        assert failure.delivered
        assert failure.kept_tokens == kept
        assert failure.elsewhere == (kept is not None)
        assert ran.ended.partial_text == "partial"
        assert len(ran.payloads) == 2


@pytest.mark.parametrize(("pieces", "kind"), BREAKS.values(), ids=BREAKS)
def test_who_asked_for_no_stream_has_seen_nothing_of_one_that_breaks(
    stack: ModuleType, pieces: list[Any], kind: FailureKind
) -> None:
    ran = run(stack, events(delta("par"), delta("tial"), *pieces, done=False))
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.failure.elsewhere
    assert ran.ended.partial_text == "partial"


def test_of_two_answers_one_that_is_cut_off_is_no_end(stack: ModuleType) -> None:
    def said_by(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}

    script = events(said_by(0, "a"), said_by(1, "b"), said_by(0, "c", "stop"), done=False)
    assert run(stack, script, incoming(n=2, **STREAM)).kind is FailureKind.PROTOCOL


def numbered(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


@pytest.mark.parametrize("done", [True, False])
def test_of_two_answers_one_that_never_begins_is_no_end(stack: ModuleType, done: bool) -> None:
    """Unless the backend says that this is all: some servers do not know `n`."""
    script = events(numbered(0, "a", "stop"), done=done)
    ended = run(stack, script, incoming(n=2, **STREAM)).ended
    assert (ended is None) == done


TAILS: dict[str, list[Any]] = {
    "a reset": [OSError("reset")],
    "no JSON": [b'data: {"usage": \n\n'],
    "half an event": [b'data: {"usage"'],
    "an error": [{"error": {"message": "cannot count", "code": 500}}],
    "a space after [DONE]": [b"data: [DONE] \n\n"],
    "an empty event": [b"data:\n\n", b"data: [DONE]\n\n"],
}


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_no_tail_takes_back_an_answer_that_was_complete(
    stack: ModuleType, fields: Any, tail: list[Any]
) -> None:
    ran = run(
        stack, events(delta("par"), delta("tial", finish="stop"), *tail, done=False), incoming(**fields)
    )
    assert ran.ended is None
    assert ran.sink.usage == Usage(None, 2, 0)


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("error", ["", False, {}, None, []])
def test_an_error_that_is_empty_is_none(stack: ModuleType, fields: Any, error: Any) -> None:
    script = events(delta("a", error=error), delta(finish="stop", error=error))
    assert run(stack, script, incoming(**fields)).ended is None


@pytest.mark.parametrize("cut", [1, 2, 3, 10])
def test_a_byte_order_mark_hides_no_event(stack: ModuleType, cut: int) -> None:
    content = b"\xef\xbb\xbf" + event(delta("the "))
    script = events(content[:cut], content[cut:], delta("answer", finish="stop"))
    assert run(stack, script).answer["choices"][0]["message"]["content"] == "the answer"


# -- before there is an answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ConnectError", FailureKind.REFUSED),
        ("ConnectTimeout", FailureKind.REFUSED),
        ("PoolTimeout", FailureKind.REFUSED),
        ("UnsupportedProtocol", FailureKind.REFUSED),
        ("ReadTimeout", FailureKind.TIMEOUT),
        ("WriteTimeout", FailureKind.TIMEOUT),
        ("ReadError", FailureKind.BROKEN),
        ("WriteError", FailureKind.BROKEN),
        ("RemoteProtocolError", FailureKind.BROKEN),
        ("ProxyError", FailureKind.BROKEN),
    ],
)
def test_what_a_transport_raises(stack: ModuleType, name: str, kind: FailureKind) -> None:
    error = getattr(stack, name)("so it goes")
    ran = run(stack, Script(before=[error]))
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.failure.detail == f"{name}: so it goes"
    assert ran.ended.failure.sent == (kind is not FailureKind.REFUSED)
    in_body = getattr(stack, name)("so it goes")
    ran = run(stack, events(delta("a"), in_body), incoming(**STREAM))
    assert ran.ended is not None
    assert ran.ended.failure.kind is not FailureKind.PROTOCOL


def test_a_header_that_is_none_is_the_calls_fault_and_is_not_repeated(stack: ModuleType) -> None:
    ran = run(stack, Script(before=[stack.LocalProtocolError("Illegal header value b'sk-secret\\n'")]))
    assert ran.kind is FailureKind.UNSENDABLE
    assert ran.ended is not None
    assert not ran.ended.failure.elsewhere
    assert not ran.ended.failure.sent
    assert "secret" not in ran.ended.failure.detail
    ran = run(stack, Script(before=[stack.LocalProtocolError("Can't send data when our state is ERROR")]))
    assert ran.kind is FailureKind.BROKEN, "a connection that was used too late"


@pytest.mark.parametrize("error", [OSError("no route"), RuntimeError("loop closed"), ValueError("odd")])
def test_what_else_may_be_raised_there_is_a_broken_connection(stack: ModuleType, error: Exception) -> None:
    assert run(stack, Script(before=[error])).kind is FailureKind.BROKEN


# -- error statuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "elsewhere"),
    [
        (400, FailureKind.INVALID, False),
        (401, FailureKind.DENIED, True),
        (403, FailureKind.DENIED, True),
        (405, FailureKind.ERROR, True),
        (408, FailureKind.TIMEOUT, True),
        (413, FailureKind.INVALID, False),
        (422, FailureKind.INVALID, False),
        (425, FailureKind.ERROR, True),
        (429, FailureKind.OVERLOADED, True),
        (500, FailureKind.ERROR, True),
        (502, FailureKind.ERROR, True),
        (503, FailureKind.OVERLOADED, True),
        (504, FailureKind.ERROR, True),
        (529, FailureKind.ERROR, True),
    ],
)
@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
def test_statuses(stack: ModuleType, fields: Any, status: int, kind: FailureKind, elsewhere: bool) -> None:
    answer = whole({"error": {"message": "because"}}, status=status, headers=[("x-a", "b")])
    ran = run(stack, answer, incoming(**fields))
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.failure.elsewhere == elsewhere
    assert ran.ended.failure.status == status
    assert ran.ended.failure.detail == f"HTTP {status}: because"
    assert ran.ended.refusal is not None
    head, content = ran.ended.refusal
    assert json.loads(content) == {"error": {"message": "because"}}
    assert (b"x-a", b"b") in head.headers
    assert not ran.sink.delivered


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"error": {"message": "The model `x` does not exist."}}, FailureKind.UNKNOWN_MODEL),
        ({"error": {"message": f"no such thing: {MODEL}"}}, FailureKind.UNKNOWN_MODEL),
        ({"detail": "Not Found"}, FailureKind.ERROR),
        (b"", FailureKind.ERROR),
    ],
)
def test_a_404_may_mean_the_model_or_the_path(stack: ModuleType, content: Any, kind: FailureKind) -> None:
    assert run(stack, whole(content, status=404)).kind is kind


def test_a_name_that_is_no_text_is_a_name_still(stack: ModuleType) -> None:
    call = incoming(b'{"model":"half \\ud800"}')
    assert run(stack, whole(b"x", status=404), call).kind is FailureKind.ERROR
    assert run(stack, whole(b"model", status=404), call).kind is FailureKind.UNKNOWN_MODEL


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("0", 0.0),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("Wed, 21 Oct 2035 07:28:00 GMT", None),
    ],
)
def test_retry_after(stack: ModuleType, value: str, seconds: float | None) -> None:
    ran = run(stack, whole({}, status=429, headers=[("Retry-After", value)]))
    assert ran.ended is not None
    assert ran.ended.failure.retry_after_s == seconds


@pytest.mark.parametrize("content", [b"", b"<html>", b"\xff", b'"text"', b"[1]", b"null", b'{"error":null}'])
def test_error_bodies_of_any_shape(stack: ModuleType, content: bytes) -> None:
    ran = run(stack, whole(content, status=500))
    assert ran.ended is not None
    assert ran.ended.refusal is not None
    assert ran.ended.refusal[1] == content


@pytest.mark.parametrize("before", [0, 280, 295])
def test_a_key_that_a_backend_quotes_is_not_repeated(stack: ModuleType, before: int) -> None:
    backend = Backend("http://b:1/v1", api_key="sk-very-secret")
    said_so = {"error": {"message": "x" * before + " wrong key: sk-very-secret (Bearer sk-very-secret)"}}
    for answer in (
        whole(said_so, status=401),
        events({**said_so}),
        Script(before=[OSError("sk-very-secret")]),
    ):
        ran = run(stack, answer, backend=backend)
        assert ran.ended is not None
        assert "very" not in ran.ended.failure.detail
        assert len(ran.ended.failure.detail) <= 300


def test_words_of_a_backend_fit_on_a_line(stack: ModuleType) -> None:
    ran = run(stack, whole({"error": {"message": "one\r\n\ttwo\u2028" + "three " * 1_000}}, status=500))
    assert ran.ended is not None
    assert ran.ended.failure.detail.startswith("HTTP 500: one two three three")
    assert ran.ended.failure.detail.isprintable()
    assert len(ran.ended.failure.detail) == 300


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_no_answer(stack: ModuleType, status: int) -> None:
    ran = run(stack, Script(status=status, headers=[("location", "https://elsewhere/")]))
    assert ran.kind is FailureKind.PROTOCOL


def test_a_404_of_a_path_that_every_server_has_is_a_wrong_root(stack: ModuleType) -> None:
    ran = run(stack, whole({"detail": "Not Found"}, status=404))
    assert ran.ended is not None
    assert ran.ended.refusal is None
    assert "base_url must end with the API root" in ran.ended.failure.detail


@pytest.mark.parametrize(
    "content", [b"", b"<html>200</html>", b"[1]", b"null", b'{"a":', b"{}", b'{"choices":1}']
)
def test_an_answer_that_is_none(stack: ModuleType, content: bytes) -> None:
    for fields in ({}, STREAM, {"tools": []}):
        ran = run(stack, whole(content), incoming(**fields))
        assert ran.kind is FailureKind.PROTOCOL
        assert not ran.sink.delivered


# -- too much -----------------------------------------------------------------------------------------


def test_an_error_body_too_large_is_left_out(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_ERROR_BYTES", 1_000)
    ran = run(stack, Script(status=500, pieces=[b"x" * 600] * 1_000))
    assert ran.kind is FailureKind.ERROR
    assert ran.ended is not None
    assert ran.ended.refusal is not None
    assert ran.ended.refusal[1] == b""
    assert ran.seen.sent == 2


def test_a_whole_answer_too_large_is_none(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "MAX_WHOLE_BYTES", 1_000)
    ran = run(stack, Script(headers=[("content-type", "application/json")], pieces=[b"x" * 600] * 1_000))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.seen.sent == 2


def test_an_event_too_large_is_none(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    ran = run(stack, Script(headers=EVENTS_TYPE, pieces=[b"data: " + b"x" * 600] * 1_000))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.seen.sent == 2


@pytest.mark.parametrize("asked", [STREAM, {}])
def test_a_text_too_long_is_none(
    stack: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(eventstream, "MAX_BYTES", 1_000)
    ran = run(stack, events(*[delta("x" * 600)] * 1_000), incoming(**asked))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.seen.sent == 2


# -- progress -----------------------------------------------------------------------------------------


def test_progress_is_told_at_the_first_token_and_then_now_and_again(stack: ModuleType) -> None:
    texts = [delta("w ") for _ in range(2 * PROGRESS_TOKENS + 10)]
    ran = run(stack, events(delta(role="assistant"), *texts, delta(finish="stop"), done=True))
    assert [tokens for tokens, _ in ran.sink.progress] == [1, 1 + PROGRESS_TOKENS, 1 + 2 * PROGRESS_TOKENS]


def test_time_spent_on_connecting_is_told_apart(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(exchange_module, "perf_counter", lambda: now)

    async def main() -> list[tuple[int, float]]:
        class Tracing(stack.AsyncBaseTransport):
            async def handle_async_request(self, request: Any) -> Any:
                nonlocal now
                trace = request.extensions["trace"]
                for step, took in (("connection.connect_tcp", 0.25), ("connection.start_tls", 0.5)):
                    await trace(f"{step}.started", {})
                    now += took
                    await trace(f"{step}.complete", {})
                    now += 10.0
                await trace("http11.send_request_headers.started", {})
                return await upstream(stack, said("a")).handle_async_request(request)

        call, sink = incoming(), Sink()
        outgoing = Addressing(stack).address(call, Backend("http://b:1/v1"))
        assert await Exchange(stack, Tracing(), call, outgoing, sink).run() is None
        return sink.progress

    assert asyncio.run(main()) == [(0, 0.75), (1, 0.75)]


# -- what is not understood ---------------------------------------------------------------------------


def test_other_paths_are_passed_through_byte_for_byte(stack: ModuleType) -> None:
    pieces = [b"\x00\xff", b"data: [DONE]\n\n", b"tail"]
    script = Script(status=206, headers=[("content-type", "audio/mp3"), ("x-a", "b")], pieces=pieces)
    ran = run(stack, script, incoming(b"", method="GET", path="/v1/files/f/content"))
    assert ran.sink.chunks == pieces
    assert ran.sink.head is not None
    assert ran.sink.head.status == 206
    assert ran.sink.usage == Usage()
    assert ran.sink.rooms == len(pieces)


def test_other_paths_that_break(stack: ModuleType) -> None:
    call = incoming(b"", method="GET", path="/v1/files/f/content")
    assert run(stack, Script(pieces=[b"a", OSError("gone")]), call).kind is FailureKind.BROKEN
    assert run(stack, whole(b"no", status=404), call).kind is FailureKind.MISSING


# -- leaving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, STREAM, {"tools": []}], ids=["whole", "stream", "not streamed"])
def test_cancelled_anywhere_it_closes_the_connection_at_once(stack: ModuleType, fields: Any) -> None:
    async def main() -> int:
        turns = 0
        while True:
            slow = said("a", "b")
            slow.before = [0.0, 0.0]
            slow.pieces = [step for piece in slow.pieces for step in (0.0, piece)] + [0.0, 0.0]
            transport, call, sink = upstream(stack, slow), incoming(**fields), Sink()
            outgoing = Addressing(stack).address(call, Backend("http://b:1/v1"))
            task = asyncio.create_task(Exchange(stack, transport, call, outgoing, sink).run())
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                return turns
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transport.seen.open == 0
            turns += 1

    assert VirtualClock().run(main()) > 10


def test_a_connection_that_cannot_be_closed_is_no_reason_to_fail(stack: ModuleType) -> None:
    class Stuck(stack.AsyncByteStream):
        async def __aiter__(self) -> Any:
            for piece in said("a").pieces:
                yield piece

        async def aclose(self) -> None:
            raise stack.CloseError("cannot")

    class Transport(stack.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            return stack.Response(200, headers=list(EVENTS_TYPE), stream=Stuck())

    async def main() -> None:
        call, sink = incoming(), Sink()
        outgoing = Addressing(stack).address(call, Backend("http://b:1/v1"))
        assert await Exchange(stack, Transport(), call, outgoing, sink).run() is None
        assert sink.usage is not None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        (
            "ReadTimeout",
            FailureKind.TIMEOUT,
            "nothing came within 2 s, the read timeout of the caller's client",
        ),
        (
            "ConnectTimeout",
            FailureKind.REFUSED,
            "no connection within 1 s, the connect timeout of the caller's client",
        ),
    ],
)
def test_a_timeout_says_whose_it_was_and_how_long(
    stack: ModuleType, name: str, kind: FailureKind, says: str
) -> None:
    call = incoming(timeout={"connect": 1.0, "read": 2.0, "write": 3.0, "pool": 4.0})
    ran = run(stack, Script(before=[getattr(stack, name)("")]), call)
    assert ran.kind is kind
    assert ran.ended is not None
    assert ran.ended.failure.detail == says


# -- what others send ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream; x=y", None])
@pytest.mark.parametrize("asked", [STREAM, {}])
def test_events_may_come_under_another_name(
    stack: ModuleType, kind: str | None, asked: dict[str, Any]
) -> None:
    script = said("a", "b")
    headers = [("content-type", kind)] if kind is not None else []
    ran = run(stack, Script(headers=headers, pieces=script.pieces), incoming(**asked))
    assert ran.ended is None
    assert ran.sink.usage == Usage(3, 2, 0)


@pytest.mark.parametrize("asked", [STREAM, {}])
def test_a_text_after_the_finish_reason_belongs_to_an_answer_that_says_it_is_done(
    stack: ModuleType, asked: dict[str, Any]
) -> None:
    ran = run(stack, events(delta("a"), delta(finish="stop"), delta("b")), incoming(**asked))
    assert ran.ended is None
    assert b"b" in ran.sink.content


def test_done_without_any_finish_reason_is_no_end(stack: ModuleType) -> None:
    ran = run(stack, events(delta("a"), delta("b")))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert ran.ended.partial_text == "ab"


def test_an_answer_nested_too_deep_is_none(stack: ModuleType) -> None:
    deep = b'data: {"choices":[{"index":0,"delta":{"content":"x","z":' + b"[" * 900 + b"]" * 900 + b"}}]}\n\n"
    ran = run(stack, Script(headers=EVENTS_TYPE, pieces=[deep]))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert "nested too deep" in ran.ended.failure.detail


def test_a_key_that_a_refusal_quotes_is_hidden_from_the_app(stack: ModuleType) -> None:
    refusal = whole({"error": {"message": "Incorrect API key provided: sk-secret"}}, status=401)
    ran = run(stack, refusal, incoming(), Backend("http://b:1/v1", api_key="sk-secret"))
    assert ran.ended is not None
    assert ran.ended.refusal is not None
    assert b"provided: [key]" in ran.ended.refusal[1]


def test_usage_that_comes_beside_choices_was_not_asked_for_by_us(stack: ModuleType) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    ran = run(stack, events(delta("a"), delta(finish="stop", usage=usage), counts()), incoming(**STREAM))
    assert [payload.get("usage") for payload in ran.payloads[:-1]] == [None, usage]
    assert ran.sink.usage == Usage(3, 2, 0)


@pytest.mark.parametrize("status", [300, 304])
def test_what_is_not_understood_is_handed_on_whatever_its_status(stack: ModuleType, status: int) -> None:
    call = incoming(b"", method="GET", path="/v1/files/f")
    ran = run(stack, Script(status=status, pieces=[b"x"]), call)
    assert ran.ended is None
    assert ran.sink.head is not None
    assert ran.sink.head.status == status
