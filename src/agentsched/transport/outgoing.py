"""What goes to a backend: the caller's request with another address, key and model, streamed if possible."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from agentsched.model import Backend
from agentsched.model.value import value
from agentsched.transport.head import Head, header
from agentsched.transport.incoming import Incoming, Kind
from agentsched.transport.jsontext import dumps
from agentsched.transport.metrics import ASKED_BY
from agentsched.transport.partial import goes_on_by_ids, may_go_on_by_ids
from agentsched.transport.priority import FIELD, Priorities
from agentsched.transport.splice import with_fields
from agentsched.transport.stack import Stack
from agentsched.transport.streamable import Engine, engine_by_fingerprint, engine_of, streamable

_DROPPED = frozenset(
    (
        b"host authorization api-key x-api-key cookie connection keep-alive proxy-authorization "
        b"proxy-authenticate te trailer transfer-encoding upgrade content-length accept-encoding accept expect"
    ).split()
)

_USAGE: Mapping[str, Any] = MappingProxyType({"include_usage": True})
_USAGE_ALONE = dumps(dict(_USAGE))

MAX_REMEMBERED = 1_000
"""Most URLs, and most header sets, that are kept ready; beyond it the table starts anew."""

_OF_ONE_CALL = frozenset((b"Content-Length", b"content-length"))
"""Headers that differ from call to call, as the SDKs spell them; they are dropped in any case."""


@value
class Outgoing:
    """A request to one backend.

    Attributes:
        url, headers: the HTTP stack's own `URL` and `Headers`; complete but for the content's length.
        streamed: whether events are asked for.
        hide_usage: whether the usage event is ours alone and must not reach the caller.
        hide_ids: whether the ids of tokens are.
        served: what the backend calls the model.
        model_back: the name to put where the backend's name for the model stands; None if they are the same.
        asks_load: whether the head of the answer is asked for the backend's load, which is ours alone and must not
            reach the caller.
        priority: that was added to the body; empty if none was.
    """

    method: str
    url: Any
    headers: Any
    content: bytes
    streamed: bool
    hide_usage: bool
    hide_ids: bool
    served: str | None
    model_back: str | None
    asks_load: bool = False
    priority: bytes = b""


class Addressing:
    """Turns calls into requests to backends.

    It remembers the URLs and header sets it made: an app's calls repeat them, and building them anew would
    cost more than all else that is done to a request.

    Attributes:
        priorities: which backends are told how urgent calls are.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._urls: dict[str, Any] = {}
        self._headers: dict[object, tuple[Any, bool]] = {}
        self._engines: dict[str, Engine | None] = {}
        self.priorities = Priorities()

    def learn(self, backend: str, head: Head | None, answer: Mapping[str, Any] | None = None) -> None:
        """Note what a backend runs, as its first answer tells, or a whole one, or the last event of a stream."""
        if backend not in self._engines:
            self._engines[backend] = engine_of(head) if head is not None else None
        if answer is not None and self._engines[backend] is None:
            self._engines[backend] = engine_by_fingerprint(answer)

    def forget(self, backend: str) -> None:
        """Look again: after a failure something else may run there."""
        self._engines.pop(backend, None)

    def exact(self, backend: str) -> bool:
        """Whether a backend is known to tell its tokens' ids, and to go on with those of another one."""
        return self._engines.get(backend) is Engine.VLLM

    def address(
        self, incoming: Incoming, backend: Backend, priority: int = 0, *, rest: bool = False
    ) -> Outgoing:
        """Return the request that asks this backend to answer the call.

        Args:
            priority: the higher, the more urgent.
            rest: whether that asks for the rest of an answer, which is always streamed.
        """
        streamed = rest or incoming.stream or streamable(incoming, self._engines.get(backend.name))
        added: dict[str, bytes] = {}
        if streamed and not incoming.stream:
            added["stream"] = b"true"
        if streamed and incoming.kind is not Kind.RESPONSE and not incoming.wants_usage:
            added["stream_options"] = _asking_for_usage(incoming.body.get("stream_options"))
        ids = self.exact(backend.name) and (goes_on_by_ids if rest else may_go_on_by_ids)(incoming)
        if ids:
            added["return_token_ids"] = b"true"
        model = incoming.model
        served = served_as(model, backend)
        if served != model:
            added["model"] = dumps(served)
        urgency = self.priorities.field(incoming, backend, priority)
        if urgency is not None:
            added[FIELD] = urgency  # the last one: see `without_priority`
        url = self._url(backend.base_url + incoming.path)
        headers, asks_load = self._header_set(incoming, backend, url, streamed=streamed)
        return Outgoing(
            method=incoming.method,
            url=url,
            headers=headers,
            content=with_fields(incoming.content, incoming.body, added) if added else incoming.content,
            streamed=streamed,
            hide_usage="stream_options" in added,
            hide_ids=ids,
            served=served,
            model_back=model if served != model else None,
            asks_load=asks_load,
            priority=urgency or b"",
        )

    def _url(self, url: str) -> Any:
        made = self._urls.get(url)
        if made is None:
            made = _remember(self._urls, url, self._stack.URL(url))
        return made

    def _header_set(
        self, incoming: Incoming, backend: Backend, url: Any, *, streamed: bool
    ) -> tuple[Any, bool]:
        """Return the headers, and whether we ask for the backend's load by them."""
        same = tuple([pair for pair in incoming.headers if pair[0] not in _OF_ONE_CALL])
        understood, metrics = incoming.kind.understood, backend.metrics
        key = (
            same,
            backend.base_url,
            backend.api_key,
            streamed,
            understood,
            metrics,
        )  # a namesake may follow
        made = self._headers.get(key)
        if made is None:
            headers = [(b"host", url.netloc), *_headers(incoming, backend, streamed)]
            asks_load = understood and metrics and not header(incoming.headers, ASKED_BY[0])
            if asks_load:
                headers.append(ASKED_BY)
            made = _remember(self._headers, key, (self._stack.Headers(headers), asks_load))
        return made


