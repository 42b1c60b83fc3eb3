"""What an engine says of its load: `GET /metrics` in Prometheus's text, `GET /load`, or a header of its answers."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, cast
from urllib.parse import urlsplit

from agentsched.model import Backend, FailureKind, Signals
from agentsched.transport.body import read_body
from agentsched.transport.head import Head
from agentsched.transport.jsontext import loads
from agentsched.transport.refusal import Broken, raised
from agentsched.transport.stack import Stack

CAP_S = 2.0
"""What comes later says little of now."""

MAX_BYTES = 4 * 2**20
"""One engine shows some 60 kB; sixteen may share a page."""

MAX_CALLS = 10**6
MAX_TOKENS = 10**12
"""More than these no engine has: it is no count."""

RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
USAGE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",  # its older name; for a while both were shown
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
CONFIG = "vllm:cache_config_info"
TOKENS = (CONFIG, "sglang:max_total_num_tokens")

ASKED_BY = (b"endpoint-load-metrics-format", b"TEXT")
"""The header of a request that makes vLLM tell of its load in the answer's head, if that does not begin a stream."""

TOLD_IN = b"endpoint-load-metrics"

_KNOWN = frozenset((*RUNNING, *WAITING, *USAGE, *TOKENS))
_LABEL = re.compile(r'\b([a-zA-Z_]\w*+)="((?:[^"\\]|\\.)*+)"')
_SAME_ENGINE = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels by which SGLang tells apart the parts of one engine, each of which counts all of its calls."""

Series = dict[tuple[tuple[str, str], ...], float]
"""The values of one gauge, by labels."""


async def read_signals(stack: Stack, transport: Any, backend: Backend) -> Signals:
    """Return the load that the server shows beside its API root.

    Raises:
        Broken: if it shows none in time.
    """
    root = server_root(backend.base_url)
    try:
        async with asyncio.timeout(CAP_S):
            status, page = await _get(stack, transport, backend, f"{root}/metrics")
            found = signals_of(page.decode("utf-8", "replace")) if status == 200 else None
            if found is not None:
                return found
            load_status, load = await _get(stack, transport, backend, f"{root}/load")
    except (TimeoutError, stack.TimeoutException):
        raise Broken(FailureKind.TIMEOUT, f"GET {root}/metrics: no answer within {CAP_S:g} s") from None
    except Exception as error:
        raise raised(stack, error) from None
    found = signals_of_load(load) if load_status == 200 else None
    if found is None:
        what = "shows no gauge that is known here" if status == 200 else f"answers HTTP {status}"
        raise Broken(FailureKind.ERROR, f"GET {root}/metrics {what}")
    return found


def server_root(base_url: str) -> str:
    """Return the address of the pages beside the API: the API root less its last `/v1`."""
    url = urlsplit(base_url)
    return url._replace(path=url.path.removesuffix("/v1")).geturl()


async def _get(stack: Stack, transport: Any, backend: Backend, url: str) -> tuple[int, bytes]:
    """Return the status and the body, which is empty if it is too large."""
    headers = {"accept": "text/plain, application/json", "accept-encoding": "identity"}
    if backend.api_key is not None:
        headers["authorization"] = f"Bearer {backend.api_key}"
    timeout = {"connect": CAP_S, "read": CAP_S, "write": CAP_S, "pool": None}
    request = stack.Request("GET", url, headers=headers, extensions={"timeout": timeout})
    response = await transport.handle_async_request(request)
    try:
        content = await read_body(response.stream, MAX_BYTES)
    finally:
        await response.aclose()
    return response.status_code, content or b""


# -- pages ------------------------------------------------------------------------------------------------


def signals_of(text: str) -> Signals | None:
    """Return what a page shows; None if it has no known gauge with a value that can be.

    Where one gauge has several values, as of several models or engines, calls and tokens are added up and usage is
    their mean.
    """
    series: dict[str, Series] = {}
    for name, labels, value in _samples(text):
        if labels.get("priority"):
            continue  # SGLang's part of a queue; the whole has the empty label
        where = tuple(sorted(item for item in labels.items() if item[0] not in _SAME_ENGINE))
        series.setdefault(name, {})[where] = _kv_tokens(labels) if name == CONFIG else value
    return _signals(
        running=_total(series, RUNNING, 0, MAX_CALLS),
        waiting=_total(series, WAITING, 0, MAX_CALLS),
        kv_usage=_mean(series, USAGE),
        kv_tokens=_total(series, TOKENS, 1, MAX_TOKENS),
    )


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield name, labels and value of the known gauges; lines that are broken or have no such value are skipped."""
    for line in text.split("\n"):
        head, brace, tail = line.rpartition("}")
        if brace:
            name, opened, inside = head.partition("{")
        else:
            name, opened, tail = line.replace("\t", " ").partition(" ")
            inside = ""
        name, values = name.strip(), tail.split(None, 1)
        if name in _KNOWN and opened and values:
            value = _number(values[0])
            if value is not None:
                yield name, dict(_LABEL.findall(inside)), value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0.0 else None


