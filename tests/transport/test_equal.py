"""Chats with everything in them, cut into events: what comes together equals what was never cut."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentsched.transport.gist import ChoicesGist
from agentsched.transport.incoming import Kind
from agentsched.transport.jsontext import dumps

tokens = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
marks = st.sampled_from(["call_1", "call_2"])


@st.composite
def logprobs(draw: st.DrawFn, token: str) -> dict[str, Any]:
    value = draw(st.floats(-20, 0, allow_nan=False))
    top = [{"token": token, "logprob": value, "bytes": [*token.encode()]}] * draw(st.integers(0, 2))
    return {"token": token, "logprob": value, "bytes": [*token.encode()], "top_logprobs": top}


@st.composite
def texts(draw: st.DrawFn, name: str, *, probable: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A text field of a message, and its pieces with their logprobs."""
    said = draw(st.lists(tokens, min_size=1, max_size=4))
    likely = [draw(logprobs(token)) for token in said]
    pieces: list[dict[str, Any]] = []
    for token, one in zip(said, likely, strict=True):
        beside = {"logprobs": {"content": [one], "refusal": None}} if probable else {}
        pieces.append({"delta": {name: token}, **beside})
    return {"text": "".join(said), "logprobs": likely}, pieces


@st.composite
def calls(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Tool calls, and their pieces."""
    whole: list[dict[str, Any]] = []
    pieces: list[dict[str, Any]] = []
    for index in range(draw(st.integers(1, 3))):
        name, id_, cut = draw(tokens), f"call_{index}", draw(st.lists(tokens, max_size=4))
        whole.append({"id": id_, "type": "function", "function": {"name": name, "arguments": "".join(cut)}})
        begun = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
        pieces.append({"delta": {"tool_calls": [begun]}})
        pieces += [{"delta": {"tool_calls": [{"index": index, "function": {"arguments": a}}]}} for a in cut]
    return whole, pieces


@st.composite
def answers(draw: st.DrawFn, index: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One choice of a whole chat completion, and its pieces in order."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    pieces: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": draw(st.sampled_from([None, ""]))}}
    ]
    message["content"] = pieces[0]["delta"]["content"]
    likely: list[dict[str, Any]] = []
    probable = draw(st.booleans())
    for name in draw(st.sampled_from([(), ("reasoning_content",), ("refusal",)])):
        said, cut = draw(texts(name, probable=False))
        message[name] = said["text"]
        pieces += cut
    if draw(st.booleans()):
        said, cut = draw(texts("content", probable=probable))
        message["content"] = said["text"]
        likely = said["logprobs"] if probable else []
        pieces += cut
    finish = draw(st.sampled_from(["stop", "length"]))
    if draw(st.booleans()):
        message["tool_calls"], cut = draw(calls())
        pieces += cut
        finish = "tool_calls"
    if message["content"] == "" and any(message[name] for name in [*message][2:]):
        message["content"] = None  # as vLLM answers whole what it streams with an empty first piece
    whole = {"index": index, "message": message, "finish_reason": finish}
    if probable:
        whole["logprobs"] = {"content": likely, "refusal": None} if likely else None
        pieces = [{"logprobs": None, **piece} for piece in pieces]
    pieces.append({"delta": {}, "finish_reason": finish} | ({"logprobs": None} if probable else {}))
    return whole, [{"index": index, "finish_reason": None, **piece} for piece in pieces]


@st.composite
def cut_chats(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole chat completion of up to three answers, and the events of all of them in any mixture."""
    made = [draw(answers(index)) for index in range(draw(st.integers(1, 3)))]
    head = {"id": "c", "created": 1, "model": "m"}
    left = [[*pieces] for _, pieces in made]
    chunks: list[dict[str, Any]] = []
    while any(left):
        turn = draw(st.sampled_from([pieces for pieces in left if pieces]))
        chunks.append({**head, "object": "chat.completion.chunk", "choices": [turn.pop(0)]})
    usage = {"prompt_tokens": 3, "completion_tokens": len(chunks), "total_tokens": 3 + len(chunks)}
    chunks.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    whole = {**head, "object": "chat.completion", "choices": [choice for choice, _ in made], "usage": usage}
    return whole, chunks


@given(cut=cut_chats())
def test_a_chat_of_any_shape_comes_together(cut: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    whole, chunks = cut
    wanted = len(whole["choices"])
    gist = ChoicesGist(Kind.CHAT, wanted=wanted, several=wanted > 1)
    for chunk in chunks:
        assert not gist.settled or not chunk["choices"]
        gist.take(json.loads(json.dumps(chunk)))
    assert gist.settled
    assert json.loads(dumps(gist.whole())) == whole


@given(words=st.lists(tokens, min_size=1, max_size=5), several=st.booleans())
def test_a_completions_logprobs_come_together(words: list[str], several: bool) -> None:
    """In the older form: parallel lists."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    kept = [(word, -1.5, {word: -1.5, "index": 0}, at) for at, word in enumerate(words)]
    gist = ChoicesGist(Kind.COMPLETION, several=several)
    for row in kept:
        beside = {name: [value] for name, value in zip(names, row, strict=True)}
        gist.take({"choices": [{"index": 0, "text": row[0], "finish_reason": None, "logprobs": beside}]})
    gist.take({"choices": [{"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}]})
    (choice,) = gist.whole()["choices"]
    assert choice["text"] == "".join(words)
    assert choice["logprobs"] == {name: [row[i] for row in kept] for i, name in enumerate(names)}
