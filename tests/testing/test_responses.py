"""`/v1/responses` of a fake backend: what the SDK makes of it, whole and streamed, alone and scheduled."""

from typing import Any

import openai
import pytest

from agentsched.testing import FakeFleet, FakeRequest, Reply, VirtualClock
from tests.doubles import MODEL, Rig
from tests.testing.asking import ASK, sdk


@pytest.mark.parametrize("cap", [None, 5])
def test_whole_and_stream_say_the_same(fleet: FakeFleet, clock: VirtualClock, cap: int | None) -> None:
    options: Any = {"model": MODEL, "input": "hi there", "instructions": "be short"}
    if cap is not None:
        options["max_output_tokens"] = cap

    async def main() -> tuple[Any, Any, list[Any]]:
        client = sdk(fleet)
        whole = await client.responses.create(**options)
        async with client.responses.stream(**options) as stream:
            seen: list[Any] = [event async for event in stream]
        return whole, seen[-1].response, seen

    whole, streamed, seen = clock.run(main())
    assert whole.status == ("completed" if cap is None else "incomplete")
    assert seen[-1].type == f"response.{whole.status}"
    assert whole.output_text == streamed.output_text == "".join(e.delta for e in seen if "delta" in e.type)
    assert whole.usage.model_copy(update={"input_tokens_details": None}) == streamed.usage.model_copy(
        update={"input_tokens_details": None}
    ), "the second call finds its prompt cached"
    assert whole.usage.output_tokens == len(whole.output_text) / 4
    assert [event.sequence_number for event in seen if hasattr(event, "sequence_number")] == list(
        range(len(seen))
    )
    if cap is not None:
        assert whole.incomplete_details.reason == "max_output_tokens"
        assert whole.usage.output_tokens == cap
        assert [item.status for item in (*whole.output, *streamed.output)] == ["incomplete", "incomplete"]


def test_the_model_is_shown_the_same_as_in_a_chat(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> tuple[Any, Any, Any]:
        client = sdk(fleet)
        chat = await client.chat.completions.create(**ASK)
        plain = await client.responses.create(model=MODEL, input="hi there")
        parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "hi there"}]}]
        return chat, plain, await client.responses.create(model=MODEL, input=parts)

    chat, plain, parts = clock.run(main())
    assert chat.choices[0].message.content == plain.output_text == parts.output_text
    assert chat.usage.prompt_tokens == plain.usage.input_tokens == parts.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_answered(clock: VirtualClock, stream: bool) -> None:
    def responder(request: FakeRequest) -> Reply:
        if request.messages[-1]["role"] == "tool":
            return Reply(f"it is {request.text}")
        return Reply("wait", tool_calls=(("weather", '{"city":"Rome"}'),))

    fleet = FakeFleet.fast(1, responder=responder)

    async def ask(client: openai.AsyncOpenAI, given: Any) -> Any:
        if not stream:
            return await client.responses.create(model=MODEL, input=given)
        async with client.responses.stream(model=MODEL, input=given) as events:
            return await events.get_final_response()

    async def main() -> tuple[Any, Any]:
        client = sdk(fleet)
        first = await ask(client, "weather in Rome?")
        call = first.output[1]
        done = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        return call, await ask(client, [{"role": "user", "content": "weather?"}, done])

    call, last = clock.run(main())
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city":"Rome"}')
    assert last.output_text == "it is sunny"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "input must be text"),
        ({"input": []}, "input must be text"),
        ({"input": 3}, "input must be text"),
        ({"input": {"a": 1}}, "input must be text"),
        ({"input": ["text", 3]}, "input must be text"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens must be from 1"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    fleet: FakeFleet, clock: VirtualClock, body: dict[str, Any], says: str
) -> None:
    async def main() -> None:
        with pytest.raises(openai.BadRequestError, match=says):
            await sdk(fleet).post("/responses", body={"model": MODEL, **body}, cast_to=object)

    clock.run(main())


def test_scheduled_it_is_streamed_from_the_backend_and_counted() -> None:
    rig = Rig(2)

    async def main() -> None:
        whole = await rig.client.responses.create(model=MODEL, input="hi there")
        async with rig.client.responses.stream(model=MODEL, input="hi there") as stream:
            streamed = await stream.get_final_response()
        assert whole.output_text == streamed.output_text

    rig.run(main)
    assert [row.body["stream"] for row in rig.received] == [True, True]
    assert all(row.outcome == "finished" for row in rig.received)
