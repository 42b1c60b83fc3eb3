"""An upstream that answers from memory: what is left of a call's time is the client's and the scheduler's."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agentsched.transport.stack import default_stack

http = default_stack()


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


class Answer(http.AsyncByteStream):
    """A prepared stream, one event a chunk."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


class MemoryUpstream(http.AsyncBaseTransport):
    """Answers every chat completion with the same text in `events` events.

    Two of them open and close the answer, one ends the stream; the usage event comes on top if asked for.
    """

    def __init__(self, events: int) -> None:
        text = [_event({"content": "token "}) for _ in range(events - 3)]
        usage = {"prompt_tokens": 2500, "completion_tokens": events - 3, "total_tokens": 2497 + events}
        counted = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        counted |= {"choices": [], "usage": usage}
        opening, closing = _event({"role": "assistant", "content": ""}), _event({}, "stop")
        done = b"data: [DONE]\n\n"
        self._plain = [opening, *text, closing, done]
        self._counted = [opening, *text, closing, b"data: " + json.dumps(counted).encode() + b"\n\n", done]
        message = {"role": "assistant", "content": "token " * (events - 3)}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
        self._whole = json.dumps({**whole, "choices": [choice], "usage": usage}).encode()

    async def handle_async_request(self, request: Any) -> Any:
        content = await request.aread()
        if b'"stream":true' not in content:
            return http.Response(200, headers={"content-type": "application/json"}, content=self._whole)
        chunks = self._counted if b'"include_usage":true' in content else self._plain
        return http.Response(200, headers={"content-type": "text/event-stream"}, stream=Answer(chunks))
