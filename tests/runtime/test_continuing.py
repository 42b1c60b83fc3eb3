"""Answers that one backend begins and another one ends: their callers see one answer."""

import asyncio
import json
import re
from types import ModuleType
from typing import Any

import openai
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agentsched import BackendError, BackendUnavailable
from agentsched.model.failure import LEAST_KEPT
from agentsched.testing import FakeBackend, FakeFleet, FakeRequest, Reply, faults
from agentsched.testing.asked import GoesOn
from agentsched.testing.faults import Fault
from agentsched.testing.tokens import to_cells, to_ids
from agentsched.transport.ability import BEGUN
from tests.doubles import ASK, MODEL, Rig, outcome

BREAKS: dict[str, Fault] = {
    "reset": faults.Cut(after_events=20),
    "close": faults.Cut(after_events=20, reset=False),
    "early end": faults.EarlyEnd(after_events=20),
    "in-band error": faults.ErrorEvent(after_events=20, code=500),
    "overloaded": faults.ErrorEvent(after_events=20, code=503),
    "garbage": faults.Garbage(after_events=20),
    "stall": faults.Stall(after_events=20),
}
"""After the role and 19 tokens, of which the last may not have been shown."""

WAYS: tuple[GoesOn, ...] = ("asked", "always")
HASTY: dict[str, Any] = {"timeout": 5.0}
TOKENS = 50


def rig_of(*ways: GoesOn, stack: ModuleType | None = None, **options: Any) -> Rig:
    fakes = [
        FakeBackend(f"fake-{number}", models=[MODEL], goes_on=way, **options)
        for number, way in enumerate(ways, start=1)
    ]
    return Rig(fleet=FakeFleet(fakes), **({} if stack is None else {"stack": stack}))


async def raw(rig: Rig, path: str = "/chat/completions", tokens: int = TOKENS, **fields: Any) -> bytes:
    """Return the bytes of an answer, just as they come."""
    http = rig.scheduler.http_async_client()
    body = {name: value for name, value in {**ASK, **fields}.items() if value is not None}
    headers = {"x-fake-output-tokens": str(tokens), "x-request-id": "one"}
    answer = await http.post(path, json=body, headers=headers, **HASTY)
    assert answer.status_code == 200, answer.content
    return re.sub(
        rb'"created":\d+', b'"created":0', answer.content
    )  # calls of a test begin at different times


def undisturbed(**fields: Any) -> bytes:
    rig, found = rig_of("asked"), list[bytes]()

    async def main() -> None:
        found.append(await raw(rig, **fields))

    rig.run(main)
    return found[0]


FORMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "capped": {"stream": True, "max_tokens": 40, "stream_options": {"include_usage": True}},
    "capped, whole": {"max_completion_tokens": 30},
}


