"""What a fake backend answers: a function from the request to a reply, and a default one.

The default makes words from a hash of the prompt, so equal prompts get equal answers. A request that continues a
partial answer gets the rest of what is answered without it, in chat form as well as by token ids, from any responder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, shake_256
from typing import Any, Literal

from agentsched.testing.responses import as_messages
from agentsched.testing.tokens import Spelling, count, message_text, split_answer, to_text
from agentsched.testing.wire import as_object

MEDIAN_TOKENS = 120
SIGMA = 0.6
"""Spread of the logarithm of drawn lengths: 5 % of the answers are longer than 320 tokens."""
LONGEST_DRAWN = 4096
LENGTH_HEADER = "x-fake-output-tokens"
LENGTH_FIELD = "fake_output_tokens"
"""Where a request may say how long its answer is: this header, or this key of its `metadata`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRequest:
    """Show a responder what was asked: `cells` is the tokenised prompt, `choice` the number of the answer."""

    backend: str
    kind: Literal["chat", "completion", "response"]
    model: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    cells: bytes
    choice: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Return the length of the prompt."""
        return count(self.cells)

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the chat messages, or those that a response's input stands for; none for a completion."""
        if self.kind == "response":
            return as_messages(self.body)
        return self.body.get("messages", ()) if self.kind == "chat" else ()

    @property
    def text(self) -> str:
        """Return the text of the last message, or the whole prompt of a completion."""
        messages = self.messages
        return message_text(messages[-1]) if messages else to_text(self.cells)


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer with `text`, streamed in `tokens` pieces (by default one per four bytes).

    `tool_calls` are `(name, arguments as JSON)` pairs; with any the finish reason is `tool_calls`.
    """

    text: str = ""
    tokens: int | None = None
    finish_reason: str = "stop"
    tool_calls: tuple[tuple[str, str], ...] = ()


class ErrorReply(Exception):
    """Raise this in a responder to answer with an HTTP error."""

    def __init__(
        self,
        code: int = 400,
        message: str = "refused by the responder",
        *,
        kind: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})


Responder = Callable[[FakeRequest], Reply]


def default_responder(request: FakeRequest) -> Reply:
    """Answer with pseudo-text that depends on the model, the prompt, `seed` and the choice's number."""
    seed = _seed(request)
    return Reply(pseudo_text(seed, _hinted(request) or drawn_length(seed)))


def reply_to(request: FakeRequest, responder: Responder) -> Reply:
    """Ask a responder: for the rest of its answer where the request brings the beginning of that."""
    asked, answered = split_answer(request.cells)
    begun = to_text(answered)
    if not begun or request.kind == "response":
        return responder(request)
    body = {**request.body, "messages": request.messages[:-1]} if request.kind == "chat" else request.body
    whole = responder(replace(request, cells=asked, body=body))
    if not whole.text.startswith(begun):
        return responder(request)
    tokens = whole.tokens
    if tokens is not None:
        tokens = max(tokens - round(tokens * len(begun) / len(whole.text)), 1)
    return replace(whole, text=whole.text[len(begun) :], tokens=tokens)


def _seed(request: FakeRequest) -> bytes:
    options = f"{request.model}\0{request.body.get('seed')}\0{request.choice}\0".encode()
    return blake2b(options + request.cells, digest_size=16).digest()


def _hinted(request: FakeRequest) -> int | None:
    metadata = as_object(request.body.get("metadata"))
    hint: object = request.headers.get(LENGTH_HEADER, metadata.get(LENGTH_FIELD))
    if isinstance(hint, int | str) and str(hint).isdecimal():
        return max(int(hint), 1)
    return None


def drawn_length(seed: bytes) -> int:
    """Return a length in tokens that follows a log-normal law over all seeds."""
    digest = blake2b(seed, digest_size=16, person=b"length").digest()
    first = (int.from_bytes(digest[:8], "big") + 1) / (2.0**64 + 1)
    second = int.from_bytes(digest[8:], "big") / 2.0**64
    normal = math.sqrt(-2.0 * math.log(first)) * math.cos(2.0 * math.pi * second)
    return min(max(round(MEDIAN_TOKENS * math.exp(SIGMA * normal)), 1), LONGEST_DRAWN)


def pseudo_text(seed: bytes, tokens: int) -> str:
    """Return words of four characters each, space included; a longer text begins with the shorter ones."""
    return "".join(_WORDS[byte] for byte in shake_256(seed).digest(tokens))


_WORDS = tuple(f"{a}{b}{c} " for a in "bdfgklmn" for b in "aeio" for c in "lmnrstvx")
"""256 of them: one per byte."""


def cut(reply: Reply, *, limit: int, least: int, stops: Sequence[str]) -> tuple[Spelling, str]:
    """Apply a request's limits to a reply: the tokens to send, and why they end.

    It ends before the first of `stops`, has at most `limit` tokens, and is said again until it has `least`.
    """
    text, tokens, reason = reply.text, reply.tokens, "tool_calls" if reply.tool_calls else reply.finish_reason
    ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    if ends:
        text, tokens, reason = text[: min(ends)], None, "stop"
    spelling = Spelling(text, tokens)
    if spelling.tokens < least:
        times = -(-least // spelling.tokens)
        spelling = Spelling(text * times, None if tokens is None else tokens * times)
    if spelling.tokens < least and not text:
        spelling = Spelling(text, least)
    if spelling.tokens > limit:
        return Spelling(spelling.piece(0, limit).decode("utf-8", "ignore"), limit), "length"
    return spelling, reason
