"""Redirects: followed where the call stays with the host that the user named, refused where not."""

import json
from types import ModuleType

import pytest

from agentsched import Backend
from agentsched.model import FailureKind
from tests.doubles import Script, incoming, said, whole
from tests.transport.ran import Ran, run

BACKEND = Backend("http://b:1/v1", api_key="backend-key")


def to(place: str, status: int = 307) -> Script:
    return Script(status=status, headers=[("location", place)], pieces=[b"moved"])


def moved(stack: ModuleType, *places: Script, **options: object) -> Ran:
    """Run a call against answers that come in this order, then a good one."""
    left = [*places]
    method = options.get("method", "POST")
    good = said("hi") if method == "POST" else whole({"id": "r1"})
    path = "/v1/chat/completions" if method == "POST" else "/v1/responses/r1"
    call = incoming(b"" if method == "GET" else {"model": "m", "messages": []}, method=str(method), path=path)
    return run(stack, lambda _: left.pop(0) if left else good, call, BACKEND)


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize(
    ("place", "url", "with_key"),
    [
        ("/v2/chat/completions", "http://b:1/v2/chat/completions", True),
        ("http://b:2/v1/chat/completions", "http://b:2/v1/chat/completions", False),
        ("https://b/v1/chat/completions", "https://b/v1/chat/completions", False),
        ("completions/", "http://b:1/v1/chat/completions/", True),
    ],
)
def test_the_call_follows_its_host_and_the_key_its_port(
    stack: ModuleType, status: int, place: str, url: str, with_key: bool
) -> None:
    ran = moved(stack, to(place, status))
    assert ran.answer["choices"][0]["message"]["content"] == "hi"
    first, second = ran.seen.requests
    assert str(second.url) == url
    assert second.content == first.content
    assert second.headers["host"] == second.url.netloc.decode()
    assert second.headers.get("authorization") == ("Bearer backend-key" if with_key else None)


def test_the_key_goes_along_to_the_same_hosts_https(stack: ModuleType) -> None:
    scripts = [to("https://b/v1/chat/completions"), said("hi")]
    ran = run(stack, lambda _: scripts.pop(0), incoming(), Backend("http://b/v1", api_key="backend-key"))
    assert ran.seen.requests[1].headers["authorization"] == "Bearer backend-key"


@pytest.mark.parametrize(
    "place", ["http://elsewhere/v1", "https://b.evil/v1", "//evil/v1", "http://u:p@b:1/v1", "ftp://b:1/", ""]
)
def test_nothing_goes_to_another_host(stack: ModuleType, place: str) -> None:
    ran = moved(stack, to(place))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert "give base_url as it should be" in ran.ended.failure.detail
    assert len(ran.seen.requests) == 1


def test_nothing_goes_from_https_to_http(stack: ModuleType) -> None:
    backend = Backend("https://b/v1", api_key="backend-key")
    ran = run(stack, to("http://b/v1/chat/completions"), incoming(), backend)
    assert ran.kind is FailureKind.PROTOCOL
    assert len(ran.seen.requests) == 1


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305])
def test_a_call_that_would_become_another_is_not_followed(stack: ModuleType, status: int) -> None:
    ran = moved(stack, to("/v2/chat/completions", status))
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert f"HTTP {status}" in ran.ended.failure.detail


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_reading_follows_all_of_them(stack: ModuleType, status: int) -> None:
    ran = moved(stack, to("/v2/responses/r1", status), method="GET")
    assert json.loads(ran.sink.content) == {"id": "r1"}


def test_not_for_ever(stack: ModuleType) -> None:
    ran = moved(stack, *[to("/again")] * 50)
    assert ran.kind is FailureKind.PROTOCOL
    assert ran.ended is not None
    assert "more than 5 redirects" in ran.ended.failure.detail
    assert len(ran.seen.requests) == 6
