"""The JSON and the events of an OpenAI-compatible server, as vLLM writes them: shapes only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

Headers = Mapping[str, str]
Extra = dict[str, Any]
JSON_TYPE = {"content-type": "application/json"}
EVENTS_TYPE = {"content-type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"


def dump(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def event(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


ERROR_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


def as_object(value: object) -> Mapping[str, Any]:
    """Return a decoded JSON object as it is, and anything else as an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """Return a decoded JSON list as it is, and anything else as an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def error(code: int, message: str, *, kind: str | None = None, param: str | None = None) -> dict[str, Any]:
    """Return an error body."""
    kind = kind or ERROR_KINDS.get(code, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def usage(prompt: int, output: int, cached: int) -> dict[str, Any]:
    """Return a usage object; all counts in tokens."""
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + output,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def timings(prompt: int, cached: int, output: int, *, read_s: float, wrote_s: float) -> dict[str, Any]:
    """Return what llama.cpp tells of a call's times; counts in tokens, those of the prompt less what was cached."""
    read = prompt - cached
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": 1_000 * read_s,
        "prompt_per_token_ms": 1_000 * read_s / read if read else None,
        "prompt_per_second": read / read_s if read_s else None,
        "predicted_n": output,
        "predicted_ms": 1_000 * wrote_s,
        "predicted_per_token_ms": 1_000 * wrote_s / output if output else None,
        "predicted_per_second": output / wrote_s if wrote_s else None,
    }


def tool_calls(calls: Sequence[tuple[str, str]], *, indexed: bool) -> list[dict[str, Any]]:
    """Return tool calls as a message carries them, or with their index as a stream does."""
    return [
        ({"index": i} if indexed else {})
        | {"id": f"call-{i}-{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in enumerate(calls)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Write the answer to one request, whole or as chunks."""

    kind: Literal["chat", "completion"]
    answer_id: str
    created: int
    model: str
    fingerprint: str | None = None

    def _frame(self, *, chunk: bool) -> dict[str, Any]:
        kind = (
            "text_completion"
            if self.kind == "completion"
            else "chat.completion" + (".chunk" if chunk else "")
        )
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, choices: list[dict[str, Any]], counts: dict[str, Any], extra: Extra) -> bytes:
        """Return a whole answer."""
        frame = self._frame(chunk=False) | {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
        }
        return dump(frame | {"usage": counts} | extra)

    def choice(
        self, index: int, text: str, reason: str, calls: Sequence[tuple[str, str]], extra: Extra
    ) -> dict[str, Any]:
        """Return one choice of a whole answer."""
        content: dict[str, Any]
        if self.kind == "completion":
            content = {"text": text}
        else:
            message = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
            }
            message |= {
                "function_call": None,
                "tool_calls": tool_calls(calls, indexed=False),
                "reasoning": None,
            }
            content = {"message": message}
        ends = {"logprobs": None, "finish_reason": reason, "stop_reason": None}
        return {"index": index} | content | ends | extra

    def opening(self, index: int, extra: Extra) -> bytes | None:
        """Return the first chunk of a chat choice, which names the role."""
        if self.kind == "completion":
            return None
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return event(self._frame(chunk=True) | {"choices": [choice]} | extra)

    def chunk(
        self,
        index: int,
        text: str,
        *,
        reason: str | None = None,
        calls: Sequence[tuple[str, str]] = (),
        extra: Extra,
        counts: dict[str, Any] | None = None,
    ) -> bytes:
        """Return a chunk with the text that came since the last one; `extra` goes into the choice."""
        content: dict[str, Any]
        if self.kind == "completion":
            content = {"text": text}
        else:
            delta: dict[str, Any] = {"content": text}
            content = {"delta": delta | ({"tool_calls": tool_calls(calls, indexed=True)} if calls else {})}
        choice: dict[str, Any] = {"index": index} | content | {"logprobs": None, "finish_reason": reason}
        if reason is not None:
            choice["stop_reason"] = None
        frame: dict[str, Any] = self._frame(chunk=True) | {"choices": [choice | extra]}
        return event(frame | {"usage": counts} if counts else frame)

    def closing(self, counts: dict[str, Any], *, wanted: bool, extra: Extra) -> Iterator[bytes]:
        """Yield the chunk that carries nothing but the usage, if it is wanted, and the end."""
        none: list[dict[str, Any]] = []
        if wanted:
            told = {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}
            yield event(self._frame(chunk=True) | {"choices": none, "usage": counts} | told | extra)
        yield DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Hold an HTTP request: header names in lower case, `path` without query and the backend's prefix."""

    method: str
    path: str
    headers: Headers
    body: bytes = b""
