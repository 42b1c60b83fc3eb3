"""The fake fleet on real sockets."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, FakeRequest, Reply, Speed
from agentsched.testing.server import FleetServer

ASK: dict[str, Any] = {"model": "fake-model", "messages": [{"role": "user", "content": "hi there"}]}
LONG: dict[str, Any] = ASK | {"max_tokens": 20_000, "extra_body": {"ignore_eos": True}}


@pytest.fixture
async def fleet() -> AsyncIterator[FakeFleet]:
    fleet = FakeFleet.fast(2)
    async with fleet.serve(time_scale=5):
        yield fleet


@pytest.fixture
async def client(fleet: FakeFleet) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=fleet.base_urls[0], api_key="key", max_retries=0) as client:
        yield client


async def until_idle(fake: FakeBackend) -> float:
    """Wait until the engine has nothing left to do; return the seconds that took."""
    begun = time.perf_counter()
    async with asyncio.timeout(5):
        while True:
            fake.live.settle()
            gauges = fake.live.model.gauges()
            if not (gauges.running or gauges.waiting or fake.log.in_flight):
                return time.perf_counter() - begun
            await asyncio.sleep(0.002)


async def test_the_sdk_gets_whole_answers_and_streams(fleet: FakeFleet, client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(**ASK)
    text = ""
    async with await client.chat.completions.create(**ASK, stream=True) as stream:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content
    assert [row.outcome for row in fleet["fake-1"].calls] == ["finished", "finished"]
    vectors = await client.embeddings.create(model="fake-model", input=["one", "two"])
    assert len(vectors.data) == 2
    assert [model.id async for model in client.models.list()] == ["fake-model"]
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="unknown", messages=ASK["messages"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_cancelled_call_is_aborted_within_a_tenth_of_a_second(
    stream: bool, fleet: FakeFleet, client: openai.AsyncOpenAI
) -> None:
    async def call() -> None:
        answer: Any = await client.chat.completions.create(**LONG, stream=stream)
        async for _ in answer:
            pass

    fake, took_s = fleet["fake-1"], list[float]()
    for _ in range(3):  # a busy machine may delay one of them
        task = asyncio.create_task(call())
        while not fake.live.model.gauges().running:
            await asyncio.sleep(0.01)
            fake.live.settle()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        took_s.append(await until_idle(fake))
    assert min(took_s) < 0.1
    assert [row.outcome for row in fake.calls] == ["disconnected"] * 3
    assert fake.live.model.counters.aborted == 3


async def test_model_time_runs_at_the_scale_and_the_lag_is_told() -> None:
    fleet = FakeFleet([FakeBackend("only", spec=BackendSpec(speed=Speed(step_s=0.02)))])
    async with fleet.serve(time_scale=20), httpx.AsyncClient(base_url="http://unused") as http:
        root = fleet.base_urls[0].removesuffix("/v1")
        begun = time.perf_counter()
        await http.post(
            f"{fleet.base_urls[0]}/chat/completions", json=ASK | {"max_tokens": 200, "ignore_eos": True}
        )
        took_s = time.perf_counter() - begun
        lag = (await http.get(f"{root}/fake/lag")).json()
    assert 4.0 / 20 <= took_s < 4.0 / 20 + 1.0
    assert lag["calls"] == 1 and lag["time_scale"] == 20
    assert lag["planned_s"] == pytest.approx(4.0 / 20, rel=0.02)
    assert lag["share"] == pytest.approx(lag["late_s"] / lag["planned_s"])
    assert 0 <= lag["worst_s"] < 1.0


async def test_events_carry_the_tokens_of_an_interval() -> None:
    fleet = FakeFleet([FakeBackend("only", spec=BackendSpec(speed=Speed(step_s=0.01)))])
    async with fleet.serve(time_scale=10, interval_s=0.02), httpx.AsyncClient() as http:
        body = ASK | {"max_tokens": 200, "ignore_eos": True, "stream": True}
        answer = await http.post(f"{fleet.base_urls[0]}/chat/completions", json=body)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    lengths = [len(event["choices"][0]["delta"]["content"]) // 4 for event in events]
    assert sum(lengths) == 200
    assert lengths[:2] == [0, 1]  # the first token is not held back
    assert max(lengths) >= 20 and len(events) <= 12


async def test_a_stopped_server_leaves_the_fleet_as_it_was() -> None:
    fleet = FakeFleet.fast(1)
    before = (fleet.base_urls, fleet["fake-1"].event_tokens)
    async with fleet.serve(time_scale=3), httpx.AsyncClient() as http:
        served = fleet.base_urls[0]
        hanging = asyncio.create_task(
            http.post(f"{served}/chat/completions", json=ASK | {"max_tokens": 9000})
        )
        await asyncio.sleep(0.05)
    with pytest.raises(httpx.TransportError):
        await hanging
    assert (fleet.base_urls, fleet["fake-1"].event_tokens) == before
    assert fleet["fake-1"].log.in_flight == 0
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{served}/models")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "::", "localhost"])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(ValueError, match="loopback"):
        FleetServer(FakeFleet.fast(1), host=host)


def test_ports_and_scales_are_checked() -> None:
    with pytest.raises(ValueError, match="2 ports"):
        FleetServer(FakeFleet.fast(2), ports=[18001])
    with pytest.raises(ValueError, match="time_scale"):
        FleetServer(FakeFleet.fast(1), time_scale=0)


def shout(request: FakeRequest) -> Reply:
    return Reply(request.text.upper())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--time-scale", "0"], "argument --time-scale: must be a number above 0"),
        (["--interval", "nan"], "argument --interval: must be a number above 0"),
        (["--port", "70000"], "argument --port: must be between 0 and 65535"),
        (["--fleet", "fast:0"], "'fast:0' is not one of hetero1"),
        (["--fleet", "fast:x"], "'fast:x' is not one of hetero1"),
        (["--fleet", "nope"], "'nope' is not one of hetero1"),
        (["--responder", "nope"], "'nope' is not module:function"),
        (["--responder", "json:nope"], "'json:nope' is not module:function"),
    ],
)
def test_what_the_command_cannot_do_is_one_sentence(options: list[str], message: str) -> None:
    said = complaint(options)
    assert message in said
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = complaint(["--fleet", "fast:1", "--port", port])
    assert said.startswith(f"cannot listen from port {port} on: ")


def complaint(options: list[str]) -> str:
    command = [sys.executable, "-m", "agentsched.testing.server", "--for", "1", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    return run.stderr


def test_the_command_serves_until_told_to_stop() -> None:
    command = [sys.executable, "-m", "agentsched.testing.server", "--fleet", "hetero1", "--time-scale", "50"]
    command += ["--responder", f"{__name__}:shout", "--model", "big", "--api-key", "k", "--for", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert [backend["name"] for backend in ready["backends"]] == ["a100-1", "a100-2", "a6000", "l40s"]
        url = ready["backends"][3]["base_url"]
        assert url.startswith("http://127.0.0.1:")
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            answer = client.chat.completions.create(model="big", messages=ASK["messages"])
            assert answer.choices[0].message.content == "HI THERE"
        process.terminate()
        assert process.wait(5) == 0


# ---- bytes that no client should send

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = json.dumps(ASK | {"max_tokens": 1}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


async def talk(fake: FakeBackend, data: bytes, *, finish: bool = True) -> bytes:
    """Send bytes and return all that comes back until the server closes or is silent."""
    host, port = fake.base_url.removeprefix("http://").removesuffix("/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    try:
        writer.write(data)
        if finish:
            writer.write_eof()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(0.25):
                while piece := await reader.read(65536):
                    answer += piece
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000, 431),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n{", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nnull", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n\xff\xfe", 400),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    ],
)
async def test_malformed_requests_get_an_error(data: bytes, status: int, fleet: FakeFleet) -> None:
    answer = await talk(fleet["fake-1"], data, finish=False)
    assert answer.split(b" ")[1] == str(status).encode()
    assert (await talk(fleet["fake-1"], GET, finish=False)).startswith(b"HTTP/1.1 200")


async def test_connections_are_kept_and_pipelined_requests_answered_in_turn(fleet: FakeFleet) -> None:
    answer = await talk(fleet["fake-1"], POST + GET + POST, finish=False)
    assert answer.count(b"HTTP/1.1 200") == 3
    assert answer.count(b"chat.completion") == 2


async def test_old_clients_chunked_bodies_and_expectations(fleet: FakeFleet) -> None:
    fake = fleet["fake-1"]
    old = POST.replace(b"HTTP/1.1", b"HTTP/1.0")
    assert b"chat.completion" in await talk(fake, old, finish=False)
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    assert b"chat.completion" in await talk(
        fake, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks, finish=False
    )
    waiting = head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    assert (await talk(fake, waiting, finish=False)).startswith(b"HTTP/1.1 100")


async def test_a_body_that_stops_half_way_leaves_nothing(fleet: FakeFleet) -> None:
    fake = fleet["fake-1"]
    await talk(fake, POST[:-20])
    await talk(fake, POST[:-20], finish=False)
    assert fake.log.received == 0


async def test_any_bytes_leave_the_server_well(fleet: FakeFleet) -> None:
    fake = fleet["fake-1"]
    pieces = st.sampled_from(
        [POST, GET, POST[:60], BODY, b"\r\n", b"\x00", b"HTTP/1.1", b"GET ", b": ", b"0\r\n\r\n"]
    )
    junk = st.lists(pieces | st.binary(max_size=20), max_size=6).map(b"".join)
    examples: list[tuple[bytes, bool]] = []

    @settings(max_examples=60)
    @given(junk, st.booleans())
    def draw(data: bytes, finish: bool) -> None:
        examples.append((data, finish))

    await asyncio.to_thread(draw)
    for start in range(0, len(examples), 30):
        some = examples[start : start + 30]
        answers = await asyncio.gather(*(talk(fake, data, finish=finish) for data, finish in some))
        assert all(not answer or answer.startswith(b"HTTP/1.1 ") for answer in answers)
        assert not any(b" 500 " in answer[:20] for answer in answers)
    await until_idle(fake)
    assert (await talk(fake, GET, finish=False)).startswith(b"HTTP/1.1 200")