@pytest.mark.parametrize("fields", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", BREAKS.values(), ids=BREAKS)
def test_an_answer_that_breaks_is_ended_elsewhere_byte_by_byte(
    fault: Fault, way: GoesOn, fields: dict[str, Any]
) -> None:
    rig, wanted = rig_of(way, way), undisturbed(**fields)
    rig["fake-1"].fail(fault)

    async def main() -> None:
        assert await raw(rig, **fields) == wanted

    rig.run(main)
    rest = rig["fake-2"].calls[-1]
    assert rest.output_tokens == fields.get("max_tokens", fields.get("max_completion_tokens", TOKENS)) - 19
    assert rest.body["messages"][-1]["role"] == "assistant"


@given(
    after=st.integers(1, TOKENS),
    again=st.integers(0, TOKENS),
    ways=st.tuples(*[st.sampled_from(WAYS)] * 3),
    fields=st.sampled_from(list(FORMS.values())),
)
@settings(max_examples=60, deadline=None)
def test_wherever_it_breaks_and_breaks_again(
    after: int, again: int, ways: tuple[GoesOn, ...], fields: dict[str, Any]
) -> None:
    whole = fields.get("max_tokens", fields.get("max_completion_tokens", TOKENS))
    kept = after - 1 if fields.get("stream") or after > LEAST_KEPT else 0
    assume(after != whole + 1 != again + kept)  # between its last token and its usage it is complete without
    rig, wanted = rig_of(*ways), undisturbed(**fields)
    rig["fake-1"].fail(faults.Cut(after_events=after))
    rig["fake-2"].fail(
        faults.Cut(after_events=again), nth=range(3, 9)
    )  # what asks whether it can is answered

    async def main() -> None:
        assert await raw(rig, **fields) == wanted

    rig.run(main)


def test_the_sdk_sees_one_stream_with_the_right_usage(stack: ModuleType) -> None:
    rig = rig_of("asked", "asked", stack=stack)
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        stream = await rig.say(TOKENS, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert len({chunk.id for chunk in chunks}) == 1
        assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices].count("assistant") == 1
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-2:] == [None, "stop"]
        first = rig["fake-1"].calls[0]
        assert chunks[-1].usage.prompt_tokens == first.prompt_tokens
        assert chunks[-1].usage.completion_tokens == TOKENS
        explained = rig.scheduler.explain(stream.response.headers["x-request-id"])
        assert (explained.backend, explained.attempts, explained.outcome) == ("fake-2", 2, "completed")
        assert explained.kept_tokens == 19

    rig.run(main)


def test_a_completion_goes_on_after_its_prompt() -> None:
    text = "".join(f"{number:3} " for number in range(TOKENS))

    def counting(request: FakeRequest) -> Reply:
        begun = request.body["prompt"].removeprefix("count:")
        return Reply(text.removeprefix(begun))

    fields: dict[str, Any] = {"messages": None, "prompt": "count:", "max_tokens": TOKENS, "stream": True}
    rig, alone = rig_of("refuses", "refuses", responder=counting), rig_of("refuses", responder=counting)
    rig["fake-1"].fail(BREAKS["reset"])
    answers: list[bytes] = []

    async def main() -> None:
        answers.append(await raw(rig if not answers else alone, "/completions", **fields))

    rig.run(main)
    alone.run(main)
    assert answers[0] == answers[1]
    (rest,) = rig["fake-2"].calls  # nobody asks whether it can
    assert rest.output_tokens == TOKENS - 20


# -- who can ------------------------------------------------------------------------------------------


def test_each_backend_is_asked_once_whether_it_can() -> None:
    rig, wanted = rig_of("asked", "asked"), undisturbed(stream=True)
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        for _ in range(3):
            assert await raw(rig, stream=True) == wanted

    rig.run(main)
    asked = [call for call in rig["fake-2"].calls if BEGUN in str(call.body)]
    assert len(asked) == 2


@pytest.mark.parametrize("way", ["refuses", "ignores"])
def test_who_cannot_does_not_spoil_it(way: GoesOn, stack: ModuleType) -> None:
    """A whole answer is begun anew there; a stream ends with its own error, and is not sent there again."""
    rig = rig_of("asked", way, stack=stack)
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        whole = await rig.say(TOKENS)
        assert whole.usage.completion_tokens == TOKENS
        for _ in range(2):
            stream, seen = await rig.say(TOKENS, stream=True), ""
            with pytest.raises(BackendUnavailable) as caught:
                async for chunk in stream:
                    seen += chunk.choices[0].delta.content or ""
            assert isinstance(caught.value, openai.OpenAIError)
            assert caught.value.partial_text == seen
            assert len(seen) == 19 * 4
            assert str(caught.value).startswith("fake-1: connection broke (tried 2 times)")

    rig.run(main)
    rests = [call for call in rig["fake-2"].calls if BEGUN not in str(call.body)]
    assert len(rests) == 1
    assert rig.scheduler.snapshot().backends[1].failed == 0


