"""What the app's SDK sends: one HTTP request, understood as far as scheduling needs it."""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, cast

from agentsched.errors import UsageError
from agentsched.model.value import value
from agentsched.transport.head import Headers, header
from agentsched.transport.jsontext import loads
from agentsched.transport.prompt import (
    Prompt,
    chat_prompt,
    completion_prompt,
    response_prompt,
    unmarked_prompt,
)

API_ROOT = b"/v1"

MAX_MODEL_CHARS = 1_000
"""Longer names are mistakes; names are kept with the stories of calls."""

MAX_TOKENS = 10**9
"""A larger cap is none."""


class Kind(StrEnum):
    """How much of a call is understood."""

    CHAT = "/chat/completions"
    COMPLETION = "/completions"
    RESPONSE = "/responses"
    EMBEDDING = "/embeddings"
    MODELS = "/models"
    OPAQUE = "passed through"

    @property
    def understood(self) -> bool:
        """Whether its answers are read, not only handed on."""
        return self is not Kind.OPAQUE and self is not Kind.MODELS  # quicker than hashing an enum

    @property
    def rooted(self) -> bool:
        """Whether every server of language models has that path below its API root."""
        return self is Kind.CHAT


_PROMPTS: Mapping[Kind, Callable[[Mapping[str, Any]], Prompt]] = {
    Kind.CHAT: chat_prompt,
    Kind.COMPLETION: completion_prompt,
    Kind.RESPONSE: response_prompt,
    Kind.EMBEDDING: lambda body: unmarked_prompt(body, ("input",)),
    Kind.MODELS: lambda body: Prompt(0),
    Kind.OPAQUE: lambda body: unmarked_prompt(body, ("input", "messages", "prompt", "query", "documents")),
}

_RETRY_COUNT = b"x-stainless-retry-count"
"""As the SDKs spell it."""

_GENERATED = frozenset((Kind.CHAT, Kind.COMPLETION))
_STREAMED = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.RESPONSE))
_UNDERSTOOD = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.RESPONSE, Kind.EMBEDDING))


@value
class Incoming:
    """A call as it came in.

    Attributes:
        path: below the API root, query string included.
        content: the body's bytes.
        body: the parsed body; empty where it is not a JSON object.
        timeout: the HTTP timeouts of the caller's client, in seconds by kind.
    """

    kind: Kind
    method: str
    path: str
    headers: Headers
    content: bytes
    body: Mapping[str, Any]
    timeout: Mapping[str, float | None]

    @property
    def model(self) -> str | None:
        """The model asked for; None where the path has none."""
        model = self.body.get("model")
        return model if isinstance(model, str) and model else None

    @property
    def stream(self) -> bool:
        """Whether the caller wants events."""
        return bool(self.body.get("stream")) and self.kind in _STREAMED

    @property
    def several(self) -> bool:
        """Whether it asks for more than one answer: by `n`, or by a list of prompts."""
        return (self._prompts is not None or self.body.get("n") not in (None, 1)) and self.kind in _GENERATED

    @property
    def answers(self) -> int:
        """How many answers it asks for."""
        n = self.body.get("n")
        return (self._prompts or 1) * (n if isinstance(n, int) and n > 0 else 1)

    @property
    def _prompts(self) -> int | None:
        """How many prompts are listed; None where there is no list of prompts."""
        prompt: Any = self.body.get("prompt")
        if not isinstance(prompt, list) or all(isinstance(token, int) for token in cast("list[Any]", prompt)):
            return None
        return len(cast("list[Any]", prompt))

    @property
    def wants_usage(self) -> bool:
        """Whether the caller asked for the usage event of a stream."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and bool(cast("dict[str, Any]", options).get("include_usage"))

    @property
    def max_tokens(self) -> int | None:
        """The cap on output tokens that the caller set; 0 where there is no output."""
        if self.kind is Kind.EMBEDDING:
            return 0
        body = self.body
        cap = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
        return cap if isinstance(cap, int) and cap is not True and 0 < cap <= MAX_TOKENS else None

    @property
    def sdk_retry(self) -> int:
        """Which try of the SDK's own this is, as it says; 0 for the first."""
        for name, count in reversed(self.headers):  # it is among the last
            if name == _RETRY_COUNT:
                return int(count) if count.isdigit() and len(count) < 10 else 0
        return 0

    @property
    def prompt(self) -> Prompt:
        """How long its prompt is, and how it begins; where no text is found, the whole body counts."""
        prompt = _PROMPTS[self.kind](self.body)
        return prompt if prompt.chars else Prompt(len(self.content))


def read(
    *,
    method: str,
    raw_path: bytes,
    headers: Headers,
    content: bytes,
    timeout: Mapping[str, float | None],
    max_body_bytes: int,
) -> Incoming:
    """Understand a request.

    Raises:
        UsageError: for a body that is too large, or, where one is due, is no JSON object that names a model.
    """
    if len(content) > max_body_bytes:
        raise UsageError(f"the body has {len(content)} bytes; the scheduler takes at most {max_body_bytes}")
    if not (method.isascii() and method.isalpha()):
        raise UsageError(f"{method[:20]!r} is no HTTP method")
    kind, path = _route(method, raw_path)
    body = _body(kind, method, headers, content)
    return Incoming(
        kind=kind,
        method=method,
        path=path,
        headers=headers,
        content=content,
        body=body,
        timeout=timeout,
    )


@lru_cache(1_000)
def _route(method: str, raw_path: bytes) -> tuple[Kind, str]:
    """Return what a request is, and its path below the API root."""
    path = _below_root(raw_path).decode("ascii", "replace")
    return _kind(method, path.partition("?")[0].rstrip("/")), path


def _below_root(raw_path: bytes) -> bytes:
    """Return the path below the API root; it starts with a slash, so that it cannot become part of a host.

    Raises:
        UsageError: for a path that climbs out of the root.
    """
    below = raw_path.removeprefix(API_ROOT)
    if below is raw_path or below[:1] not in (b"/", b"?", b""):
        below = raw_path
    if b".." in below.partition(b"?")[0].lower().replace(b"%2e", b".").replace(b"%2f", b"/").split(b"/"):
        raise UsageError("a path with '..' would leave the backend's API root; nothing was sent")
    return below


def _kind(method: str, path: str) -> Kind:
    if method == "POST" and path in _UNDERSTOOD:
        return Kind(path)
    if method == "GET" and (path == Kind.MODELS or path.startswith(Kind.MODELS + "/")):
        return Kind.MODELS
    return Kind.OPAQUE


def _body(kind: Kind, method: str, headers: Headers, content: bytes) -> Mapping[str, Any]:
    if kind.understood:
        return _understood(kind, content)
    if method != "POST" or not _is_json(headers):
        return {}
    try:
        body: Any = loads(content)
    except ValueError:
        return {}
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def _understood(kind: Kind, content: bytes) -> Mapping[str, Any]:
    try:
        body: Any = loads(content)
    except ValueError as error:
        raise UsageError(f"the body of {kind} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise UsageError(f"the body must be a JSON object, not {type(body).__name__}")
    body = cast("dict[str, Any]", body)
    model = body.get("model")
    if kind is Kind.RESPONSE and model is None:
        return body  # a stored prompt may name it
    if not isinstance(model, str) or not model:
        raise UsageError("the body names no model: 'model' must be a non-empty string")
    if len(model) > MAX_MODEL_CHARS:
        raise UsageError(
            f"the model's name has {len(model)} characters; the scheduler takes {MAX_MODEL_CHARS}"
        )
    return body


def _is_json(headers: Headers) -> bool:
    return b"json" in header(headers, b"content-type").lower()
