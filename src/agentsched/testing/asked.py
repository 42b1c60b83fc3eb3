"""Read the body of a generation request, or say what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from agentsched.testing.responder import ErrorReply
from agentsched.testing.responses import as_messages
from agentsched.testing.tokens import count, from_ids, message_text, render_chat, to_cells
from agentsched.testing.wire import as_list, as_object

Body = Mapping[str, Any]
MOST_CHOICES = 128
Generated = Literal["chat", "completion", "response"]

GoesOn = Literal["asked", "always", "refuses", "ignores"]
"""What a server makes of an assistant's last message: vLLM goes on with it if asked to, llama.cpp in any case, and
whole answers of it repeat it; others refuse to be asked, or take no notice of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Hold what a generation request asks for; lengths in tokens. `repeated` is to be said once more before all."""

    kind: Generated
    model: str
    body: Body
    cells: bytes
    limit: int
    least: int
    stops: tuple[str, ...]
    choices: int
    priority: int
    salt: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    repeated: str


def read_json(data: bytes) -> Body:
    """Decode a request body, which has to be an object."""
    try:
        body: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ErrorReply(400, f"body is not JSON: {error}") from error
    fields = as_object(body)
    if fields is not body:
        raise ErrorReply(400, "body is not a JSON object")
    return fields


def read_generation(body: Body, kind: Generated, *, max_model_len: int, goes_on: GoesOn = "asked") -> Asked:
    """Check a request for a chat, a completion or a response."""
    body, repeated = _going_on(body, goes_on) if kind == "chat" else (body, "")
    cells = _READ[kind](body)
    room = max_model_len - count(cells)
    if room < 1:
        raise ErrorReply(
            400, f"input has {count(cells)} tokens, the model takes {max_model_len}", param="input_tokens"
        )
    wanted = _number(body, _CAP[kind], _number(body, "max_tokens", None) if kind != "response" else None)
    if kind == "completion" and wanted is None:
        wanted = 16
    if wanted is not None and not 1 <= wanted <= room:
        name = "max_output_tokens" if kind == "response" else "max_tokens"
        raise ErrorReply(400, f"{name} must be from 1 to {room}, not {wanted}", param=name)
    limit = room if wanted is None else wanted
    least = limit if body.get("ignore_eos") and wanted is not None else _number(body, "min_tokens", 0) or 0
    if least > limit:
        raise ErrorReply(400, "min_tokens is above max_tokens", param="min_tokens")
    choices = (_number(body, "n", 1) or 1) if kind != "response" else 1
    if not 1 <= choices <= MOST_CHOICES:
        raise ErrorReply(400, f"n must be from 1 to {MOST_CHOICES}", param="n")
    flags = as_object(body.get("stream_options"))
    return Asked(
        kind=kind,
        model=str(body.get("model") or ""),
        body=body,
        cells=cells,
        limit=limit,
        least=least,
        stops=_stops(body.get("stop")),
        choices=choices,
        priority=_number(body, "priority", 0) or 0,
        salt=_salt(body.get("cache_salt")),
        stream=bool(body.get("stream")),
        include_usage=bool(flags.get("include_usage")),
        continuous_usage=bool(flags.get("continuous_usage_stats")),
        token_ids=bool(body.get("return_token_ids")),
        repeated=repeated,
    )


def _going_on(body: Body, goes_on: GoesOn) -> tuple[Body, str]:
    """Return the body as a server of another kind reads it, and what it repeats of the last message."""
    contradiction = body.get("continue_final_message") and body.get("add_generation_prompt", True)
    if goes_on == "asked" or (goes_on == "always" and contradiction):
        return body, ""
    if goes_on == "refuses" and "continue_final_message" in body:
        raise ErrorReply(400, "Unrecognized request argument supplied: continue_final_message")
    fields = {name: value for name, value in body.items() if name not in _GOING_ON}
    last = as_object((as_list(body.get("messages")) or [None])[-1])
    if goes_on != "always" or last.get("role") != "assistant":
        return fields, ""
    return {**fields, "add_generation_prompt": False, "continue_final_message": True}, message_text(last)


_GOING_ON = ("add_generation_prompt", "continue_final_message")


def _chat_cells(body: Body) -> bytes:
    return render_chat(
        read_messages(body),
        generate=bool(body.get("add_generation_prompt", True)),
        unfinished=bool(body.get("continue_final_message")),
    )


def _completion_cells(body: Body) -> bytes:
    return prompt_cells(body.get("prompt"))


def _response_cells(body: Body) -> bytes:
    given: object = body.get("input")
    items = as_list(given)
    if not (given and (isinstance(given, str) or items)) or not all(isinstance(item, dict) for item in items):
        raise ErrorReply(400, "input must be text or a list of items, and not empty", param="input")
    return render_chat(as_messages(body), generate=True)


_READ: Mapping[Generated, Callable[[Body], bytes]] = {
    "chat": _chat_cells,
    "completion": _completion_cells,
    "response": _response_cells,
}
_CAP: Mapping[Generated, str] = {
    "chat": "max_completion_tokens",
    "completion": "max_completion_tokens",
    "response": "max_output_tokens",
}


def read_messages(body: Body) -> Sequence[Mapping[str, Any]]:
    """Return the chat messages of a body."""
    messages = as_list(body.get("messages"))
    if not messages:
        raise ErrorReply(400, "messages must be a list with something in it", param="messages")
    if not all(isinstance(row, dict) for row in messages):
        raise ErrorReply(400, "every message must be an object", param="messages")
    if body.get("continue_final_message") and body.get("add_generation_prompt", True):
        raise ErrorReply(
            400, "continue_final_message needs add_generation_prompt=false", param="continue_final_message"
        )
    return [as_object(row) for row in messages]


def prompt_cells(prompt: object) -> bytes:
    """Return the tokens of a prompt given as a string or as token ids."""
    if isinstance(prompt, str) and prompt:
        return to_cells(prompt)
    items = as_list(prompt)
    if items:
        ids = [item for item in items if isinstance(item, int)]
        if len(ids) == len(items):
            return from_ids(ids)
        if len(items) == 1:
            return prompt_cells(items[0])
    raise ErrorReply(400, "prompt must be one string or one list of token ids, and not empty", param="prompt")


def _number(body: Body, name: str, default: int | None) -> int | None:
    value: object = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise ErrorReply(400, f"{name} must be a whole number; {name}")
    return value


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    items = as_list(value)
    stops = tuple(item for item in items if isinstance(item, str))
    if isinstance(value, list) and len(stops) == len(items):
        return stops
    raise ErrorReply(400, "stop must be a string or a list of strings", param="stop")


def _salt(value: object) -> int:
    if value is None:
        return 0
    return int.from_bytes(blake2b(str(value).encode("utf-8", "replace"), digest_size=8).digest(), "big")
