"""How urgent a call is, said to the engine: a number in the body, and what comes of a server that refuses it."""

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched import Backend
from agentsched.model import FailureKind
from agentsched.transport.outgoing import Addressing, without_priority
from tests.doubles import ASK, STACKS, Script, delta, events, incoming, said, whole
from tests.transport.ran import Ran, run
from tests.transport.test_addressing import Body, bodies

HEEDING = Backend("http://b:1/v1", priority=True)
REFUSED = "Got priority -7 but Priority scheduling is not enabled."
PRIORITIES = st.integers(-(2**31), 2**31).filter(bool)
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]


def address(call: Any, priority: int, backend: Backend = HEEDING) -> Any:
    return Addressing(STACKS["httpx2"]).address(call, backend, priority)


# -- what is said -------------------------------------------------------------------------------------


@given(one=PRIORITIES, other=PRIORITIES)
def test_the_more_urgent_the_lower_the_number(one: int, other: int) -> None:
    """An ordinary call says nothing, which servers take for 0."""
    said = [json.loads(address(incoming(), priority).content)["priority"] for priority in (one, other)]
    assert (one > other) == (said[0] < said[1])
    assert (one > 0) == (said[0] < 0)


@given(body=bodies(), priority=PRIORITIES, path=st.sampled_from(PATHS))
def test_nothing_else_of_the_body_changes(body: Body, priority: int, path: str) -> None:
    call = incoming(body.content, path=path)
    plain, told = address(call, 0), address(call, priority)
    end = plain.content.rindex(b"}")
    field = b',"priority":%d' % -priority
    assert told.content == plain.content[:end] + field + plain.content[end:]
    assert without_priority(told) == plain


@pytest.mark.parametrize("value", ["3", "null", "-0", '"high"'])
@pytest.mark.parametrize("backend", [HEEDING, Backend("http://b:1/v1")])
def test_what_the_app_says_itself_stays(value: str, backend: Backend) -> None:
    content = b'{"model":"m","priority":%b,"messages":[],"tools":[]}' % value.encode()
    call = incoming(content)
    assert address(call, 7, backend).content is call.content


@pytest.mark.parametrize(
    ("call", "backend", "priority"),
    [
        (incoming(tools=[]), HEEDING, 0),
        (incoming(tools=[]), Backend("http://b:1/v1"), 7),
        (incoming(path="/v1/rerank"), HEEDING, 7),
        (incoming(b"", method="GET", path="/v1/models"), HEEDING, 7),
    ],
    ids=["ordinary", "not heeded", "not understood", "no body"],
)
def test_where_nothing_is_to_be_said_the_bytes_stay(call: Any, backend: Backend, priority: int) -> None:
    outgoing = address(call, priority, backend)
    assert outgoing.content is call.content
    assert not outgoing.priority


def test_those_who_refused_are_told_nothing_until_they_are_forgotten() -> None:
    addressing, call = Addressing(STACKS["httpx2"]), incoming()
    assert addressing.priorities.refuse(HEEDING.name)
    assert not addressing.priorities.refuse(HEEDING.name), "that is no news"
    other = Backend("http://other:1/v1", priority=True)
    assert not addressing.address(call, HEEDING, 7).priority
    assert addressing.address(call, other, 7).priority == b"-7"
    addressing.priorities.forget(HEEDING.name)
    assert addressing.address(call, HEEDING, 7).priority == b"-7"


# -- refusals -----------------------------------------------------------------------------------------


def urgent(stack: ModuleType, refusal: Script, without: Script, **fields: Any) -> Ran:
    """An urgent call to a server that answers so as long as there is a priority, and so without it."""
    return run(
        stack,
        lambda request: refusal if "priority" in json.loads(request.content) else without,
        incoming(**fields),
        HEEDING,
        priority=7,
    )


def error(message: str, status: int = 400) -> Script:
    return whole({"error": {"message": message, "code": status}}, status=status)


