"""What a fake backend answers, and how long it takes: the API of an OpenAI-compatible server."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from agentsched.testing import (
    BackendSpec,
    ErrorReply,
    FakeBackend,
    FakeFleet,
    FakeRequest,
    Reply,
    VirtualClock,
)
from agentsched.testing.fleet import FAST
from agentsched.testing.tokens import to_cells
from tests.testing.asking import ASK, post, sdk


def test_an_answer_takes_the_time_of_the_model(http: Any, fleet: FakeFleet, clock: VirtualClock) -> None:
    response = clock.run(post(http, fleet, {"max_tokens": 50}))
    assert isinstance(response, http.Response)
    body = response.json()
    assert clock() == pytest.approx(FAST.alone_s(body["usage"]["prompt_tokens"], 50))
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 50 == len(body["choices"][0]["message"]["content"]) / 4


def test_stream_and_whole_say_the_same(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> tuple[str, str, Any, Any]:
        client = sdk(fleet)
        whole = await client.chat.completions.create(**ASK)
        stream = await client.chat.completions.create(
            **ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        return whole.choices[0].message.content or "", text, whole.usage, chunks[-1].usage

    whole, streamed, usage, last_usage = clock.run(main())
    assert whole == streamed
    assert usage == last_usage


def test_continuous_usage_counts_up(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> list[int]:
        options: Any = {"include_usage": True, "continuous_usage_stats": True}
        stream = await sdk(fleet).chat.completions.create(
            **ASK, max_tokens=5, stream=True, stream_options=options
        )
        return [chunk.usage.completion_tokens async for chunk in stream if chunk.usage]

    assert clock.run(main()) == [1, 2, 3, 4, 5, 5]


def test_a_repeated_prompt_is_cached_and_says_so(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> list[int]:
        client = sdk(fleet)
        body: dict[str, Any] = {"model": "fake-model", "max_tokens": 1}
        body["messages"] = [{"role": "user", "content": "word " * 1000}]
        answers = [await client.chat.completions.create(**body) for _ in range(2)]
        salted = await client.chat.completions.create(**body, extra_body={"cache_salt": "other"})
        return [a.usage.prompt_tokens_details.cached_tokens for a in (*answers, salted)]  # type: ignore[union-attr]

    assert clock.run(main()) == [0, 1248, 0]


@pytest.mark.parametrize("way", ["chat", "token ids"])
def test_a_cut_answer_can_be_continued_to_the_same_text(
    way: str, fleet: FakeFleet, clock: VirtualClock
) -> None:
    async def main() -> None:
        client, other = sdk(fleet), sdk(fleet, 1)
        extra = {"return_token_ids": True, "metadata": {"fake_output_tokens": "30"}}
        whole = await client.chat.completions.create(**ASK, extra_body=extra)
        text = whole.choices[0].message.content or ""
        begun = await client.chat.completions.create(**ASK, extra_body=extra | {"max_tokens": 12})
        raw: Any = begun.model_dump()
        if way == "chat":
            messages: Any = [
                *ASK["messages"],
                {"role": "assistant", "content": begun.choices[0].message.content},
            ]
            go_on = extra | {"add_generation_prompt": False, "continue_final_message": True}
            rest = await other.chat.completions.create(
                model="fake-model", messages=messages, extra_body=go_on
            )
            more, usage = rest.choices[0].message.content, rest.usage
        else:
            ids = raw["prompt_token_ids"] + raw["choices"][0]["token_ids"]
            tail = await other.completions.create(
                model="fake-model", prompt=ids, max_tokens=100, extra_body=extra
            )
            more, usage = tail.choices[0].text, tail.usage
        assert (begun.choices[0].message.content or "") + (more or "") == text
        assert usage is not None and usage.completion_tokens == 18

    clock.run(main())


def test_completions_take_text_and_n_choices_differ(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> list[str]:
        answer = await sdk(fleet).completions.create(model="fake-model", prompt="one two", n=3, max_tokens=8)
        assert answer.usage is not None and answer.usage.completion_tokens == 24
        stream = await sdk(fleet).completions.create(
            model="fake-model", prompt="one two", n=3, max_tokens=8, stream=True
        )
        texts = ["", "", ""]
        async for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [choice.text for choice in answer.choices]
        return texts

    assert len(set(clock.run(main()))) == 3


def test_stop_words_and_lengths_are_honoured(fleet: FakeFleet, clock: VirtualClock) -> None:
    for backend in fleet:
        backend.responder = lambda _: Reply("alpha beta gamma")

    async def main() -> list[tuple[str | None, str]]:
        client = sdk(fleet)
        options: list[dict[str, Any]] = [
            {"stop": ["gam"]},
            {"max_tokens": 2},
            {"max_tokens": 6, "extra_body": {"ignore_eos": True}},
            {"max_completion_tokens": 1},
        ]
        answers = [await client.chat.completions.create(**ASK, **option) for option in options]
        return [(a.choices[0].message.content, a.choices[0].finish_reason) for a in answers]

    assert clock.run(main()) == [
        ("alpha beta ", "stop"),
        ("alpha be", "length"),
        ("alpha beta gammaalpha be", "length"),
        ("alph", "length"),
    ]


def test_a_responder_sees_the_request_and_may_call_tools_or_refuse(
    fleet: FakeFleet, clock: VirtualClock
) -> None:
    seen: list[FakeRequest] = []

    def respond(request: FakeRequest) -> Reply:
        seen.append(request)
        if request.text == "refuse":
            raise ErrorReply(422, "no")
        return Reply(tool_calls=(("search", '{"q": 1}'),))

    fleet["fake-1"].responder = respond

    async def main() -> None:
        client = sdk(fleet)
        whole = await client.chat.completions.create(**ASK)
        assert whole.choices[0].finish_reason == "tool_calls"
        assert whole.choices[0].message.tool_calls[0].function.arguments == '{"q": 1}'  # type: ignore[index, union-attr]
        chunks = [c async for c in await client.chat.completions.create(**ASK, stream=True)]
        assert chunks[-1].choices[0].delta.tool_calls[0].function.name == "search"  # type: ignore[index, union-attr]
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(
                model="fake-model", messages=[{"role": "user", "content": "refuse"}]
            )

    clock.run(main())
    assert [(r.text, r.kind, r.backend) for r in seen[:2]] == [("hi there", "chat", "fake-1")] * 2


def test_embeddings_are_unit_vectors_that_depend_on_the_text(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> list[list[float]]:
        answer = await sdk(fleet).embeddings.create(
            model="fake-model", input=["one", "two", "one"], dimensions=16
        )
        plain = await sdk(fleet).embeddings.create(
            model="fake-model", input="one", dimensions=16, encoding_format="float"
        )
        assert answer.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
        return [item.embedding for item in answer.data]

    one, two, again = clock.run(main())
    assert one == again != two
    assert sum(x * x for x in two) == pytest.approx(1)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "unknown"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 10**6}, 400, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 200_000}]}, 400, "input_tokens"),
        ({"continue_final_message": True}, 400, "continue_final_message"),
    ],
)
def test_errors_have_the_shape_of_vllm(
    body: dict[str, Any], status: int, param: str, fleet: FakeFleet, clock: VirtualClock
) -> None:
    response = clock.run(post(httpx, fleet, body))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, status, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert fleet["fake-1"].calls[0].outcome == "error"


def test_keys_models_and_full_queues(clock: VirtualClock) -> None:
    spec = BackendSpec(max_queued=1)
    fleet = FakeFleet([FakeBackend("only", api_key="secret", models=("a", "b"), spec=spec)])

    async def main() -> None:
        client = httpx.AsyncClient(transport=fleet.transport("httpx"), base_url="http://only.test")
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        client.headers["authorization"] = "Bearer secret"
        assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["a", "b"]
        body = ASK | {"model": "b"}
        running = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(0.01)
        refused = await client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 503
        in_band = await client.post("/v1/chat/completions", json=body | {"stream": True})
        assert in_band.status_code == 200
        event, done = in_band.text.split("\n\n")[:2]
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == 503
        assert done == "data: [DONE]"
        assert (await running).status_code == 200

    clock.run(main())
    assert [row.outcome for row in fleet["only"].calls] == ["finished", "error", "error"]


def test_pages_and_tokenizer(fleet: FakeFleet, fake: FakeBackend, clock: VirtualClock) -> None:
    async def main() -> None:
        client = httpx.AsyncClient(transport=fleet.transport("httpx"), base_url="http://fake-1.test")
        answer = (await client.post("/v1/chat/completions", json=ASK | {"max_tokens": 1})).json()
        tokens = (await client.post("/tokenize", json={"messages": ASK["messages"]})).json()
        assert tokens["count"] == answer["usage"]["prompt_tokens"] == len(tokens["tokens"])
        text = (await client.post("/tokenize", json={"prompt": "grüße"})).json()
        back = (await client.post("/detokenize", json={"tokens": text["tokens"]})).json()
        assert back == {"prompt": "grüße"}
        assert (await client.get("/load")).json() == {"server_load": 0}
        assert (await client.get("/fake/lag")).json()["calls"] == 1
        assert (await client.get("/v1/chat/completions")).status_code == 405
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.post("/detokenize", json={"tokens": "x"})).status_code == 400

    clock.run(main())
    assert fake.polls["/tokenize"] == 2
    assert fake.log.received == 1


def test_cells_make_usage(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> int:
        answer = await sdk(fleet).completions.create(model="fake-model", prompt="x" * 41, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    assert clock.run(main()) == len(to_cells("x" * 41)) / 4 == 11
