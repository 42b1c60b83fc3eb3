"""Ordinary clients over a scheduled fleet: what the app sees is what the backend said."""

import json
import logging
from types import ModuleType
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI

from agentsched import Backend, BackendUnavailable, Scheduler
from agentsched.testing import FakeBackend, FakeFleet, FakeRequest, Reply, VirtualClock, faults
from tests.doubles import ASK, MODEL, Rig, Script, upstream, whole

TEXT = "Ünïcode 😀 and more"


def answering(request: FakeRequest) -> Reply:
    return Reply(TEXT, tokens=4)


@pytest.fixture
def rig(stack: ModuleType) -> Rig:
    return Rig(stack=stack, fleet=FakeFleet([FakeBackend("fake-1", responder=answering)]))


def test_chat(rig: Rig) -> None:
    async def main() -> None:
        answer = await rig.client.chat.completions.create(**ASK)
        assert answer.choices[0].message.content == TEXT
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        assert answer.model == MODEL

    rig.run(main)


def test_text_completion(rig: Rig) -> None:
    async def main() -> None:
        answer = await rig.client.completions.create(model=MODEL, prompt="hi", max_tokens=9)
        assert answer.choices[0].text == TEXT
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4

    rig.run(main)


@pytest.mark.parametrize("wanted", [True, False, None])
def test_streamed_chat(rig: Rig, wanted: bool | None) -> None:
    more: dict[str, Any] = {} if wanted is None else {"stream_options": {"include_usage": wanted}}

    async def main() -> None:
        stream = await rig.client.chat.completions.create(**ASK, stream=True, **more)
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == TEXT
        usages = [chunk.usage for chunk in chunks if chunk.usage is not None]
        assert [usage.completion_tokens for usage in usages] == ([4] if wanted else [])
        assert wanted or all(chunk.choices for chunk in chunks)
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"

    rig.run(main)
    assert rig.received[0].body["stream_options"]["include_usage"] is True


def test_streamed_text_completion(rig: Rig) -> None:
    async def main() -> None:
        stream = await rig.client.completions.create(model=MODEL, prompt="hi", stream=True, max_tokens=9)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT

    rig.run(main)


def test_a_whole_answer_equals_the_one_without_us(stack: ModuleType) -> None:
    """The backend is asked for a stream; what comes of it may lack what is null or empty."""

    def seen(client: openai.AsyncOpenAI) -> Any:
        async def main() -> Any:
            raw = await client.chat.completions.with_raw_response.create(**ASK)
            return json.loads(raw.content)

        return main()

    plain = Rig(stack=stack)
    http = stack.AsyncClient(transport=plain.fleet.transport(stack.__name__))
    url = plain.fleet.base_urls[0]
    direct = plain.clock.run(seen(openai.AsyncOpenAI(api_key="x", base_url=url, http_client=http)))
    scheduled = Rig(stack=stack)
    ours = scheduled.clock.run(seen(scheduled.client))

    def clean(found: Any) -> Any:
        if isinstance(found, dict):
            return {name: clean(value) for name, value in found.items() if value not in (None, [])}
        return [clean(item) for item in found] if isinstance(found, list) else found

    assert scheduled.received[0].body["stream"] is True
    assert clean(ours) == clean(direct)


def test_the_apps_name_of_a_model_stays_the_apps(stack: ModuleType) -> None:
    rig = Rig(stack=stack)
    backend = Backend(rig.fleet.base_urls[0], models={"mine": MODEL})
    scheduler = Scheduler([backend], upstream=rig.fleet.transport(stack.__name__), clock=rig.clock)  # type: ignore[call-overload]
    client = scheduler.openai()

    async def main() -> None:
        messages: Any = ASK["messages"]
        assert (await client.chat.completions.create(model="mine", messages=messages)).model == "mine"
        assert (await client.completions.create(model="mine", prompt="x")).model == "mine"
        stream = await client.chat.completions.create(model="mine", messages=messages, stream=True)
        assert {chunk.model async for chunk in stream} == {"mine"}
        assert [model.id for model in (await client.models.list()).data] == ["mine"]
        assert (await client.models.retrieve("mine")).id == "mine"
        with pytest.raises(openai.NotFoundError, match="`fake-model` does not exist"):
            await client.models.retrieve("fake-model")

    rig.clock.run(main())
    assert {row.body["model"] for row in rig.received} == {MODEL}


# -- ids ----------------------------------------------------------------------------------------------


def test_every_answer_names_its_call(rig: Rig) -> None:
    async def main() -> None:
        whole = await rig.client.chat.completions.create(**ASK)
        raw = await rig.client.chat.completions.with_raw_response.create(**ASK)
        stream = await rig.client.chat.completions.create(**ASK, stream=True)
        ids = [whole._request_id, raw.headers["x-request-id"], stream.response.headers["x-request-id"]]
        assert len(set(ids)) == 3
        assert raw.headers["x-agentsched-backend"] == "fake-1"
        assert [chunk async for chunk in stream]
        for request_id in ids:
            assert request_id is not None
            assert rig.scheduler.explain(request_id).outcome == "completed"

    rig.run(main)


# -- other paths --------------------------------------------------------------------------------------


def test_models_are_listed(stack: ModuleType) -> None:
    for listed in (False, True):
        rig = Rig(stack=stack, listed=listed)

        async def main(rig: Rig = rig) -> None:
            page = await rig.client.models.list()
            assert [model.id for model in page.data] == [MODEL]

        rig.run(main)


