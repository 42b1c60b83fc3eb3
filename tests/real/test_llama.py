"""A real engine behind the scheduler: llama.cpp, with generated weights."""

import asyncio
import json
import urllib.request
from typing import Any

import pytest

from agentsched import Backend, Scheduler, UnknownModel
from tests.real.asking import FORMAT, MESSAGES, direct, lasting
from tests.real.cutting import cutting


def _busy_slots(url: str) -> int:
    with urllib.request.urlopen(f"{url}/slots", timeout=5) as answer:
        return sum(slot["is_processing"] for slot in json.load(answer))


async def _idle(url: str) -> None:
    for _ in range(100):
        if not await asyncio.to_thread(_busy_slots, url):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the engine still works for a caller that left")


async def test_a_chat_is_completed_and_counted(llama_url: str) -> None:
    async with Scheduler([Backend(f"{llama_url}/v1", max_concurrency=4)]) as scheduler:
        client = scheduler.openai()
        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, seed=1)
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 12
        story = scheduler.explain(answer._request_id)
        assert story.outcome == "completed"
        assert story.first_token_s is not None
        assert story.first_token_s > 0
        assert scheduler.snapshot().backends[0].decode_s_per_token > 0


CHAT = {"messages": MESSAGES, "max_tokens": 24}
TEXT = {"prompt": "The tallest mountain", "max_tokens": 24}
ANY: dict[str, tuple[str, dict[str, object]]] = {
    "chat": ("/chat/completions", CHAT),
    "chat, stopped": ("/chat/completions", {**CHAT, "stop": ["w1026"]}),
    "chat, n": ("/chat/completions", {**CHAT, "n": 3}),
    "chat, schema": ("/chat/completions", {**CHAT, "response_format": FORMAT, "max_tokens": 100}),
    "chat, json": ("/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    "text": ("/completions", TEXT),
    "text, n": ("/completions", {**TEXT, "n": 2}),
    "response": ("/responses", {"input": "Name it.", "max_output_tokens": 12}),
}
STREAMED = {*ANY}
ANY |= {
    "chat, logprobs": ("/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "chat, tools": (
        "/chat/completions",
        {**CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
    "text, prompts": ("/completions", {**TEXT, "prompt": ["The tallest", "A mountain"]}),
}


@pytest.mark.parametrize("name", ANY)
async def test_the_whole_answer_is_what_the_server_itself_gives(llama_url: str, name: str) -> None:
    """It is streamed from the server, as the time of its first token tells, where that is proven to be the same."""
    path, fields = ANY[name]
    body = {"model": "tiny", "temperature": 0, "seed": 7, **fields}
    for _ in range(2):  # the first one fills the prefix cache, which changes the last digits of a logprob
        plain = await asyncio.to_thread(direct, llama_url, path, body)
    async with Scheduler([Backend(f"{llama_url}/v1")]) as scheduler, scheduler.http_async_client() as http:
        await http.get("/health")  # any answer tells what the server is
        answer = await http.post(path, json=body)
        first_token_s = scheduler.explain(answer.headers["x-request-id"]).first_token_s
        assert (first_token_s is not None) == (name in STREAMED)
        ours = answer.json()
    assert lasting(ours) == lasting(plain)


async def test_a_stream_comes_in_pieces_without_the_usage_event_nobody_asked_for(llama_url: str) -> None:
    async with Scheduler([Backend(f"{llama_url}/v1")]) as scheduler:
        stream = await scheduler.openai().chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=16, stream=True
        )
        events = [event async for event in stream]
        assert all(event.choices for event in events)
        assert sum(bool(event.choices[0].delta.content) for event in events) > 8
        assert events[-1].choices[0].finish_reason == "length"
        assert not scheduler.snapshot().running


async def test_cancelling_a_call_stops_the_engine(llama_url: str) -> None:
    async with Scheduler([Backend(f"{llama_url}/v1", max_concurrency=1)]) as scheduler:
        client = scheduler.openai()
        body = {
            "model": "tiny",
            "messages": MESSAGES,
            "max_tokens": 6_000,
            "extra_body": {"ignore_eos": True},
        }
        long = asyncio.create_task(client.chat.completions.create(**body))
        while not (calls := scheduler.snapshot().calls) or calls[0].output_tokens == 0:
            await asyncio.sleep(0.01)
        queued = asyncio.create_task(
            client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=4)
        )
        await asyncio.sleep(0.05)
        assert scheduler.snapshot().queued == 1
        long.cancel()
        assert (await queued).usage.completion_tokens == 4
        await _idle(llama_url)


async def test_breaking_out_of_a_stream_stops_the_engine(llama_url: str) -> None:
    async with Scheduler([Backend(f"{llama_url}/v1", max_concurrency=1)]) as scheduler:
        stream = await scheduler.openai().chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=6_000, stream=True, extra_body={"ignore_eos": True}
        )
        async with stream:
            async for _ in stream:
                break
        assert scheduler.snapshot().running == 0


