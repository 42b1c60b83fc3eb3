"""A scripted model behind the scheduler: it calls tools, fills schemas, embeds, and says hello otherwise."""

import json
from typing import Any

from tests.doubles import EVENTS_TYPE, Script, counts, event, whole

MODEL = "m"
HELLO = "Hello there"
TRIP = {"city": "Rome", "days": 2}
WEATHER = "Sunny in Rome"


def answer(request: Any) -> Script:
    """Return what the model answers to a request."""
    body = json.loads(request.content)
    path = request.url.path.removeprefix("/v1")
    if path == "/embeddings":
        return _embedded(body)
    return _response(body) if path == "/responses" else _chat(body)


def _embedded(body: dict[str, Any]) -> Script:
    inputs = body["input"] if isinstance(body["input"], list) else [body["input"]]
    packed = body.get("encoding_format") == "base64"
    vector: Any = "AACAPgAAgL8=" if packed else [0.25, -1.0]
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, _ in enumerate(inputs)]
    return whole(
        {"object": "list", "model": MODEL, "data": data, "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    )


def _chat(body: dict[str, Any]) -> Script:
    message, finish = _said(body)
    head = {"id": "c1", "created": 1, "model": MODEL}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if not body.get("stream"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": None, **message},
            "finish_reason": finish,
        }
        return whole({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": message.get("content") and ""}]
    deltas += [{"content": piece} for piece in _cut(message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls", [])):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": a}}]} for a in _cut(arguments)]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    chunk = {**head, "object": "chat.completion.chunk"}
    pieces = [event({**chunk, "choices": [choice]}) for choice in choices]
    if (body.get("stream_options") or {}).get("include_usage"):
        pieces.append(event(counts()))
    return Script(headers=EVENTS_TYPE, pieces=[*pieces, b"data: [DONE]\n\n"])


def _said(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    last, tools = body["messages"][-1], body.get("tools") or []
    if last["role"] == "tool":
        return {"content": WEATHER}, "stop"
    if tools and body.get("tool_choice") != "none":
        name = tools[0]["function"]["name"]
        call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": json.dumps(TRIP)}}
        return {"tool_calls": [call]}, "tool_calls"
    return {"content": json.dumps(TRIP) if body.get("response_format") else HELLO}, "stop"


def _response(body: dict[str, Any]) -> Script:
    items = body["input"] if isinstance(body["input"], list) else []
    called = any(item.get("type") == "function_call_output" for item in items)
    shaped = ((body.get("text") or {}).get("format") or {}).get("type", "text") != "text"
    if body.get("tools") and not called:
        call = {
            "name": body["tools"][0]["name"],
            "arguments": json.dumps(TRIP),
            "call_id": "call_1",
            "id": "fc_1",
        }
        output: dict[str, Any] = {"type": "function_call", "status": "completed", **call}
        text = ""
    else:
        text = WEATHER if called else json.dumps(TRIP) if shaped else HELLO
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        output = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    fields = {"object": "response", "created_at": 1, "model": MODEL, "parallel_tool_calls": True, "tools": []}
    response = {
        "id": "r1",
        **fields,
        "tool_choice": "auto",
        "output": [output],
        "status": "completed",
        "error": None,
    }
    response |= {"usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, **details}}
    if not body.get("stream"):
        return whole(response)
    begun = {**response, "output": [], "status": "in_progress", "usage": None}
    at = {"output_index": 0, "content_index": 0, "item_id": output["id"]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**output, "content": []}},
    ]
    if text:
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        events.append({"type": "response.content_part.added", "part": empty, **at})
        events += [
            {"type": "response.output_text.delta", "delta": d, "logprobs": [], **at} for d in _cut(text)
        ]
        events.append({"type": "response.output_text.done", "text": text, "logprobs": [], **at})
    events.append({"type": "response.output_item.done", "output_index": 0, "item": output})
    events.append({"type": "response.completed", "response": response})
    numbered = ({"sequence_number": number, **one} for number, one in enumerate(events))
    pieces = [b"event: " + one["type"].encode() + b"\n" + event(one) for one in numbered]
    return Script(headers=EVENTS_TYPE, pieces=pieces)


def _cut(text: str) -> list[str]:
    return [text[i : i + 5] for i in range(0, len(text), 5)]
