"""Which proxy the environment (`HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`, ...) names for a backend."""

from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from agentsched.errors import UsageError


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL; None to go there directly.

    Raises:
        UsageError: if it is not written as a URL; its text, which may hold a password, is not repeated.
    """
    parts, proxies = urlsplit(url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc) or _excepted(parts, proxies.get("no", "")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not _names_a_host(proxy):
        raise UsageError(
            f"the proxy that the environment names for {parts.scheme} URLs is no URL: write it as "
            "http://user:password@host:port, with the password's special characters as %XX"
        )
    return proxy


def _names_a_host(proxy: str) -> bool:
    try:
        parts = urlsplit(proxy)
        return bool(parts.hostname) and (parts.port or 0) >= 0  # one that is no port raises
    except ValueError:
        return False


def _excepted(parts: SplitResult, exceptions: str) -> bool:
    """Whether `NO_PROXY` names the host, as curl and httpx read it: names, `*.` and `.` names, URLs, ports."""
    host = parts.hostname or ""
    for name in (entry.strip().lower() for entry in exceptions.split(",")):
        scheme, _, place = name.rpartition("://")
        if not place or (scheme and scheme != parts.scheme):
            continue
        named, port = _split_port(place)
        if port and port != str(parts.port or ""):
            continue
        wanted = named.removeprefix("*").lstrip(".")
        if place == "*" or host == wanted or host.endswith(f".{wanted}"):
            return True
    return False


def _split_port(place: str) -> tuple[str, str]:
    """Return host and port of `host`, `host:port`, `[::1]:port` or `::1`."""
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        return host, port.removeprefix(":")
    if place.count(":") > 1:
        return place, ""
    host, _, port = place.partition(":")
    return host, port
