"""What goes to a backend: the caller's request with another address, key and model, streamed if possible."""

import json
from dataclasses import dataclass
from typing import Any

from agentsched.model import Backend
from agentsched.transport.incoming import Incoming, Kind

STREAMABLE = frozenset(
    "model messages prompt max_tokens max_completion_tokens temperature top_p top_k min_p stop seed user "
    "stream presence_penalty frequency_penalty repetition_penalty logit_bias ignore_eos min_tokens priority "
    "cache_salt metadata store reasoning_effort chat_template_kwargs".split()
)
"""Body fields under which a streamed answer is known to hold all that a whole one does (with `n` of 1)."""

_DROPPED = frozenset(
    (
        b"host authorization cookie connection keep-alive proxy-authorization proxy-authenticate te trailer "
        b"transfer-encoding upgrade content-length accept-encoding accept expect"
    ).split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request to one backend.

    Attributes:
        streamed: whether events are asked for.
        hide_usage: whether the usage event is ours alone and must not reach the caller.
    """

    method: str
    url: str
    headers: list[tuple[bytes, bytes]]
    content: bytes
    streamed: bool
    hide_usage: bool


def address(incoming: Incoming, backend: Backend) -> Outgoing:
    """Turn a call into a request to that backend."""
    streamed = incoming.kind in (Kind.CHAT, Kind.COMPLETION) and (incoming.stream or _streamable(incoming))
    added: dict[str, Any] = {}
    if streamed and not incoming.stream:
        added["stream"] = True
    if streamed and not incoming.wants_usage:
        options = incoming.body.get("stream_options")
        added["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    model = incoming.model
    if model is not None and served_as(model, backend) != model:
        added["model"] = served_as(model, backend)
    return Outgoing(
        method=incoming.method,
        url=backend.base_url + incoming.path,
        headers=_headers(incoming, backend, streamed=streamed),
        content=_with(incoming, added) if added else incoming.content,
        streamed=streamed,
        hide_usage="stream_options" in added,
    )


def served_as(model: str, backend: Backend) -> str:
    """Return the name under which the backend serves what the app calls `model`."""
    return backend.models.get(model, model) if backend.models is not None else model


def _streamable(incoming: Incoming) -> bool:
    body = incoming.body
    several = isinstance(body.get("prompt"), list) and not all(isinstance(t, int) for t in body["prompt"])
    return STREAMABLE.issuperset(body) and not several


def _with(incoming: Incoming, added: dict[str, Any]) -> bytes:
    """Return the body with fields set; the caller's own bytes stay as they are where nothing is replaced."""
    if incoming.body.keys().isdisjoint(added):
        head = incoming.content.rstrip().removesuffix(b"}")
        return head + b"," + json.dumps(added, separators=(",", ":")).encode()[1:]
    return json.dumps({**incoming.body, **added}, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _headers(incoming: Incoming, backend: Backend, *, streamed: bool) -> list[tuple[bytes, bytes]]:
    headers = [(name, value) for name, value in incoming.headers if name.lower() not in _DROPPED]
    headers.append((b"accept", b"text/event-stream" if streamed else b"application/json, */*"))
    headers.append((b"accept-encoding", b"identity"))
    if backend.api_key is not None:
        headers.append((b"authorization", b"Bearer " + backend.api_key.encode("ascii")))
    return headers
