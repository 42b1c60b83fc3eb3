"""What is no answer: an exception of the transport, an error status, an error inside an answer."""

from collections.abc import Mapping
from math import isfinite
from types import MappingProxyType
from typing import Any, cast

from agentsched.model import FailureKind
from agentsched.transport.head import Head
from agentsched.transport.incoming import Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.stack import Stack

_STATUS = {"rate_limit_exceeded": 429, "server_overloaded": 503, "invalid_prompt": 400}
"""HTTP statuses that codes of errors inside answers stand for."""


_NONE: Mapping[str, float | None] = MappingProxyType({})
_TIMEOUTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "connect": ("ConnectTimeout", "no connection"),
        "read": ("ReadTimeout", "nothing came"),
        "write": ("WriteTimeout", "nothing was taken"),
    }
)


class Broken(Exception):
    """What came is not the answer.

    Attributes:
        refusal: the backend's own error answer, if it gave one: head and body.
    """

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        refusal: tuple[Head, bytes] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.refusal = refusal
        self.retry_after_s = retry_after_s


def raised(stack: Stack, error: Exception, timeouts: Mapping[str, float | None] = _NONE) -> Broken:
    """An exception of the transport, of whatever type: the stack's own, or one that slipped through it.

    Args:
        timeouts: of the caller's client, in seconds by kind.
    """
    for kind, (name, what) in _TIMEOUTS.items():
        seconds = timeouts.get(kind)
        if seconds is not None and isinstance(error, getattr(stack, name)):
            why = f"{what} within {seconds:g} s, the {kind} timeout of the caller's client"
            return Broken(_kind_of(stack, error), why)
    if isinstance(error, stack.LocalProtocolError) and str(error).startswith("Illegal header"):
        # its text quotes the header; what else is of that type is the connection's fault
        return Broken(FailureKind.UNSENDABLE, "a header's name or value is not allowed in HTTP")
    return Broken(_kind_of(stack, error), f"{type(error).__name__}: {error}".removesuffix(": "))


def refused(head: Head, content: bytes, model: str | None, path: Kind) -> Broken:
    """An answer with an error status."""
    if encoded(head):
        head, content = head.replaced(b"content-encoding"), b""
    if head.status < 400:
        return Broken(FailureKind.PROTOCOL, f"HTTP {head.status}: redirects and the like are not followed")
    kind = _kind_of_status(head.status, content, model)
    if head.status == 404 and not path.rooted and kind is FailureKind.ERROR:
        kind = FailureKind.MISSING
    detail = f"HTTP {head.status}: {_message(content)}"
    if head.status == 404 and kind is FailureKind.ERROR and path.rooted and b'"error"' not in content:
        return Broken(kind, f"{detail} for {path}; base_url must end with the API root, most often /v1")
    return Broken(kind, detail, refusal=(head, content), retry_after_s=_retry_after(head))


def encoded(head: Head) -> bool:
    """Whether the body came compressed, although that was ruled out: nothing here could read it."""
    return head.get(b"content-encoding").lower() not in (b"", b"identity")


def in_band(payload: dict[str, Any], model: str | None) -> Broken:
    """An error inside an answer of status 200, as vLLM sends when its queue is full."""
    error: Any = payload.get("error") or payload
    code: Any = cast("dict[str, Any]", error).get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else _STATUS.get(str(code), 500)
    content = dumps(payload if "error" in payload else {"error": payload})
    detail = f"error {status} in the answer: {_message(content)}"
    head = Head(status, [(b"content-type", b"application/json")])
    return Broken(_kind_of_status(status, content, model), detail, refusal=(head, content))


def failed(head: Head, response: dict[str, Any], content: bytes) -> Broken:
    """A response that says of itself that it failed; where nobody does better, the caller gets it as it is."""
    broken = in_band({"error": response.get("error") or "the response failed"}, None)
    return Broken(broken.kind, broken.detail, refusal=(head, content))


def _kind_of(stack: Stack, error: Exception) -> FailureKind:
    if isinstance(error, (stack.ConnectError, stack.ConnectTimeout, stack.PoolTimeout)):
        return FailureKind.REFUSED
    if isinstance(error, stack.UnsupportedProtocol):
        return FailureKind.REFUSED
    if isinstance(error, stack.TimeoutException):
        return FailureKind.TIMEOUT
    return FailureKind.BROKEN


def _kind_of_status(status: int, content: bytes, model: str | None) -> FailureKind:
    if status in (429, 503):
        return FailureKind.OVERLOADED
    if status in (401, 403):
        return FailureKind.DENIED
    if status == 404:
        named = model is not None and (
            b"model" in content or model.encode(errors="backslashreplace") in content
        )
        return FailureKind.UNKNOWN_MODEL if named else FailureKind.ERROR
    if status == 408:
        return FailureKind.TIMEOUT
    return FailureKind.ERROR if status >= 500 or status in (405, 425) else FailureKind.INVALID


def _retry_after(head: Head) -> float | None:
    try:
        seconds = float(head.get(b"retry-after"))
    except ValueError:
        return None
    return max(0.0, seconds) if isfinite(seconds) else None


def _message(content: bytes) -> str:
    """Return the beginning of an answer's error message, on one line."""
    try:
        found: Any = loads(content)
        error: Any = found.get("error", found)
        message: Any = (
            cast("dict[str, Any]", error).get("message", error) if isinstance(error, dict) else error
        )
    except (ValueError, AttributeError):
        message = content.decode("utf-8", "replace")
    return " ".join(str(message)[:1_000].split())
