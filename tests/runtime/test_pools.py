"""The way to the backends: a pool for each, the environment's proxies, transports and clients of one's own."""

import asyncio
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, BackendUnavailable, Limits, Scheduler, UsageError
from agentsched.runtime.pools import KEPT_ALIVE, Pools, kept_alive
from agentsched.runtime.proxies import proxy_for
from tests.doubles import ASK, MODEL, assert_quiet, outcome, said, settled, upstream, whole

URL = "http://b:1/v1"
PROXIES = (
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


def to(host: str, limit: int | None = None) -> Backend:
    return Backend(f"http://{host}/v1", max_concurrency=limit)


@pytest.mark.parametrize(("limit", "kept"), [(4, 4), (None, KEPT_ALIVE), (999, 999)])
def test_as_many_idle_connections_as_may_be_busy(limit: int | None, kept: int) -> None:
    assert kept_alive(to("b:1", limit)) == kept


def test_a_pool_a_backend_without_bound_over_http_1(stack: ModuleType) -> None:
    async def main() -> None:
        pools = Pools(stack, None)
        assert not pools.open
        pool = pools.to(to("b0:1", 300))._pool
        assert pools.to(to("b0:1"))._pool is pool
        other = pools.to(to("b1:1"))._pool
        assert other is not pool
        assert other._ssl_context is pool._ssl_context, "which takes long to read"
        assert pools.open
        assert pool._max_connections > 10**6
        assert (pool._max_keepalive_connections, other._max_keepalive_connections) == (300, KEPT_ALIVE)
        assert (pool._http1, pool._http2) == (True, False)
        await pools.aclose()
        assert not pools.open

    asyncio.run(main())


def test_the_pool_of_a_backend_that_is_gone_is_closed_once(
    stack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []

    async def aclose(pool: Any) -> None:
        closed.append(pool)

    monkeypatch.setattr(stack.AsyncHTTPTransport, "aclose", aclose)

    async def main() -> None:
        pools = Pools(stack, None)
        first, other = pools.to(to("a")), pools.to(to("b"))
        assert pools.drop("z") is None
        assert pools.drop("a") is first
        second = pools.to(to("a"))
        assert second is not first, "one of the same name may follow at once"
        await pools.close(first)
        await pools.close(first)
        assert closed == [first]
        pools.drop("a")
        await pools.aclose()
        assert sorted(map(id, closed)) == sorted(map(id, [first, second, other]))
        await pools.close(second)
        assert len(closed) == 3
        assert not pools.open

    asyncio.run(main())


async def test_a_cancellation_does_not_interrupt_the_closing(
    stack: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that ends cancels all tasks, also one that closes a pool."""
    turns = 0

    async def aclose(_: Any) -> None:
        nonlocal turns
        for _ in range(5):
            await asyncio.sleep(0)
            turns += 1

    monkeypatch.setattr(stack.AsyncHTTPTransport, "aclose", aclose)
    pools = Pools(stack, None)
    pools.to(to("a"))
    closing = asyncio.ensure_future(pools.close(pools.drop("a")))
    while turns < 2:
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert turns == 5
    assert closing.cancelled()


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, URL, None),
        ({"HTTP_PROXY": "http://p:3128"}, URL, "http://p:3128"),
        ({"http_proxy": "p:3128"}, URL, "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128"}, URL, None),
        ({"HTTPS_PROXY": "http://p:3128"}, "https://b/v1", "http://p:3128"),
        ({"ALL_PROXY": "http://p:3128"}, "https://b/v1", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "b,c"}, URL, None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": ".corp"}, "http://gpu.corp/v1", None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "*"}, URL, None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "other"}, URL, "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "localhost, ::1"}, "http://[::1]:8000/v1", None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "[::1]:8000"}, "http://[::1]:8000/v1", None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "[::1]:8000"}, "http://[::1]:8001/v1", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "*.corp"}, "http://gpu.corp/v1", None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "http://gpu"}, "http://gpu:8000/v1", None),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "http://gpu"}, "https://gpu/v1", "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "gpu:8000"}, "http://gpu:8000/v1", None),
        ({"HTTP_PROXY": "http://p:3128", "NO_PROXY": "pu"}, "http://gpu:8000/v1", "http://p:3128"),
    ],
)
def test_the_environments_proxy(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


def test_each_pool_goes_through_its_proxy(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://p:3128")
    monkeypatch.setenv("NO_PROXY", "near")

    async def main() -> None:
        pools = Pools(stack, None)
        far, near = pools.to(to("far")), pools.to(to("near"))
        assert type(far._pool).__name__ == "AsyncHTTPProxy"
        assert type(near._pool).__name__ == "AsyncConnectionPool"
        await pools.aclose()

    asyncio.run(main())


async def test_a_proxy_answers_for_a_backend(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over real sockets: what stands there is asked for the whole URL."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        body = (
            b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'
        )
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    scheduler = Scheduler([Backend("http://gpu.invalid/v1", models=[MODEL])])
    async with server, scheduler, scheduler.http_async_client(stack) as http:
        answer = await http.post("/chat/completions", json=ASK)
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
    assert asked == [b"POST http://gpu.invalid/v1/chat/completions HTTP/1.1\r\n"]


@pytest.mark.parametrize(
    "proxy",
    [
        "gopher://p:70",
        "http://user:Tr0ub4dor/3@127.0.0.1:9",
        "http://u:Tr0ub4dor#x@p:1",
        "http://p:99999999",
        "http://:1",
    ],
)
async def test_a_proxy_that_cannot_be_used_is_an_error_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, proxy: str
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy)
    async with Scheduler([Backend(URL, models=[MODEL])]) as scheduler:
        found = await outcome(scheduler.openai().chat.completions.create(**ASK))
        assert isinstance(found, UsageError)
        assert "the proxy that the environment names" in str(found)
        assert "Tr0ub4dor" not in str(found) + caplog.text
        assert not found.sent
        await assert_quiet(scheduler)


# -- transports and clients of one's own --------------------------------------------------------------


async def test_an_upstream_client_adds_what_it_adds_to_all_requests(stack: ModuleType) -> None:
    transport = upstream(stack, said("hi"))
    client = stack.AsyncClient(
        transport=transport,
        headers={"x-corp": "1", "authorization": "Bearer gateway", "accept": "text/plain"},
        cookies={"a": "b"},
        params={"tenant": "acme"},
    )
    async with client, Scheduler([Backend(URL, models=[MODEL])], upstream=client) as scheduler:
        await scheduler.openai().chat.completions.create(**ASK, extra_headers={"x-mine": "2"})
    (request,) = transport.seen.requests
    assert request.url.params["tenant"] == "acme"
    sent = {
        name: request.headers.get(name) for name in ("x-corp", "authorization", "cookie", "x-mine", "accept")
    }
    assert sent == {
        "x-corp": "1",
        "authorization": "Bearer gateway",
        "cookie": "a=b",
        "x-mine": "2",
        "accept": "text/event-stream",
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("answer", ["events", "whole"])
async def test_an_upstream_clients_hook_may_read_the_answer(
    stack: ModuleType, stream: bool, answer: str
) -> None:
    async def hook(response: Any) -> None:
        await response.aread()

    body = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    }
    transport = upstream(stack, said("hi") if answer == "events" else whole(body))
    client = stack.AsyncClient(transport=transport, event_hooks={"response": [hook]})
    async with client, Scheduler([Backend(URL, models=[MODEL])], upstream=client) as scheduler:
        client_of_app = scheduler.openai().chat.completions
        if not stream:
            answered = await client_of_app.create(**ASK)
            assert answered.choices[0].message.content == "hi"
        elif answer == "events":
            chunks = [chunk async for chunk in await client_of_app.create(**ASK, stream=True)]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hi"
    await settled()
    assert transport.seen.open == 0


def test_an_upstream_client_of_another_loop_is_an_error_of_the_caller(stack: ModuleType) -> None:
    scheduler = Scheduler([Backend("http://127.0.0.1:9/v1", models=[MODEL])], upstream=stack.AsyncClient())
    first = asyncio.run(outcome(scheduler.openai().chat.completions.create(**ASK)))
    assert isinstance(first, BackendUnavailable)
    for _ in range(2):
        again = asyncio.run(outcome(scheduler.openai().chat.completions.create(**ASK)))
        assert isinstance(again, UsageError)
        assert f"upstream=lambda: {stack.__name__}.AsyncClient(...)" in str(again)
        assert not again.sent
    with pytest.raises(UsageError, match="upstream=lambda"):
        scheduler.openai_sync().chat.completions.create(**ASK)
    scheduler.close()


def test_a_function_makes_an_upstream_client_per_loop_which_is_closed_with_it(stack: ModuleType) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(stack.AsyncClient(transport=upstream(stack, said("hi"))))
        return made[-1]

    scheduler = Scheduler([Backend(URL, models=[MODEL])], upstream=make)
    for _ in range(3):
        answer = asyncio.run(outcome(scheduler.openai().chat.completions.create(**ASK)))
        assert answer.choices[0].message.content == "hi"
    assert scheduler.openai_sync().chat.completions.create(**ASK).choices[0].message.content == "hi"
    assert len(made) == 4
    scheduler.close()
    assert all(client.is_closed for client in made)


def test_a_function_that_makes_something_else_is_refused() -> None:
    with pytest.raises(UsageError, match="or a function that makes one, not int"):
        Scheduler([Backend(URL)], upstream=lambda: 1)


async def test_an_upstream_client_sends_with_its_hooks_and_authentication(stack: ModuleType) -> None:
    seen: list[Any] = []

    async def hook(request: Any) -> None:
        seen.append(request.headers.get("x-tenant"))

    transport = upstream(stack, said("hi"))
    client = stack.AsyncClient(
        transport=transport, headers={"x-tenant": "acme"}, auth=("u", "p"), event_hooks={"request": [hook]}
    )
    async with client, Scheduler([Backend(URL, models=[MODEL])], upstream=client) as scheduler:
        answer = await scheduler.openai().chat.completions.create(**ASK)
        assert answer.choices[0].message.content == "hi"
        await settled()
    (request,) = transport.seen.requests
    assert request.headers["authorization"].startswith("Basic ")
    assert len(seen) == 1
    assert transport.seen.open == 0


async def test_a_client_of_either_stack_schedules_through_our_transport(stack: ModuleType) -> None:
    transport = upstream(stack, said("hi"))
    async with Scheduler([Backend(URL, models=[MODEL])], upstream=transport) as scheduler:
        mine = stack.AsyncClient(transport=scheduler.async_transport(stack))
        async with mine, scheduler.http_async_client(stack) as http:
            answer = await mine.post("http://anything.invalid/v1/chat/completions", json=ASK)
            assert answer.headers["x-agentsched-backend"] == "b:1"
            assert isinstance(http, stack.AsyncClient)
            assert (await http.post("/chat/completions", json=ASK)).status_code == 200

        def sync() -> list[int]:
            with (
                stack.Client(transport=scheduler.transport(stack)) as mine,
                scheduler.http_client(stack) as http,
            ):
                url = "http://anything.invalid/v1/chat/completions"
                return [
                    mine.post(url, json=ASK).status_code,
                    http.post("/chat/completions", json=ASK).status_code,
                ]

        assert await asyncio.to_thread(sync) == [200, 200]
    assert len(transport.seen.requests) == 4


@pytest.mark.parametrize("wrong", ["httpx", asyncio, 3])
def test_a_stack_is_one_of_two_modules(wrong: Any) -> None:
    scheduler = Scheduler([Backend(URL, models=[MODEL])])
    for make in (
        scheduler.http_async_client,
        scheduler.http_client,
        scheduler.async_transport,
        scheduler.transport,
    ):
        with pytest.raises(UsageError, match="stack must be the module httpx or httpx2"):
            make(wrong)


# -- limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [5, "5", {"idle_s": 5}])
def test_limits_are_limits(wrong: Any) -> None:
    with pytest.raises(UsageError, match="limits must be Limits"):
        Backend(URL, limits=wrong)
    with pytest.raises(UsageError, match="limits must be Limits"):
        Scheduler([Backend(URL)], limits=wrong)


def test_limits_are_values() -> None:
    assert Limits(idle_s=5) == Limits(idle_s=5.0)
    assert Backend(URL, limits=Limits(idle_s=5)) == Backend(URL, limits=Limits(idle_s=5))
    assert not Limits()
