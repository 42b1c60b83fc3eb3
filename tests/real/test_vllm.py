"""vLLM with generated weights: its streams are put together to what it answers whole. `make vllm` runs this."""

import asyncio
from typing import Any

import pytest

from agentsched import Backend, Scheduler
from tests.real.asking import FORMAT, MESSAGES, SCHEMA, direct, lasting
from tests.real.cutting import cutting
from tests.real.vocabulary import THINK_END

CHAT = {"messages": MESSAGES, "max_tokens": 24}
TEXT = {"prompt": "The tallest mountain", "max_tokens": 24}
WARM = {"temperature": 0.8}
TOOL = {"type": "function", "function": {"name": "trip", "parameters": SCHEMA}}
TRIP = {"type": "function", "function": {"name": "trip"}}
END_OF_THOUGHT = {str(THINK_END): 100.0}
"""A bias that ends the model's thinking at once, or it thinks up to its limit."""

CHATS: dict[str, dict[str, Any]] = {
    "thinking": {},
    "saying": {"logit_bias": END_OF_THOUGHT, "min_tokens": 2, "stop": ["</think></think></think>"]},
    "stopped": {"stop": [" a", "e"]},
    "stop in output": {"stop": ["e"], "include_stop_str_in_output": True},
    "stop tokens": {"stop_token_ids": [300, 301]},
    "n": {"n": 3, **WARM},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "logprobs by id": {"logprobs": True, "return_tokens_as_token_ids": True},
    "logprobs, n": {"logprobs": True, "top_logprobs": 2, "n": 2, **WARM},
    "schema": {"response_format": FORMAT, "max_tokens": 100},
    "json": {"response_format": {"type": "json_object"}},
    "regex": {"structured_outputs": {"regex": "[a-c]{5}"}},
    "sampling": {
        "top_k": 5,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "min_tokens": 3,
        "ignore_eos": True,
        **WARM,
    },
    "scheduling": {"priority": -1, "cache_salt": "a"},
    "words": {"bad_words": ["a"], "allowed_token_ids": [300, 301, 302], "length_penalty": 1.2},
    "special tokens": {"skip_special_tokens": False, "spaces_between_special_tokens": False},
    "token ids": {"return_token_ids": True},
    "no thoughts": {"include_reasoning": False},
    "truncated": {"truncate_prompt_tokens": 5},
    "continued": {
        "messages": [*MESSAGES, {"role": "assistant", "content": "It is"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "names": {"user": "u", "metadata": {"a": "b"}, "request_id": "abc", "service_tier": "auto"},
}
TEXTS: dict[str, dict[str, Any]] = {
    "text": {},
    "prompts": {"prompt": ["The tallest", "A mountain"]},
    "ids": {"prompt": [300, 301, 302]},
    "n": {"n": 2, **WARM},
    "logprobs": {"logprobs": 2},
    "json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 100},
    "token ids": {"return_token_ids": True},
}
WHOLE: dict[str, dict[str, Any]] = {
    "tools": {"tools": [TOOL], "tool_choice": TRIP},
    "tools, any": {"tools": [TOOL]},
    "prompt logprobs": {"prompt_logprobs": 1},
    "echo": {"echo": True},
}
ASKED = (
    [
        pytest.param("/chat/completions", {**CHAT, **more}, True, id=f"chat {name}")
        for name, more in CHATS.items()
    ]
    + [
        pytest.param("/completions", {**TEXT, **more}, True, id=f"text {name}")
        for name, more in TEXTS.items()
    ]
    + [
        pytest.param("/chat/completions", {**CHAT, **more}, False, id=f"chat {name}")
        for name, more in WHOLE.items()
    ]
)


@pytest.mark.parametrize(("path", "fields", "streamed"), ASKED)
async def test_the_whole_answer_is_what_the_server_itself_gives(
    vllm_url: str, path: str, fields: dict[str, Any], streamed: bool
) -> None:
    """It is streamed from the server, as the time of its first token tells, where that is proven to be the same."""
    body = {"model": "tiny", "temperature": 0, "seed": 7, **fields}
    for _ in range(2):  # the first one fills the prefix cache, which changes the last digits of a logprob
        plain = await asyncio.to_thread(direct, vllm_url, path, body)
    async with Scheduler([Backend(f"{vllm_url}/v1")]) as scheduler, scheduler.http_async_client() as http:
        await http.post(
            "/completions", json={"model": "tiny", **TEXT}
        )  # any whole answer tells what the server is
        answer = await http.post(path, json=body)
        first_token_s = scheduler.explain(answer.headers["x-request-id"]).first_token_s
        assert (first_token_s is not None) == streamed
        ours = answer.json()
    assert said(lasting(ours)) == said(lasting(plain))


def said(value: Any) -> Any:
    """Drop what is null or empty, which whole answers are full of, and the last digits of numbers."""
    if isinstance(value, dict):
        return {name: said(part) for name, part in value.items() if part not in (None, "", [], {})}
    if isinstance(value, list):
        return [said(part) for part in value]
    return round(value, 2) if isinstance(value, float) else value


async def test_a_response_is_the_servers_own(vllm_url: str) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": "Name it.", "max_output_tokens": 12, "temperature": 0}
    plain = await asyncio.to_thread(direct, vllm_url, "/responses", body)
    async with Scheduler([Backend(f"{vllm_url}/v1")]) as scheduler:
        ours = await scheduler.openai().responses.create(**body)
    assert ours.status == plain["status"]
    assert [item.type for item in ours.output] == [item["type"] for item in plain["output"]]
    assert ours.usage is not None
    assert ours.usage.output_tokens == plain["usage"]["output_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_broken_answer_goes_on_by_the_ids_of_its_tokens(plain_vllm_url: str, stream: bool) -> None:
    more = {"ignore_eos": True}
    whole, moved = Backend(f"{plain_vllm_url}/v1", name="whole"), 0
    async with cutting(plain_vllm_url, 6_000) as cut_url, Scheduler([whole]) as scheduler:
        client = scheduler.openai()
        scheduler.fleet.add(Backend(f"{cut_url}/v1", name="cut", models=["tiny"]))
        for number in range(12):
            async with asyncio.timeout(60):  # short answers tell again and again what they are
                while not all(map(scheduler._driver.addressing.exact, ("cut", "whole"))):
                    await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1)
            messages: Any = [{"role": "user", "content": f"Name mountain {number}."}]
            body: Any = {"model": "tiny", "messages": messages, "max_tokens": 60, "temperature": 0}
            alone = await asyncio.to_thread(direct, plain_vllm_url, "/chat/completions", {**body, **more})
            answer: Any = await client.chat.completions.create(**body, stream=stream, extra_body=more)
            if stream:
                text = "".join([event.choices[0].delta.content or "" async for event in answer])
                story = scheduler.explain(answer.response.headers["x-request-id"])
            else:
                text, story = answer.choices[0].message.content, scheduler.explain(answer._request_id)
                assert answer.usage.completion_tokens == 60
            assert text == alone["choices"][0]["message"]["content"], "as if nothing had happened"
            moved += story.attempts == 2
    assert moved >= 2
