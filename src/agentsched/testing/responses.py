"""`/v1/responses` as a fake backend answers it: the same generation as a chat's, in the other API's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentsched.testing.wire import Extra, as_list, as_object, dump

NAMES = {"function_call_output": "tool", "function_call": "assistant"}
"""Whose message an item of the input is that is none."""


def as_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return instructions and input as the chat messages that the model is shown."""
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": str(body["instructions"])})
    given: object = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in map(as_object, as_list(given)):
        role = NAMES.get(str(item.get("type"))) or str(item.get("role") or "user")
        content: object = item.get("content", item.get("output", item.get("arguments")))
        messages.append({"role": role, "content": content})
    return messages


class ResponseShape:
    """Write the answer to one request, whole or as events.

    Args:
        asked: the request's body, whose settings a response repeats.
    """

    kind = "response"
    fingerprint = None

    def __init__(self, *, answer_id: str, created: int, model: str, asked: Mapping[str, Any]) -> None:
        self._answer_id = answer_id
        self._created = created
        self._model = model
        self._asked = asked
        self._sequence = 0
        self._text = ""
        self._output: list[dict[str, Any]] = []
        self._reason = "stop"

    def whole(self, choices: list[dict[str, Any]], counts: dict[str, Any], extra: Extra) -> bytes:
        """Return a whole answer."""
        return dump(self._response(counts) | extra)

    def choice(
        self, index: int, text: str, reason: str, calls: Sequence[tuple[str, str]], extra: Extra
    ) -> dict[str, Any]:
        """Take what the one answer says."""
        self._text, self._reason = text, reason
        status = "incomplete" if reason == "length" else "completed"
        self._output = [self._message(status), *self._calls(calls)]
        return {}

    def opening(self, index: int, extra: Extra) -> bytes | None:
        """Return the events before the first piece of text."""
        blank = self._message("in_progress")
        place = {"item_id": blank["id"], "output_index": 0, "content_index": 0}
        return b"".join(
            (
                self._event("response.created", response=self._response(None)),
                self._event("response.in_progress", response=self._response(None)),
                self._event("response.output_item.added", output_index=0, item={**blank, "content": []}),
                self._event("response.content_part.added", **place, part=blank["content"][0]),
            )
        )

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
        """Return a piece of text as an event, and after the last one the end of every item."""
        self._text += text
        place = {"item_id": self._message("")["id"], "output_index": 0, "content_index": 0}
        piece = self._event("response.output_text.delta", **place, delta=text, logprobs=[])
        if reason is None:
            return piece
        self.choice(index, self._text, reason, calls, extra)
        message = self._output[0]
        part = message["content"][0]
        return b"".join(
            (
                piece,
                self._event("response.output_text.done", **place, text=self._text, logprobs=[]),
                self._event("response.content_part.done", **place, part=part),
                self._event("response.output_item.done", output_index=0, item=message),
                *self._call_events(),
            )
        )

    def closing(self, counts: dict[str, Any], *, wanted: bool, extra: Extra) -> Iterator[bytes]:
        """Yield the last event, which holds the whole response whether its usage was asked for or not."""
        response = self._response(counts)
        yield self._event(f"response.{response['status']}", response=response)

    def _call_events(self) -> Iterator[bytes]:
        for index, item in enumerate(self._output[1:], 1):
            place = {"item_id": item["id"], "output_index": index}
            begun = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=index, item=begun)
            yield self._event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **place, **done)
            yield self._event("response.output_item.done", output_index=index, item=item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        content = dump({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: " + kind.encode() + b"\ndata: " + content + b"\n\n"

    def _message(self, status: str) -> dict[str, Any]:
        part = {
            "type": "output_text",
            "text": self._text,
            "annotations": list[Any](),
            "logprobs": list[Any](),
        }
        item_id = f"msg_{self._answer_id}"
        return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": [part]}

    def _calls(self, calls: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        return [
            {
                "id": f"fc_{i}_{self._answer_id}",
                "type": "function_call",
                "call_id": f"call-{i}-{name}",
                "name": name,
                "arguments": arguments,
                "status": "completed",
            }
            for i, (name, arguments) in enumerate(calls)
        ]

    def _response(self, counts: dict[str, Any] | None) -> dict[str, Any]:
        cut = self._reason == "length"
        status = "in_progress" if counts is None else "incomplete" if cut else "completed"
        asked = self._asked
        return {
            "id": f"resp_{self._answer_id}",
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": status,
            "output": [] if counts is None else self._output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None if counts is None else _usage(counts),
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            **{
                name: asked.get(name)
                for name in (
                    "instructions",
                    "max_output_tokens",
                    "metadata",
                    "previous_response_id",
                    "temperature",
                    "top_p",
                )
            },
        }


def _usage(counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counts["total_tokens"],
    }
