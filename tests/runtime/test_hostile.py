"""What a hostile caller or backend tried once, and must never manage again."""

from typing import Any

import httpx2
import pytest

from agentsched import AgentschedError, Backend, Policy, Scheduler, UsageError
from agentsched.testing import FakeFleet, VirtualClock

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
BODY = {"model": "fake-model", "messages": MESSAGES}


class Listener(httpx2.AsyncBaseTransport):
    """Takes down where requests go and with what key, and answers as told."""

    def __init__(self, **answer: Any) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.answer = {"json": {"choices": []}, **answer}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append((str(request.url), request.headers.get("authorization")))
        return httpx2.Response(self.answer.get("status", 200), json=self.answer["json"])


@pytest.mark.parametrize("path", ["/v1@evil.test/x", "/v1:8080/y", "/v1.evil.test/z"])
async def test_no_path_becomes_a_part_of_the_host(path: str) -> None:
    upstream = Listener()
    async with Scheduler(
        [Backend("http://good.test", api_key="sk-1", models=["m"])], upstream=upstream
    ) as scheduler:
        await scheduler.http_async_client().get(f"http://agentsched.invalid{path}")
    assert [httpx2.URL(url).host for url, _ in upstream.seen] == ["good.test"]


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/x/../../admin"])
async def test_no_path_leaves_the_api_root(path: str) -> None:
    upstream = Listener()
    async with Scheduler([Backend("http://good.test/api/v1", models=["m"])], upstream=upstream) as scheduler:
        await scheduler.http_async_client().get(f"http://agentsched.invalid{path}")
    assert httpx2.URL(upstream.seen[0][0]).path.startswith("/api/v1/")


async def test_a_path_that_climbs_in_disguise_is_refused() -> None:
    upstream = Listener()
    async with Scheduler([Backend("http://good.test/v1", models=["m"])], upstream=upstream) as scheduler:
        for path in ("/v1/%2E%2e/admin", "/v1/x/..%2f..%2Fadmin", "/..%2f..%2fadmin"):
            with pytest.raises(UsageError, match="API root"):
                await scheduler.http_async_client().get(f"http://agentsched.invalid{path}")
    assert upstream.seen == []


@pytest.mark.parametrize("method", ["G ET", "GET\n", "G\u00c9T", ""])
async def test_a_method_that_is_none_is_refused(method: str) -> None:
    upstream = Listener()
    async with Scheduler([Backend("http://good.test/v1", models=["m"])], upstream=upstream) as scheduler:
        with pytest.raises(UsageError, match="no HTTP method"):
            await scheduler.http_async_client().request(method, "http://agentsched.invalid/v1/x")
    assert upstream.seen == []


async def test_names_of_models_are_not_books() -> None:
    upstream = Listener()
    async with Scheduler([Backend("http://good.test/v1", models=["m"])], upstream=upstream) as scheduler:
        client = scheduler.openai()
        with pytest.raises(UsageError, match="1000000 characters"):
            await client.chat.completions.create(model="m" * 10**6, messages=MESSAGES)
    assert upstream.seen == []


@pytest.mark.parametrize("key", ["sk-1 ", " sk-1", "sk 1"])
def test_a_key_that_cannot_be_a_header_is_refused_without_repeating_it(key: str) -> None:
    with pytest.raises(UsageError) as refused:
        Backend("http://a.test/v1", api_key=key)
    assert "sk" not in str(refused.value)


@pytest.mark.parametrize("wrong", [KeyboardInterrupt, RecursionError])
def test_an_exception_in_the_middle_of_a_decision_loses_only_its_own_call(wrong: type[BaseException]) -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(1)
    prices = iter([wrong()])

    def cost(*_: object) -> float:
        for error in prices:
            raise error
        return 1.0

    backends = [Backend(fake.base_url, models=["fake-model"], max_concurrency=1) for fake in fleet]
    scheduler = Scheduler(backends, upstream=fleet.transport(), clock=clock, policy=Policy(cost=cost))
    client = scheduler.openai()

    async def first() -> None:
        try:
            await client.chat.completions.create(**BODY)
        except KeyboardInterrupt:
            return

    async def main() -> None:
        await first()
        for _ in range(3):
            await client.chat.completions.create(**BODY)
        scheduler._driver.engine.check()
        assert scheduler.snapshot().running == scheduler.snapshot().queued == 0
        await scheduler.aclose()

    clock.run(main())


async def test_a_list_that_cannot_be_renewed_stays_as_it_was() -> None:
    upstream = Listener(json={"data": [{"id": "m"}], "choices": []})
    async with Scheduler([Backend("http://a.test/v1")], upstream=upstream) as scheduler:
        client = scheduler.openai()
        await client.models.list()
        upstream.answer = {"status": 500, "json": {}}
        await client.models.list()
        with pytest.raises(UsageError, match="served are: m"):
            await client.chat.completions.create(model="zzz", messages=MESSAGES)


def test_queries_left_in_the_wrong_order_leave_nothing_behind() -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(1)
    scheduler = Scheduler([Backend(fleet.base_urls[0])], upstream=fleet.transport(), clock=clock)

    async def main() -> None:
        one, two = scheduler.query("one", timeout_s=0.1), scheduler.query("two", timeout_s=0.1)
        await one.__aenter__()
        await two.__aenter__()
        await one.__aexit__(None, None, None)
        await two.__aexit__(None, None, None)
        answer = await scheduler.openai().chat.completions.with_raw_response.create(**BODY)
        assert "one" not in str(scheduler.explain(answer.headers["x-request-id"]))
        await scheduler.aclose()

    clock.run(main())


@pytest.mark.parametrize("headers", [{"x": "a\r\nevil: 1"}, {"x y": "1"}, {"x": " lead"}])
async def test_a_header_that_is_none_is_the_callers_fault(headers: dict[str, str]) -> None:
    fleet = FakeFleet.fast(2)
    async with fleet.serve():
        scheduler = Scheduler([Backend(url, models=["fake-model"]) for url in fleet.base_urls])
        with pytest.raises(AgentschedError) as refused:
            await scheduler.openai().chat.completions.create(**BODY, extra_headers=headers)
        assert isinstance(refused.value, UsageError)
        assert not refused.value.sent
        assert [backend.failed for backend in scheduler.snapshot().backends] == [0, 0]
        await scheduler.aclose()


@pytest.mark.parametrize("rank", [lambda _: 1 / 0, lambda _: "a", lambda _: 10**400])
def test_a_rank_that_is_none_is_a_usage_error(rank: Any) -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(1)
    policy = Policy(rank=rank)
    scheduler = Scheduler(
        [Backend(fleet.base_urls[0])], upstream=fleet.transport(), clock=clock, policy=policy
    )

    async def main() -> None:
        with pytest.raises(UsageError, match="rank"):
            await scheduler.openai().chat.completions.create(**BODY)
        await scheduler.aclose()

    clock.run(main())