def _kv_tokens(labels: Mapping[str, str]) -> float:
    """Return the tokens that vLLM's labels speak of; 0 where they say `None`."""
    whole = _number(labels.get("kv_cache_size_tokens", ""))
    if whole:
        return whole
    return (_number(labels.get("num_gpu_blocks", "")) or 0.0) * (_number(labels.get("block_size", "")) or 0.0)


def _total(series: Mapping[str, Series], names: Iterable[str], least: int, most: int) -> int | None:
    """Return the sum over the first gauge that has values within bounds."""
    for name in names:
        values = [value for value in series.get(name, {}).values() if least <= value <= most]
        if values:
            return min(int(sum(values)), most)
    return None


def _mean(series: Mapping[str, Series], names: Iterable[str]) -> float | None:
    for name in names:
        values = [min(value, 1.0) for value in series.get(name, {}).values()]
        if values:
            return sum(values) / len(values)
    return None


def _signals(
    *,
    running: int | None = None,
    waiting: int | None = None,
    kv_usage: float | None = None,
    kv_tokens: int | None = None,
) -> Signals | None:
    if running is None and waiting is None and kv_usage is None and kv_tokens is None:
        return None
    return Signals(running=running, waiting=waiting, kv_usage=kv_usage, kv_tokens=kv_tokens)


# -- loads ------------------------------------------------------------------------------------------------


def signals_of_load(content: bytes) -> Signals | None:
    """Return what `GET /load` says: vLLM's `server_load`, or a row of counts for each of several engines."""
    try:
        found: Any = loads(content)
    except ValueError:
        return None
    rows = cast("list[Any]", found) if isinstance(found, list) else [found]
    objects = [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
    running = [_count(row.get("server_load", row.get("num_running_reqs"))) for row in objects]
    waiting = [_count(row.get("num_waiting_reqs")) for row in objects]
    return _signals(running=_sum(running), waiting=_sum(waiting))


def _count(value: object) -> int | None:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_CALLS
    return int(cast("float", value)) if whole else None


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return min(sum(known), MAX_CALLS) if known else None


def told_load(head: Head) -> tuple[Head, Signals | None]:
    """Return the head of an answer without what it says of the server's load, and that, if it is anything known."""
    value = head.get(TOLD_IN)
    if not value:
        return head, None
    return head.replaced(TOLD_IN), load_of_header(value.decode("latin-1"))


def load_of_header(value: str) -> Signals | None:
    """Return what the header `endpoint-load-metrics` of an answer says; None if that is nothing known.

    It is `TEXT named_metrics.kv_cache_usage_perc=0.1, ...` or `JSON {"named_metrics": {"kv_cache_usage_perc": 0.1}}`,
    as the request's header `endpoint-load-metrics-format` wanted it.
    """
    first, _, rest = value.strip().partition(" ")
    form = first.upper()
    content = rest.strip() if form in ("TEXT", "JSON") else value.strip()
    if form == "JSON" or content.startswith("{"):
        found = _object(content)
    else:
        pairs = (pair.partition("=") for pair in content.split(","))
        found = {name.strip().removeprefix("named_metrics."): _number(text) for name, _, text in pairs}
    usage: Any = found.get("kv_cache_usage_perc", found.get("kv_cache_utilization"))
    known = isinstance(usage, (int, float)) and not isinstance(usage, bool) and usage >= 0
    return _signals(
        running=_count(found.get("num_requests_running")),
        waiting=_count(found.get("num_requests_waiting")),
        kv_usage=float(min(usage, 1.0)) if known else None,
    )


def _object(content: str) -> Mapping[str, Any]:
    """Return the named metrics of a report, which may also be without that name around them."""
    try:
        found: Any = loads(content.encode("utf-8", "replace"))
    except ValueError:
        return {}
    if isinstance(found, dict):
        report = cast("dict[str, Any]", found)
        named: Any = report.get("named_metrics", report)
        if isinstance(named, dict):
            return cast("dict[str, Any]", named)
    return {}
