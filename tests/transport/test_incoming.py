"""What is understood of a call: its kind, its model, its size; and what is refused at the door."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched import UsageError
from agentsched.transport.incoming import Incoming, Kind, read
from tests.doubles import ASK, incoming

CHAT, COMPLETION, MODELS, OPAQUE = Kind.CHAT, Kind.COMPLETION, Kind.MODELS, Kind.OPAQUE


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions/", CHAT),
        ("POST", "/v1/chat/completions?beta=1", CHAT),
        ("POST", "/v1/completions", COMPLETION),
        ("GET", "/v1/models", MODELS),
        ("GET", "/v1/models?x=y", MODELS),
        ("GET", "/v1/models/fake-model", Kind.MODELS),
        ("POST", "/v1/models", OPAQUE),
        ("GET", "/v1/chat/completions", OPAQUE),
        ("POST", "/v1/embeddings", Kind.EMBEDDING),
        ("POST", "/v1/responses", Kind.RESPONSE),
        ("POST", "/v1/responses/r1/cancel", OPAQUE),
        ("GET", "/v1/responses/r1", OPAQUE),
        ("POST", "/v1/rerank", OPAQUE),
        ("POST", "/v1/chat/completions/x", OPAQUE),
        ("DELETE", "/v1/files/f", OPAQUE),
    ],
)
def test_kinds(method: str, path: str, kind: Kind) -> None:
    call = incoming(ASK, method=method, path=path)
    assert call.kind is kind
    assert call.path == path.removeprefix("/v1")


def test_what_came_is_kept_as_it_came() -> None:
    headers = [(b"X-A", b"1"), (b"x-a", b"2")]
    call = incoming(b' {"model" : "m"}\n', headers=headers, timeout={"read": 3.0})
    assert (call.content, call.headers, call.timeout) == (b' {"model" : "m"}\n', headers, {"read": 3.0})


# -- refused ------------------------------------------------------------------------------------------

BAD = {
    "empty": b"",
    "broken": b'{"model":"m"',
    "text": b"hello",
    "a list": b"[]",
    "a string": b'"model"',
    "null": b"null",
    "not utf-8": b'{"model":"\xff"}',
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "nested absurdly": b'{"model":"m","x":' + b"[" * 100_000,
    "no model": b"{}",
    "model null": b'{"model":null}',
    "model empty": b'{"model":""}',
    "model a number": b'{"model":7}',
    "model a list": b'{"model":["m"]}',
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_bad_body_is_the_callers_fault(path: str, content: bytes) -> None:
    with pytest.raises(UsageError, match="body") as caught:
        incoming(content, path=path)
    assert not caught.value.sent
    assert caught.value.fault == "caller"


def test_the_message_says_what_was_wrong() -> None:
    with pytest.raises(UsageError, match="/chat/completions is not JSON"):
        incoming(b"{")
    with pytest.raises(UsageError, match="must be a JSON object, not list"):
        incoming(b"[]")
    with pytest.raises(UsageError, match="names no model"):
        incoming(b"{}")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files", "/v1/models"])
def test_a_body_has_a_largest_size(path: str) -> None:
    body = b'{"model":"m"}'
    assert incoming(body, path=path, max_body_bytes=len(body)).content == body
    with pytest.raises(UsageError, match="13 bytes; the scheduler takes at most 12"):
        incoming(body, path=path, max_body_bytes=len(body) - 1)


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
@pytest.mark.parametrize("type_", [b"application/json", b"multipart/form-data; boundary=x", b""])
def test_what_is_not_understood_is_not_judged(content: bytes, type_: bytes) -> None:
    call = incoming(content, path="/v1/responses/r1/cancel", headers=[(b"content-type", type_)])
    assert (call.kind, call.content) == (OPAQUE, content)
    assert call.model in (None, "")


@given(
    content=st.binary(max_size=60), method=st.sampled_from(["GET", "POST", "PUT"]), path=st.text(max_size=9)
)
def test_no_request_does_worse_than_a_usage_error(content: bytes, method: str, path: str) -> None:
    for api in ("chat/completions", "models", path):
        raw = f"/v1/{api}".encode("ascii", "ignore")
        try:
            read(method=method, raw_path=raw, headers=[], content=content, timeout={}, max_body_bytes=50)
        except UsageError:
            pass


# -- understood ---------------------------------------------------------------------------------------


def test_the_model_of_an_opaque_call_is_read_where_its_body_is_an_object() -> None:
    assert incoming({"model": "m", "query": "x"}, path="/v1/rerank").model == "m"
    assert incoming({"query": "x"}, path="/v1/rerank").model is None
    assert incoming({"model": "m"}, path="/v1/audio", headers=[(b"content-type", b"image/png")]).model is None


@pytest.mark.parametrize(
    ("fields", "stream", "wants_usage"),
    [
        ({}, False, False),
        ({"stream": None}, False, False),
        ({"stream": True}, True, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, True, False),
        ({"stream": True, "stream_options": None}, True, False),
        ({"stream": True, "stream_options": "x"}, True, False),
    ],
)
def test_streaming(fields: dict[str, Any], stream: bool, wants_usage: bool) -> None:
    call = incoming(ASK, **fields)
    assert (call.stream, call.wants_usage) == (stream, wants_usage)


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 0}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": 2.5}, None),
        ({"max_tokens": "7"}, None),
        ({"max_output_tokens": 8}, 8),
    ],
)
def test_the_cap_on_output(fields: dict[str, Any], cap: int | None) -> None:
    assert incoming(ASK, **fields).max_tokens == cap


def asked(**body: Any) -> Incoming:
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    path = "/v1/responses" if "input" in body else path
    return incoming({"model": "m", **body}, path=path)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "x" * 400}]}, 100),
        ({"messages": [{"role": "system", "content": "x" * 40}, {"role": "user", "content": "x" * 4}]}, 11),
        ({"messages": [{"content": [{"type": "text", "text": "x" * 40}, {"type": "image_url"}]}]}, 10),
        ({"messages": [{"role": "assistant", "content": None}, {"content": "x" * 8}]}, 2),
        ({"prompt": "x" * 44}, 11),
        ({"prompt": ["x" * 44, "x" * 40]}, 21),
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "x" * 40}}]}]}, 10),
        ({"input": "x" * 44, "instructions": "x" * 40}, 21),
        ({"input": [{"content": [{"type": "input_text", "text": "x" * 40}]}, {"output": "x" * 4}]}, 11),
    ],
)
def test_input_is_estimated_from_its_text(body: dict[str, Any], tokens: int) -> None:
    assert asked(**body).prompt.tokens == tokens


def test_without_any_text_the_whole_body_counts() -> None:
    call = incoming({"model": "m", "pages": "x" * 400}, path="/v1/ocr")
    assert call.prompt.tokens == len(call.content) // 4


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["content", "text", "x"]), inner),
    )
)
def test_an_estimate_exists_whatever_stands_there(value: Any) -> None:
    for name in ("messages", "prompt", "max_tokens", "stream_options", "stream"):
        call = incoming(json.dumps({"model": "m", name: value}).encode())
        assert call.prompt.tokens >= 0
        assert call.max_tokens is None or call.max_tokens > 0
        assert isinstance(call.stream, bool)
        assert isinstance(call.wants_usage, bool)


def test_embeddings_have_no_output() -> None:
    call = incoming({"model": "m", "input": ["x" * 40, "x" * 4], "stream": True}, path="/v1/embeddings")
    assert (call.max_tokens, call.prompt.tokens, call.stream) == (0, 11, False)


def test_a_response_may_be_of_a_stored_prompt_that_names_its_model() -> None:
    assert incoming({"prompt": {"id": "p"}}, path="/v1/responses").model is None
    with pytest.raises(UsageError, match="names no model"):
        incoming({"model": ""}, path="/v1/responses")


def test_a_prompt_may_be_nested_as_deep_as_json_is() -> None:
    messages = b"[" * 400 + b'"xxxx"' + b"]" * 400
    assert incoming(b'{"model":"m","messages":%b}' % messages).prompt.tokens == 1