def test_embeddings_are_passed_through_and_scheduled(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)

    async def main() -> None:
        answers = [
            await rig.client.embeddings.create(model=MODEL, input="hi", encoding_format="float")
            for _ in range(2)
        ]
        assert answers[0].data[0].embedding == answers[1].data[0].embedding
        assert len(answers[0].data[0].embedding) == 64

    rig.run(main)
    assert [row.path for row in rig.received] == ["/v1/embeddings"] * 2
    assert "stream" not in rig.received[0].body


def test_a_path_that_no_backend_has_is_the_sdks_not_found(rig: Rig) -> None:
    async def main() -> None:
        with pytest.raises(openai.NotFoundError):
            await rig.client.files.list()

    rig.run(main)


def test_posts_without_a_body_pass(rig: Rig) -> None:
    async def main() -> None:
        with pytest.raises(openai.NotFoundError):  # the fake has no such path; a real one does
            await rig.client.responses.cancel("r1")

    rig.run(main)


# -- keys ---------------------------------------------------------------------------------------------


def test_each_backend_sees_its_own_key_and_never_the_apps(stack: ModuleType) -> None:
    fleet = FakeFleet([FakeBackend(name, api_key=f"key-{name}") for name in ("a", "b")])
    rig = Rig(stack=stack, fleet=fleet)
    backends = [Backend(fake.base_url, api_key=fake.api_key, models=fake.models) for fake in fleet]
    scheduler = Scheduler(backends, upstream=fleet.transport(stack.__name__), clock=rig.clock)  # type: ignore[call-overload]
    http = scheduler.http_async_client()
    client = openai.AsyncOpenAI(api_key="app-secret", http_client=http, organization="org")

    async def main() -> None:
        for _ in range(4):
            await client.chat.completions.create(**ASK)

    rig.clock.run(main())
    assert {name for name, _ in fleet.calls} == {"a", "b"}
    for name, row in fleet.calls:
        assert row.headers["authorization"] == f"Bearer key-{name}"
        assert not any("app-secret" in value for value in row.headers.values())


# -- what SDKs offer besides --------------------------------------------------------------------------


def test_raw_and_streaming_responses(rig: Rig) -> None:
    async def main() -> None:
        raw = await rig.client.chat.completions.with_raw_response.create(**ASK)
        assert raw.parse().choices[0].message.content == TEXT
        create = rig.client.chat.completions.with_streaming_response.create
        async with create(**ASK) as response:
            assert (await response.parse()).choices[0].message.content == TEXT
        async with create(**ASK, stream=True) as response:
            lines = [line async for line in response.iter_lines()]
            assert "data: [DONE]" in lines

    rig.run(main)


def test_a_closed_client_leaves_the_others_alone(rig: Rig) -> None:
    async def main() -> None:
        async with rig.scheduler.openai() as other:
            await other.chat.completions.create(**ASK)
        await rig.client.chat.completions.create(**ASK)

    rig.run(main)


def test_timeouts_are_those_of_the_sdk(rig: Rig) -> None:
    plain = openai.AsyncOpenAI(api_key="none").timeout
    for timeout in (rig.client.timeout, rig.scheduler.http_async_client().timeout):
        assert [getattr(timeout, kind) for kind in ("connect", "read", "write", "pool")] == [
            getattr(plain, kind) for kind in ("connect", "read", "write", "pool")
        ]


def test_models_that_nobody_can_list_are_an_error(
    stack: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = FakeFleet.fast(2)
    fleet.fail(faults.Refuse())
    rig = Rig(stack=stack, fleet=fleet, listed=True)

    async def main() -> None:
        with pytest.raises(BackendUnavailable, match="no backend could list"):
            await rig.client.models.list()

    with caplog.at_level(logging.WARNING, "agentsched"):
        rig.run(main)
    assert sorted(record.getMessage().split(":")[0] for record in caplog.records) == ["fake-1", "fake-2"]


def test_other_paths_keep_what_they_accept(stack: ModuleType) -> None:
    transport = upstream(stack, whole({"detail": "no such file"}, status=404))
    rig = Rig(1, stack=stack, upstream=transport)

    async def main() -> None:
        http = rig.scheduler.http_async_client()
        response = await http.get("/files/f/content", headers={"accept": "text/csv"})
        assert response.status_code == 404
        (request,) = transport.seen.requests
        assert request.headers["accept"] == "text/csv"
        view = rig.scheduler.snapshot().backends[0]
        assert (view.started, view.failed) == (1, 0), "what is not there is not the backend's fault"

    rig.run(main)


def test_the_bare_http_client_takes_relative_urls(rig: Rig) -> None:
    async def main() -> None:
        async with rig.scheduler.http_async_client() as http:
            response = await http.post("/chat/completions", json=dict(ASK))
            assert response.status_code == 200
            assert response.json()["choices"][0]["message"]["content"] == TEXT

    rig.run(main)


# -- LangChain ----------------------------------------------------------------------------------------


def test_langchain_is_scheduled_when_it_is_async() -> None:
    rig = Rig()
    llm = ChatOpenAI(model=MODEL, **rig.scheduler.client_kwargs())

    async def main() -> None:
        message = await llm.ainvoke("hi")
        assert message.content
        assert message.response_metadata["model_name"] == MODEL
        chunks = [chunk async for chunk in llm.astream("hi")]
        assert "".join(str(chunk.content) for chunk in chunks) == message.content

    rig.run(main)
    assert len(rig.received) == 2


def test_the_answer_to_a_head_keeps_its_length(stack: ModuleType) -> None:
    script = Script(headers=[("content-length", "1234"), ("x-a", "b")])
    clock, transport = VirtualClock(), upstream(stack, script)
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=transport, clock=clock)

    async def main() -> None:
        answer = await scheduler.http_async_client().head("/files/f")
        assert (answer.status_code, answer.headers["content-length"], answer.headers["x-a"]) == (
            200,
            "1234",
            "b",
        )

    clock.run(main())
