"""Each fault looks the same to a client, in process and on a real socket, of httpx and of httpx2."""

import asyncio
import json
from typing import Any

import httpx
import httpx2
import pytest

from agentsched.testing import FakeBackend, FakeFleet, VirtualClock
from agentsched.testing.faults import (
    Cut,
    EarlyEnd,
    ErrorEvent,
    Fault,
    Garbage,
    Hang,
    Refuse,
    SlowStart,
    Stall,
    Status,
)

ASK: dict[str, Any] = {
    "model": "fake-model",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 30,
}

# What a client sees: status, number of events, what the last event is or which exception ends it.
STREAMED: list[tuple[Fault, tuple[Any, ...]]] = [
    (Refuse(), ("ConnectError",)),
    (Status(code=429, retry_after_s=2), (429, "2")),
    (Status(code=500), (500, None)),
    (Status(code=503), (503, None)),
    (Hang(), ("ReadTimeout",)),
    (SlowStart(delay_s=0.05), (200, "whole")),
    (SlowStart(delay_s=60), (200, 0, "ReadTimeout")),
    (Stall(after_events=2), (200, 2, "ReadTimeout")),
    (Stall(after_events=2, for_s=0.05), (200, "whole")),
    (Cut(after_events=2), (200, 2, "ReadError")),
    (Cut(after_events=2, reset=False), (200, 2, "RemoteProtocolError")),
    (ErrorEvent(after_events=0), (200, 1, 503)),
    (ErrorEvent(after_events=2, code=500), (200, 3, 500)),
    (Garbage(after_events=1), (200, "garbage")),
    (EarlyEnd(after_events=2), (200, 2, "no end")),
]
WHOLE: list[tuple[Fault, tuple[Any, ...]]] = [
    (Refuse(), ("ConnectError",)),
    (Status(code=429, retry_after_s=0.5), (429, "0.5")),
    (Hang(), ("ReadTimeout",)),
    (SlowStart(delay_s=0.05), (200, "json")),
    (SlowStart(delay_s=60), ("ReadTimeout",)),
    (Stall(after_events=2), ("ReadTimeout",)),
    (Cut(after_events=2), ("ReadError",)),
    (Cut(reset=False), ("RemoteProtocolError",)),
    (ErrorEvent(), (503, None)),
    (Garbage(), (200, "garbage")),
    (EarlyEnd(), ("RemoteProtocolError",)),
]


async def look(client: Any, url: str, *, stream: bool, patience_s: float = 0.25) -> tuple[Any, ...]:
    """Make one call and say what could be seen of it."""
    begun: list[Any] = []
    try:
        body = ASK | {"stream": stream}
        async with client.stream(
            "POST", f"{url}/chat/completions", json=body, timeout=patience_s
        ) as response:
            if response.status_code != 200:
                await response.aread()
                return (response.status_code, response.headers.get("retry-after"))
            begun = [200]
            if not stream:
                data = await response.aread()
                try:
                    return (200, "json" if json.loads(data) else "empty")
                except ValueError:
                    return (200, "garbage")
            begun.append(0)
            return (200, *await read_events(response, begun))
    except (httpx.TransportError, httpx2.TransportError) as error:
        return (*begun, type(error).__name__) if stream else (type(error).__name__,)


async def read_events(response: Any, begun: list[Any]) -> tuple[Any, ...]:
    """Read the events of a stream; `begun[1]` counts them."""
    broken = False
    async for line in response.aiter_lines():
        if not line:
            continue
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            return ("garbage",) if broken else ("whole",)
        begun[1] += 1
        try:
            event = json.loads(data)
        except ValueError:
            broken = True
            continue
        if "error" in event:
            return (begun[1], event["error"]["code"])
    return (begun[1], "no end")


def cases() -> list[Any]:
    return [
        pytest.param(fault, stream, seen, id=f"{type(fault).__name__}-{'stream' if stream else 'whole'}-{i}")
        for stream, rows in ((True, STREAMED), (False, WHOLE))
        for i, (fault, seen) in enumerate(rows)
    ]


@pytest.mark.parametrize("http", [httpx, httpx2], ids=["httpx", "httpx2"])
@pytest.mark.parametrize(("fault", "stream", "seen"), cases())
def test_in_process(fault: Fault, stream: bool, seen: tuple[Any, ...], http: Any) -> None:
    fleet, clock = FakeFleet.fast(1), VirtualClock()
    fleet.fail(fault)

    async def main() -> tuple[Any, ...]:
        async with http.AsyncClient(transport=fleet.transport(http.__name__)) as client:
            found = await look(client, fleet.base_urls[0], stream=stream)
            await asyncio.sleep(0.1)
            return found

    assert clock.run(main()) == seen
    nothing_is_left(fleet["fake-1"], fault)


@pytest.mark.parametrize("http", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_on_loopback(http: Any) -> None:
    fleet = FakeFleet(
        [FakeBackend(f"n{i}", spec=FakeFleet.fast(1)["fake-1"].spec) for i in range(len(cases()))]
    )
    async with fleet.serve(interval_s=0.0), http.AsyncClient() as client:
        for backend, case in zip(fleet, cases(), strict=True):
            backend.fail(case.values[0])
        await asyncio.sleep(0.03)  # the doors that are to be shut are shut now
        looks = [
            look(client, backend.base_url, stream=case.values[1], patience_s=1.0)
            for backend, case in zip(fleet, cases(), strict=True)
        ]
        found = await asyncio.gather(*looks)
        await asyncio.sleep(0.05)
        for backend, case in zip(fleet, cases(), strict=True):
            nothing_is_left(backend, case.values[0])
    assert dict(zip((case.id for case in cases()), found, strict=True)) == {
        c.id: c.values[2] for c in cases()
    }


def nothing_is_left(backend: FakeBackend, fault: Fault) -> None:
    """No fault leaves a call in the engine or in the count."""
    gauges = backend.live.model.gauges()
    assert (gauges.running, gauges.waiting, gauges.kv_usage, backend.log.in_flight) == (0, 0, 0.0, 0)
    if isinstance(fault, Refuse):
        assert backend.log.received == 0
    else:
        assert [row.fault for row in backend.calls] == [fault]
        assert backend.calls[0].outcome in ("fault", "disconnected")


def test_rules_pick_calls_by_number_window_and_chance() -> None:
    fleet, clock = FakeFleet.fast(1), VirtualClock()
    fake = fleet["fake-1"]
    fake.fail(Status(code=500), nth=[1, 3])
    fake.fail(Status(code=503), between=(10.0, 20.0))
    fake.fail(Refuse(), nth=5)

    async def main() -> list[Any]:
        async with httpx.AsyncClient(transport=fleet.transport("httpx")) as client:
            seen = [await look(client, fake.base_url, stream=False) for _ in range(5)]
            await asyncio.sleep(12)
            seen.append(await look(client, fake.base_url, stream=False))
            fake.heal()
            return [*seen, await look(client, fake.base_url, stream=False)]

    assert [entry[0] for entry in clock.run(main())] == [500, 200, 500, 200, "ConnectError", 503, 200]


async def test_a_shut_door_opens_again() -> None:
    fleet = FakeFleet.fast(1)
    fake = fleet["fake-1"]
    seen: list[Any] = []
    async with fleet.serve():
        for refusing in (False, True, False):
            fake.heal()
            if refusing:
                fake.fail(Refuse())
            await asyncio.sleep(0.05)
            async with httpx.AsyncClient() as client:
                seen.append((await look(client, fake.base_url, stream=False))[0])
    assert seen == [200, "ConnectError", 200]