def _remember(table: dict[Any, Any], key: object, made: Any) -> Any:
    if len(table) >= MAX_REMEMBERED:
        table.clear()
    table[key] = made
    return made


def _asking_for_usage(options: object) -> bytes:
    return dumps({**options, **_USAGE}) if isinstance(options, dict) and options else _USAGE_ALONE


def served_as(model: str | None, backend: Backend) -> str | None:
    """Return what a backend calls a model."""
    return model if model is None or backend.models is None else backend.models.get(model, model)


def renamed(answer: dict[str, Any], model: str | None) -> bool:
    """Put the app's name of the model where the backend's stands; return whether it changed anything."""
    if model is None or answer.get("model", model) == model:
        return False
    answer["model"] = model
    return True


def without_priority(outgoing: Outgoing) -> Outgoing:
    """Return the request without the priority that was added to it, at the end of its body."""
    before, _, after = outgoing.content.rpartition(b',"%b":%b' % (FIELD.encode(), outgoing.priority))
    return replace(outgoing, content=before + after, priority=b"")


def _headers(incoming: Incoming, backend: Backend, streamed: bool) -> list[tuple[bytes, bytes]]:
    understood = incoming.kind.understood
    dropped = _DROPPED if understood else _DROPPED - {b"accept"}
    headers = [
        (name, value)
        for name, value in incoming.headers
        if (lower := name.lower()) not in dropped and not lower.startswith(b"x-stainless-")
    ]
    if understood:
        headers.append((b"accept", b"text/event-stream" if streamed else b"application/json, */*"))
    headers.append((b"accept-encoding", b"identity"))
    if backend.api_key is not None:
        headers.append((b"authorization", b"Bearer " + backend.api_key.encode("ascii")))
    return headers