async def test_the_served_models_are_learned_from_the_server(llama_url: str) -> None:
    async with Scheduler([Backend(f"{llama_url}/v1")]) as scheduler:
        with pytest.raises(UnknownModel, match="tiny"):
            await scheduler.openai().chat.completions.create(model="huge", messages=MESSAGES)


# -- answers that one of two servers begins, and the other one ends --------------------------------------------


async def test_a_broken_stream_is_ended_by_the_other_server(llama_url: str, other_llama_url: str) -> None:
    """Random weights speak in tongues: which token follows depends on how the text before is cut into tokens."""
    body: Any = {"model": "tiny", "max_tokens": 60, "temperature": 0, "stream": True}
    extra: Any = {"stream_options": {"include_usage": True}, "extra_body": {"ignore_eos": True}}
    moved = 0
    async with cutting(llama_url, 4_000) as cut_url:
        fleet = [Backend(f"{cut_url}/v1", name="cut"), Backend(f"{other_llama_url}/v1", name="whole")]
        async with Scheduler(fleet) as scheduler:
            for number in range(6):
                messages = [{"role": "user", "content": f"Name mountain {number}."}]
                stream = await scheduler.openai().chat.completions.create(messages=messages, **body, **extra)
                events = [event async for event in stream]
                moved += scheduler.explain(stream.response.headers["x-request-id"]).attempts == 2
                *told, counted = events
                assert len({event.id for event in events}) == 1
                assert [event.choices[0].finish_reason for event in told][-1] in ("length", "stop")
                assert all(event.choices[0].delta.role is None for event in told[1:])
                said = [event.choices[0].delta.content for event in told]
                assert counted.usage is not None
                assert 0 <= counted.usage.completion_tokens - sum(map(bool, said)) <= 5, "some have no text"
    assert moved >= 2, "an answer of random weights may be over before it is cut"


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_move_to_the_other_server(llama_url: str, other_llama_url: str, stream: bool) -> None:
    urls = {"a": llama_url, "b": other_llama_url}
    async with Scheduler([Backend(f"{url}/v1", name=name) for name, url in urls.items()]) as scheduler:
        calls = [
            asyncio.create_task(
                scheduler.openai().chat.completions.create(
                    model="tiny",
                    messages=MESSAGES,
                    max_tokens=1_000,
                    stream=stream,
                    extra_body={"ignore_eos": True},
                )
            )
            for _ in range(4)
        ]
        while not any(call.backend == "a" and call.output_tokens for call in scheduler.snapshot().calls):
            assert not all(call.done() for call in calls)
            await asyncio.sleep(0)
        scheduler.fleet.remove("a")
        for call in calls:
            answer: Any = await call
            last = [event async for event in answer][-1] if stream else answer
            assert last.choices[0].finish_reason in ("length", "stop")
            if not stream and last.choices[0].finish_reason == "length":
                assert 900 <= answer.usage.completion_tokens <= 1_000
        await _idle(llama_url)
