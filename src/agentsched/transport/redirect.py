"""Where a backend sends a call on to. Prompts and keys go to the host that the user named, and to no other."""

from dataclasses import replace
from typing import Any

from agentsched.model import FailureKind
from agentsched.transport.head import Head
from agentsched.transport.outgoing import Outgoing
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import Stack

MAX_REDIRECTS = 5
REDIRECTS = (301, 302, 303, 307, 308)

_KEPT = (307, 308)
"""Statuses under which the method and the body stay."""


def redirected(stack: Stack, outgoing: Outgoing, head: Head) -> Outgoing:
    """Return the request to send instead.

    Raises:
        Broken: if following would send it to another host, in the clear where it was not, or as something else.
    """
    place = head.get(b"location").decode("ascii", "replace")
    told = f"HTTP {head.status}, a redirect to {place!r}"
    if head.status not in _KEPT and not (outgoing.method in ("GET", "HEAD") and place):
        raise Broken(
            FailureKind.PROTOCOL, f"{told}, which would lose the call: give base_url as it should be"
        )
    try:
        url = outgoing.url.join(stack.URL(place))
    except Exception:
        raise Broken(FailureKind.PROTOCOL, f"{told}, which is no URL") from None
    same = url.host == outgoing.url.host and url.scheme in ("https", outgoing.url.scheme)
    if not place or not same or url.userinfo:
        raise Broken(FailureKind.PROTOCOL, f"{told}, which is not followed: give base_url as it should be")
    headers = outgoing.headers.copy()
    headers["host"] = url.netloc.decode("ascii")
    if _port(url) != _port(outgoing.url) and (_port(outgoing.url), _port(url)) != (80, 443):
        headers.pop("authorization", None)  # something else listens there
    return replace(outgoing, url=url, headers=headers)


def _port(url: Any) -> int:
    return url.port or (443 if url.scheme == "https" else 80)
