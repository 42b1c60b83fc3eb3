"""The fake fleet behind an http client without a socket: who calls, when, and how it ends."""

import asyncio
import gc
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from agentsched.testing import (
    BackendSpec,
    FakeBackend,
    FakeFleet,
    Speed,
    VirtualClock,
)
from agentsched.testing.fleet import FAST
from agentsched.transport.stack import default_stack
from tests.testing.asking import ASK, post, sdk


def test_the_transport_for_a_module_is_of_that_module(http: Any, fleet: FakeFleet) -> None:
    assert isinstance(fleet.transport(http.__name__), http.AsyncBaseTransport)
    assert isinstance(fleet.transport(), default_stack().AsyncBaseTransport)


def test_any_answer_can_be_read_raw(http: Any, fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> None:
        async with http.AsyncClient(transport=fleet.transport(http.__name__)) as client:
            for stream in (True, False):
                body = ASK | {"stream": stream, "max_tokens": 3}
                async with client.stream(
                    "POST", f"{fleet.base_urls[0]}/chat/completions", json=body
                ) as response:
                    pieces = [piece async for piece in response.aiter_raw()]
                assert len(pieces) == (5 if stream else 1)
                assert (response.headers.get("content-length") is None) == stream

    clock.run(main())


def test_a_stream_brings_each_token_at_its_time(fleet: FakeFleet, clock: VirtualClock) -> None:
    async def main() -> list[tuple[float, str]]:
        stream = await sdk(fleet).chat.completions.create(**ASK, max_tokens=20, stream=True)
        return [(clock(), chunk.choices[0].delta.content or "") async for chunk in stream]

    events = clock.run(main())
    first = FAST.alone_s(5, 1)
    assert [at for at, _ in events[1:]] == pytest.approx([first + step * 0.005 for step in range(20)])
    assert [len(text) for _, text in events] == [0] + [4] * 20


def test_a_closed_or_cancelled_call_is_aborted_at_once(
    fleet: FakeFleet, fake: FakeBackend, clock: VirtualClock
) -> None:
    async def main() -> None:
        client = sdk(fleet)
        stream = await client.chat.completions.create(
            **ASK, max_tokens=5000, stream=True, extra_body={"ignore_eos": True}
        )
        async for _ in stream:
            if clock() > 1.0:
                break
        assert fake.live.model.gauges().running == 1
        await stream.close()
        task = asyncio.create_task(client.chat.completions.create(**ASK))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.sleep(0.01)
        gauges = fake.live.model.gauges()
        assert (gauges.running, gauges.waiting, gauges.kv_usage) == (0, 0, 0.0)

    clock.run(main())
    assert [row.outcome for row in fake.calls] == ["disconnected", "disconnected"]
    assert fake.log.disconnects == 2
    assert fake.log.in_flight == 0
    assert fake.live.model.counters.aborted == 2


def test_a_stream_that_is_closed_unread_frees_its_room(
    fleet: FakeFleet, fake: FakeBackend, clock: VirtualClock
) -> None:
    async def main() -> None:
        client = httpx.AsyncClient(transport=fleet.transport("httpx"))
        request = client.build_request(
            "POST", f"{fake.base_url}/chat/completions", json=ASK | {"stream": True}
        )
        response = await client.send(request, stream=True)
        await asyncio.sleep(0.02)
        await response.aclose()

    clock.run(main())
    assert (fake.log.in_flight, fake.calls[0].outcome) == (0, "disconnected")


def test_a_stream_left_behind_by_a_loop_that_ended_is_cleaned_up(
    fleet: FakeFleet, fake: FakeBackend, clock: VirtualClock
) -> None:
    async def main() -> AsyncIterator[Any]:
        stream = await sdk(fleet).chat.completions.create(**ASK, stream=True)
        return aiter(stream)

    left = clock.run(main())
    del left
    gc.collect()
    clock.run(asyncio.sleep(10))
    assert clock.run(post(httpx, fleet, {"max_tokens": 1})).status_code == 200  # the next loop is served


def test_a_call_left_behind_unread_does_not_stop_the_next_clock(fleet: FakeFleet, fake: FakeBackend) -> None:
    async def leave() -> Any:
        client = httpx.AsyncClient(transport=fleet.transport("httpx"))
        request = client.build_request(
            "POST", f"{fake.base_url}/chat/completions", json=ASK | {"stream": True}
        )
        await asyncio.sleep(50)
        return await client.send(request, stream=True)

    left = VirtualClock().run(leave())
    clock = VirtualClock()
    assert clock.run(post(httpx, fleet, {"max_tokens": 20})).status_code == 200
    assert clock() < 1.0
    clock.run(asyncio.sleep(5))
    assert clock.run(post(httpx, fleet, {"max_tokens": 20})).status_code == 200
    assert fake.live.model.counters.finished == 3
    del left


def test_loops_in_several_threads_share_a_backend(fake: FakeBackend, fleet: FakeFleet) -> None:
    def work(number: int) -> list[int]:
        async def main() -> list[int]:
            async with httpx.AsyncClient(transport=fleet.transport("httpx")) as client:
                url = f"{fake.base_url}/chat/completions"
                bodies = [ASK | {"max_tokens": 5 + (number + i) % 7, "stream": i % 2 == 0} for i in range(10)]
                doomed = asyncio.create_task(
                    client.post(url, json=ASK | {"max_tokens": 5000, "ignore_eos": True})
                )
                answers = await asyncio.gather(*(client.post(url, json=body) for body in bodies))
                doomed.cancel()
                return [answer.status_code for answer in answers]

        return asyncio.run(main())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [[200] * 10] * 4
    assert (fake.log.received, fake.log.in_flight, fake.log.disconnects) == (44, 0, 4)
    fake.live.model.check()


def test_calls_are_logged_with_their_times(fleet: FakeFleet, fake: FakeBackend, clock: VirtualClock) -> None:
    async def main() -> None:
        await asyncio.sleep(2)
        await asyncio.gather(*(sdk(fleet).chat.completions.create(**ASK, max_tokens=3) for _ in range(5)))

    clock.run(main())
    assert fake.log.peak_in_flight == 5
    assert [name for name, _ in fleet.calls] == ["fake-1"] * 5
    row = fake.calls[0]
    assert (row.at, row.path, row.body["model"]) == (2.0, "/v1/chat/completions", "fake-model")
    assert row.headers["authorization"] == "Bearer key"
    assert (row.prompt_tokens, row.output_tokens, row.status) == (5, 3, 200)
    assert row.first_token_at is not None and row.ended_at is not None
    assert 2.0 < row.first_token_at < row.ended_at == clock()


def test_the_log_is_bounded(clock: VirtualClock) -> None:
    fleet = FakeFleet([FakeBackend("only", log_limit=3)])
    for _ in range(5):
        clock.run(post(httpx, fleet, {"max_tokens": 1}))
    assert [row.number for row in fleet["only"].calls] == [3, 4, 5]
    assert fleet["only"].log.received == 5


def test_a_fleet_finds_its_backends_by_host_port_and_path(clock: VirtualClock) -> None:
    urls = ["http://a:8000/v1", "http://a:8001/v1", "http://a:8001/x/v1", "https://a/v1"]
    fleet = FakeFleet([FakeBackend(f"n{i}", base_url=url) for i, url in enumerate(urls)])
    found = [fleet.find(url + "/chat/completions") for url in urls]
    assert [backend.name for backend in found if backend] == ["n0", "n1", "n2", "n3"]
    assert fleet.find("https://a:443/health") is fleet["n3"]
    assert fleet.find("http://b:8000/v1/models") is None
    with pytest.raises(ValueError, match="different names"):
        FakeFleet([FakeBackend("same"), FakeBackend("same")])

    async def main() -> None:
        client = httpx.AsyncClient(transport=fleet.transport("httpx"))
        assert (await client.get("http://a:8001/x/version")).json()["version"]
        with pytest.raises(httpx.ConnectError):
            await client.get("http://elsewhere/v1/models")

    clock.run(main())


def test_a_slow_reader_gets_everything_and_the_engine_does_not_wait(
    fleet: FakeFleet, clock: VirtualClock
) -> None:
    async def main() -> None:
        stream = await sdk(fleet).chat.completions.create(**ASK, max_tokens=100, stream=True)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            await asyncio.sleep(0.2)
        assert len(text) == 400

    clock.run(main())
    row = fleet["fake-1"].calls[0]
    assert fleet["fake-1"].live.model.now < 60
    assert row.output_tokens == 100
    assert clock() < 3  # what piled up while it slept came in one event


def test_two_backends_run_side_by_side_each_at_its_speed(clock: VirtualClock) -> None:
    specs = {"slow": Speed(step_s=0.05), "quick": Speed(step_s=0.01)}
    fleet = FakeFleet([FakeBackend(name, spec=BackendSpec(speed=speed)) for name, speed in specs.items()])

    async def one(number: int) -> float:
        await sdk(fleet, number).chat.completions.create(**ASK, max_tokens=100)
        return clock()

    async def main() -> list[float]:
        return await asyncio.gather(one(0), one(1))

    slow, quick = clock.run(main())
    assert (slow, quick) == pytest.approx((specs["slow"].alone_s(5, 100), specs["quick"].alone_s(5, 100)))


def test_a_fleet_can_be_used_by_one_loop_after_another(fleet: FakeFleet) -> None:
    for _ in range(2):  # the second clock starts at zero again
        clock = VirtualClock()
        for _ in range(2):
            assert clock.run(post(httpx, fleet, {"max_tokens": 5})).status_code == 200
        assert clock() == pytest.approx(2 * FAST.alone_s(5, 5))


def test_gpu_fleets_have_a_name(clock: VirtualClock) -> None:
    fleet = FakeFleet.gpus("hetero1")
    assert [backend.name for backend in fleet] == ["a100-1", "a100-2", "a6000", "l40s"]
    assert clock.run(post(httpx, fleet, {"max_tokens": 5})).status_code == 200