STREAM = {"stream": True}
REFUSALS = {
    "vllm": error(REFUSED),
    "vllm, older": whole({"object": "error", "message": REFUSED, "code": 400}, status=400),
    "openai": error("Unrecognized request argument supplied: priority"),
    "pydantic": whole({"detail": [{"type": "extra_forbidden", "loc": ["body", "priority"]}]}, status=422),
    "in the stream": events({"error": {"object": "error", "message": REFUSED, "code": 400}}),
}


@pytest.mark.parametrize("fields", [{}, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_refused_call_is_sent_again_without(stack: ModuleType, refusal: Script, fields: Any) -> None:
    ran = urgent(stack, refusal, said("fine"), **fields)
    assert ran.ended is None
    assert b"fine" in ran.sink.content
    assert b"riorit" not in ran.sink.content
    first, second = ran.seen.bodies
    assert first == second | {"priority": -7}
    (why,) = ran.sink.refusals
    assert "priorit" in why.lower()


def test_an_answer_that_comes_whole_may_have_been_refused_too(stack: ModuleType) -> None:
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}}]}
    ran = urgent(stack, REFUSALS["vllm"], whole(answer), tools=[])
    assert ran.answer == answer
    assert len(ran.sink.refusals) == 1


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "message", ["max_tokens is too large", "{'input': {'priority': -7}, 'msg': 'max_tokens is too large'}"]
)
def test_another_fault_of_the_call_is_the_callers(stack: ModuleType, status: int, message: str) -> None:
    """Some servers quote the whole body: that it was not the priority shows when it is refused without, too."""
    ran = urgent(stack, error(message, status), error("max_tokens is too large", status))
    assert ran.kind is FailureKind.INVALID
    assert ran.ended is not None
    assert ran.ended.failure.detail == f"HTTP {status}: max_tokens is too large"
    assert ran.sink.refusals == []
    assert len(ran.seen.requests) == (2 if "priority" in message else 1)


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_no_other_status_refuses_it(stack: ModuleType, status: int) -> None:
    ran = urgent(stack, error("calls of low priority are turned away", status), said("fine"))
    assert ran.ended is not None
    assert len(ran.seen.requests) == 1
    assert ran.sink.refusals == []


def test_an_ordinary_call_is_never_sent_again(stack: ModuleType) -> None:
    ran = run(stack, error(REFUSED), incoming(), HEEDING)
    assert ran.kind is FailureKind.INVALID
    assert len(ran.seen.requests) == 1


def test_what_the_caller_has_seen_is_not_begun_anew(stack: ModuleType) -> None:
    answer = events(delta("half"), {"error": {"message": REFUSED, "code": 400}})
    ran = urgent(stack, answer, said("fine"), **STREAM)
    assert ran.kind is FailureKind.INVALID
    assert ran.ended is not None
    assert ran.ended.failure.delivered
    assert len(ran.seen.requests) == 1


def test_redirects_count_on_their_own(stack: ModuleType) -> None:
    """As many as ever are followed, before and after a refusal together."""
    seen: list[int] = []

    def answer(request: Any) -> Script:
        seen.append(len(seen))
        if len(seen) in (3, 7):
            return error(REFUSED) if len(seen) == 3 else said("fine")
        return Script(status=307, headers=[("location", f"/v1/{len(seen)}")])

    ran = run(stack, answer, incoming(), HEEDING, priority=7)
    assert ran.ended is None
    assert len(seen) == 7, "two redirects, a refusal, three more, the answer"
    assert all(json.loads(request.content)["model"] == ASK["model"] for request in ran.seen.requests)


def test_what_else_fails_then_is_a_failure_like_any_other(stack: ModuleType) -> None:
    ran = urgent(stack, error(REFUSED), Script(before=[OSError("reset")]))
    assert ran.kind is FailureKind.BROKEN
    assert ran.sink.refusals == []


def test_a_key_that_a_refusal_quotes_is_not_repeated(stack: ModuleType) -> None:
    backend = Backend("http://b:1/v1", api_key="sesame", priority=True)

    def answer(request: Any) -> Script:
        refuses = "priority" in json.loads(request.content)
        return error("no priority for sesame") if refuses else said("fine")

    assert run(stack, answer, incoming(), backend, priority=7).sink.refusals == [
        "HTTP 400: no priority for [key]"
    ]
