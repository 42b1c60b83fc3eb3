"""What a server says it serves: a list in time, or why there is none."""

import json
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend
from agentsched.testing import FakeFleet, VirtualClock
from agentsched.transport import listing
from agentsched.transport.listing import CAP_S, MAX_MODELS, list_models, listed
from agentsched.transport.refusal import Broken
from tests.doubles import Answer, Script, upstream, whole

KEYED = Backend("http://b:1/v1", api_key="sesame")


def ask(
    stack: ModuleType, answer: Answer, backend: Backend = KEYED
) -> tuple[tuple[str, ...] | None, Any, float]:
    clock, transport = VirtualClock(), upstream(stack, answer)

    async def main() -> Any:
        try:
            names = await list_models(stack, transport, backend)
        except Broken as broken:
            assert broken.detail
            names = None
        assert transport.seen.open == 0
        return names, transport.seen, clock()

    return clock.run(main())


def names(*ids: Any) -> Script:
    return whole({"object": "list", "data": [{"id": id_, "object": "model"} for id_ in ids]})


def test_the_names_are_listed_in_order(stack: ModuleType) -> None:
    found, seen, _ = ask(stack, names("b", "a"))
    assert found == ("b", "a")
    (request,) = seen.requests
    assert (request.method, str(request.url)) == ("GET", "http://b:1/v1/models")
    assert request.headers["authorization"] == "Bearer sesame"


def test_without_a_key_none_is_sent(stack: ModuleType) -> None:
    _, seen, _ = ask(stack, names("a"), Backend("http://b:1/v1"))
    assert "authorization" not in seen.requests[0].headers


def test_a_fake_fleet_answers(stack: ModuleType) -> None:
    fleet = FakeFleet.fast(1, models=("one", "two"))
    transport = fleet.transport(stack.__name__)  # type: ignore[call-overload]
    found = VirtualClock().run(list_models(stack, transport, Backend(fleet.base_urls[0])))
    assert found == ("one", "two")


SLOW = {
    "a head that never comes": Script(before=[3600.0]),
    "a body that never ends": Script(pieces=[b'{"data":', 3600.0]),
    "a body that trickles": Script(pieces=[0.1, b" "] * 100_000),
}


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
def test_it_takes_two_seconds_at_most(stack: ModuleType, answer: Script) -> None:
    found, _, took = ask(stack, answer)
    assert found is None
    assert took == pytest.approx(CAP_S)
    assert CAP_S == 2.0


def test_slow_is_not_too_slow(stack: ModuleType) -> None:
    answer = names("a")
    answer.before = [1.9]
    assert ask(stack, answer)[0] == ("a",)


GARBAGE: dict[str, Script] = {
    "nothing": whole(b""),
    "html": whole(b"<html>"),
    "no text": whole(b"\xff\xfe"),
    "a list": whole([1]),
    "no data": whole({}),
    "data of another kind": whole({"data": "abc"}),
    "models without a name": whole({"data": [{"name": "a"}]}),
    "an empty list": names(),
    "nothing but numbers": names(1, None, ["a"]),
    "nesting": whole(b'{"data":' + b"[" * 100_000),
    "an error": whole({"data": [{"id": "a"}]}, status=500),
    "a locked door": whole({"error": "no"}, status=401),
    "a redirect": whole({"data": [{"id": "a"}]}, status=302),
    "a refusal": Script(before=[OSError("refused")]),
    "a foreign error": Script(before=[RuntimeError("loop closed")]),
    "a break": Script(pieces=[b'{"da', OSError("reset")]),
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_anything_else_is_no_list(stack: ModuleType, answer: Script) -> None:
    found, _, took = ask(stack, answer)
    assert found is None
    assert took == 0.0


def test_what_is_no_name_is_skipped(stack: ModuleType) -> None:
    assert ask(stack, names("a", 1, "", None, "b"))[0] == ("a", "b")


def test_more_names_than_any_server_has_are_cut(stack: ModuleType) -> None:
    found, _, _ = ask(stack, names(*(f"m{i}" for i in range(MAX_MODELS + 5))))
    assert found is not None
    assert len(found) == MAX_MODELS


def test_a_huge_list_is_not_read_to_its_end(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_BYTES", 1_000)
    found, seen, _ = ask(stack, Script(pieces=[b" " * 600] * 1_000))
    assert found is None
    assert seen.sent == 2


def test_what_apps_are_shown_is_a_list_of_models() -> None:
    shown = json.loads(listed(["a", "b"], "/models")[1])
    assert shown["object"] == "list"
    assert [(model["id"], model["object"]) for model in shown["data"]] == [("a", "model"), ("b", "model")]


@pytest.mark.parametrize(
    ("path", "status", "found"),
    [
        ("/models/a", 200, "a"),
        ("/models/org%2Fb", 200, "org/b"),
        ("/models/org/b?x=1", 200, "org/b"),
        ("/models/c", 404, None),
    ],
)
def test_one_of_them_can_be_asked_for(path: str, status: int, found: str | None) -> None:
    answered, content = listed(["a", "org/b"], path)
    assert answered == status
    assert json.loads(content).get("id") == found
