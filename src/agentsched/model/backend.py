"""A place that can serve: where it is, what it serves under which name, how much it may be given."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Never, cast
from urllib.parse import SplitResult, urlsplit

from agentsched.errors import UsageError
from agentsched.model.limits import Limits, checked_limits
from agentsched.model.options import refuse

MAX_LIMIT = 2**53
"""Limits are added up as floats."""


@dataclass(frozen=True, slots=True, init=False)
class Backend:
    """One OpenAI-compatible server.

    Args:
        base_url: address up to and including the API root, for example ``http://gpu-a:8000/v1``.
        api_key: sent to this backend only, as a bearer token. None sends no authorization at all; the key
            that the app gave to its own client never reaches a backend.
        models: what it serves: names, or a mapping of the name that the app uses to the name served here.
            None asks the server (``GET /models``) at first use.
        max_concurrency: most calls released to it at a time. None sets no limit.
        rpm: most calls started in any 60 s. None sets no limit.
        tpm: most tokens (input plus output) started in any 60 s; a call counts with its expected tokens when
            it starts and with its real ones when it has ended. None sets no limit.
        metrics: whether the server is asked for its load while it is busy: ``GET /metrics`` and ``GET /load`` beside
            the API root, and the header ``endpoint-load-metrics-format`` of calls, unless the app sets that itself.
            What it says corrects what is known anyway; nothing depends on its answer.
        priority: whether the server orders its own queue by a `priority` in the body, the lower the earlier, as vLLM
            does with ``--scheduling-policy priority``. Calls that have a priority are then sent with it, turned round,
            unless the app has put one into the body itself. A server that refuses it is sent none any more.
        limits: how long an attempt here may take, instead of the scheduler's own bounds.
        name: how it is called in snapshots and errors; the URL's host and port if not given.

    Raises:
        UsageError: for a malformed URL, an empty or non-string model name, a limit that is not positive.
    """

    base_url: str
    api_key: str | None = field(repr=False)
    models: Mapping[str, str] | None
    max_concurrency: int | None
    rpm: int | None
    tpm: int | None
    metrics: bool
    priority: bool
    limits: Limits | None
    name: str

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        models: Mapping[str, str] | Iterable[str] | None = None,
        max_concurrency: int | None = None,
        rpm: int | None = None,
        tpm: int | None = None,
        metrics: bool = True,
        priority: bool = False,
        limits: Limits | None = None,
        name: str | None = None,
        **unknown: Never,
    ) -> None:
        refuse(unknown, Backend, "Backend")
        url = _checked_url(base_url)
        put = object.__setattr__
        put(self, "base_url", url.geturl().rstrip("/"))
        put(self, "api_key", _checked_key(api_key))
        put(self, "models", _checked_models(models))
        put(self, "max_concurrency", _checked_limit("max_concurrency", max_concurrency))
        put(self, "rpm", _checked_limit("rpm", rpm))
        put(self, "tpm", _checked_limit("tpm", tpm))
        put(self, "metrics", _checked_switch("metrics", metrics))
        put(self, "priority", _checked_switch("priority", priority))
        put(self, "limits", checked_limits(limits, "Backend"))
        put(self, "name", _checked_name(name if name is not None else url.netloc))


def _checked_url(base_url: object) -> SplitResult:
    right = "an http(s) URL such as 'http://gpu-a:8000/v1'"
    if not isinstance(base_url, str):
        raise UsageError(f"Backend: base_url must be {right}, not {type(base_url).__name__}")
    base_url = base_url.strip()
    if "@" in (base_url.partition("://")[2] or base_url).partition("/")[0]:
        raise UsageError("Backend: put credentials into api_key=, not into base_url")
    if any(c.isspace() or not c.isprintable() for c in base_url):
        raise UsageError(f"Backend: {base_url!r} contains white space or control characters")
    try:
        url = urlsplit(base_url)
        port = url.port
    except ValueError as error:
        raise UsageError(f"Backend: {base_url!r} is not {right}: {error}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise UsageError(f"Backend: {base_url!r} is not {right}")
    if url.query or url.fragment:
        raise UsageError("Backend: base_url must end with its path: no query, no fragment")
    if url.path.rstrip("/").endswith(("/completions", "/embeddings", "/responses", "/models")):
        raise UsageError(
            f"Backend: {base_url!r} is one endpoint; give the API root, which most often ends in /v1"
        )
    return url._replace(scheme=url.scheme.lower(), netloc=url.netloc.lower())


def _checked_key(api_key: object) -> str | None:
    if api_key is None:
        return None
    if (
        not isinstance(api_key, str)
        or not api_key.isascii()
        or not api_key.isprintable()
        or not api_key
        or " " in api_key
    ):
        raise UsageError(
            "Backend: api_key must be a non-empty string of printable ASCII characters without spaces, or None"
        )
    return api_key


def _checked_models(models: object) -> Mapping[str, str] | None:
    if models is None:
        return None
    if isinstance(models, str) or not isinstance(models, Iterable):
        raise UsageError(f"Backend: models must be a list of names or a mapping, not {models!r}")
    if isinstance(models, Mapping):
        named = list(cast("Mapping[object, object]", models).items())
    else:
        named = [(name, name) for name in cast("Iterable[object]", models)]
    if not named:
        raise UsageError("Backend: models is empty; leave it out to ask the server what it serves")
    return MappingProxyType({_checked_model(app): _checked_model(served) for app, served in named})


def _checked_model(name: object) -> str:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"Backend: {name!r} is not a model name (a non-empty printable string)")
    return name


def _checked_limit(what: str, limit: object) -> int | None:
    if limit is None:
        return None
    number = limit if isinstance(limit, (int, float)) and not isinstance(limit, bool) else 0
    if 1 <= number < MAX_LIMIT and int(number) == number:
        return int(number)
    raise UsageError(f"Backend: {what} must be a whole number of at least 1, or None; got {limit!r}")


def _checked_switch(what: str, switch: object) -> bool:
    if isinstance(switch, bool):
        return switch
    raise UsageError(f"Backend: {what} must be True or False; got {switch!r}")


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or not name.isascii():
        raise UsageError(f"Backend: name must be a non-empty string of printable ASCII; got {name!r}")
    return name