def test_a_third_one_that_can_ends_it() -> None:
    rig, wanted = rig_of("asked", "refuses", "always"), undisturbed(stream=True)
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        assert await raw(rig, stream=True) == wanted

    rig.run(main)


def test_one_that_refuses_what_it_could_do_before_is_passed_over() -> None:
    rig, wanted = rig_of("asked", "always", "asked"), undisturbed(stream=True)
    whole = undisturbed()
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        assert await raw(rig, stream=True) == wanted
        rig["fake-2"].goes_on = "refuses"
        assert await raw(rig, stream=True) == wanted
        assert await raw(rig) == whole

    rig.run(main)


def test_one_that_says_nothing_when_it_is_tried_is_passed_over() -> None:
    rig, wanted = rig_of("asked", "asked", "asked"), undisturbed(stream=True)
    rig["fake-1"].fail(BREAKS["reset"])
    rig["fake-2"].fail(faults.Hang())

    async def main() -> None:
        assert await raw(rig, stream=True) == wanted

    rig.run(main)


# -- by the ids of tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", FORMS.values(), ids=FORMS)
def test_vllm_goes_on_by_the_ids_of_tokens_byte_by_byte(fields: dict[str, Any]) -> None:
    """One that is known to be vLLM is asked for the ids, of which the app sees nothing, and goes on with others'."""
    rig, alone = (rig_of(*ways, fingerprint="vllm-0.32.0-fake") for ways in (("asked", "asked"), ("asked",)))
    answers: list[bytes] = []

    async def main() -> None:
        one = rig if answers else alone
        for _ in one.fleet:
            await one.say(4)  # so that they are known
        if one is rig:
            rig["fake-1"].fail(BREAKS["reset"])
            rig["fake-2"].fail(BREAKS["reset"], nth=1)
        answers.append(await raw(one, **fields))

    alone.run(main)
    rig.run(main)
    assert answers[0].replace(b"fake-1-2", b"") == answers[1].replace(b"fake-1-2", b"")
    assert b"token_ids" in answers[0], "as null"
    rest = rig["fake-2"].calls[-1]
    assert rest.path == "/v1/completions"
    assert rest.output_tokens == fields.get("max_tokens", fields.get("max_completion_tokens", TOKENS)) - 19
    assert rest.body["prompt"][-19:] == to_ids(to_cells(said(answers[0]))[: 19 * 4])


def said(answer: bytes) -> str:
    """The text of an answer, whole or streamed."""
    if answer.startswith(b"{"):
        return json.loads(answer)["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in answer.split(b"\n\n") if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])


# -- what is not gone on with -------------------------------------------------------------------------

APART: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    "a form": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": True},
    "two answers": {"n": 2},
    "an answer begun": {"messages": [*ASK["messages"], {"role": "assistant", "content": "So"}]},
    "an unknown field": {"future": 1},
}


@pytest.mark.parametrize("fields", APART.values(), ids=APART)
def test_what_the_rest_would_not_fit_ends_with_an_error(fields: dict[str, Any]) -> None:
    rig = rig_of("asked", "asked")
    rig["fake-1"].fail(BREAKS["reset"])

    async def main() -> None:
        error = await outcome(raw(rig, stream=True, **fields))
        assert isinstance(error, BackendError)
        assert error.partial_text

    rig.run(main)
    assert not rig["fake-2"].calls


# -- backends that leave ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"stream": True}], ids=["whole", "stream"])
def test_calls_move_when_their_backend_is_taken_away(form: dict[str, Any]) -> None:
    rig, wanted = rig_of("asked", "always"), undisturbed(tokens=200, **form)

    async def main() -> None:
        task = asyncio.ensure_future(raw(rig, tokens=200, **form))
        while not rig["fake-1"].calls or rig["fake-1"].calls[0].output_tokens < 100:
            await asyncio.sleep(0.05)
        rig.scheduler.fleet.remove("fake-1")
        assert await task == wanted

    rig.run(main)
    assert rig["fake-2"].calls[-1].output_tokens < 110
