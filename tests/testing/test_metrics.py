"""The metrics page says what the model knows, in Prometheus's form and under vLLM's names."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, Speed, VirtualClock, faults

LINE = re.compile(r'^(vllm:[a-z0-9_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)+)\} (-?[0-9.e+-]+)$')
SPEC = BackendSpec(speed=Speed(step_s=0.02), max_num_seqs=2, kv_blocks=100)


def parse(page: str) -> dict[tuple[str, str], float]:
    """Read a page into values by name and by what distinguishes lines of that name."""
    values: dict[tuple[str, str], float] = {}
    typed: set[str] = set()
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            typed.add(line.split()[2])
            continue
        match = LINE.match(line)
        assert match, line
        name, labels, value = match.groups()
        assert 'engine="0"' in labels and 'model_name="a \\"model\\""' in labels
        assert name in typed or re.sub(r"_(bucket|count|sum)$", "", name) in typed, name
        rest = ",".join(part for part in labels.split(",") if not part.startswith(("engine", "model_name")))
        assert (name, rest) not in values
        values[name, rest] = float(value)
    return values


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet([FakeBackend("only", models=('a "model"',), spec=SPEC)])


def test_the_page_follows_the_calls(fleet: FakeFleet) -> None:
    clock = VirtualClock()
    body: dict[str, Any] = {"model": 'a "model"', "prompt": "word " * 200, "max_tokens": 50}

    async def main() -> list[dict[tuple[str, str], float]]:
        pages: list[dict[tuple[str, str], float]] = []
        async with httpx.AsyncClient(
            transport=fleet.transport("httpx"), base_url="http://only.test"
        ) as client:

            async def look() -> None:
                pages.append(parse((await client.get("/metrics")).text))

            await look()
            calls = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(4)]
            await asyncio.sleep(0.5)
            await look()
            calls.pop().cancel()
            await asyncio.gather(*calls)
            await asyncio.sleep(1)
            await look()
        return pages

    before, during, after = clock.run(main())
    running, waiting, usage = (
        ("vllm:num_requests_running", ""),
        ("vllm:num_requests_waiting", ""),
        ("vllm:kv_cache_usage_perc", ""),
    )
    assert [page[running] for page in (before, during, after)] == [0, 2, 0]
    assert [page[waiting] for page in (before, during, after)] == [0, 2, 0]
    assert during["vllm:num_requests_waiting_by_reason", 'reason="capacity"'] == 2
    assert before[usage] == after[usage] == 0
    assert during[usage] == pytest.approx(0.19, abs=0.02)  # 16 blocks of prompt, of which 15 are shared
    assert before.keys() <= after.keys()
    assert after["vllm:prompt_tokens_total", ""] == 3 * 250
    assert after["vllm:generation_tokens_total", ""] == 3 * 50
    assert after["vllm:prefix_cache_queries_total", ""] == 3 * 250
    assert after["vllm:prefix_cache_hits_total", ""] == 2 * 240
    assert after["vllm:request_success_total", 'finished_reason="length"'] == 3
    assert after["vllm:request_success_total", 'finished_reason="abort"'] == 1
    assert 0 < during["vllm:generation_tokens_total", ""] < 3 * 50
    assert after["vllm:cache_config_info", 'block_size="16",num_gpu_blocks="100"'] == 1
    check_histogram(after, "vllm:time_to_first_token_seconds", 3)
    check_histogram(after, "vllm:inter_token_latency_seconds", 3 * 49)
    check_histogram(after, "vllm:request_generation_tokens", 3)
    assert after["vllm:request_generation_tokens_sum", ""] == 150


def check_histogram(page: dict[tuple[str, str], float], name: str, count: int) -> None:
    buckets = [value for (key, _), value in page.items() if key == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == page[f"{name}_count", ""] == count


async def got(client: httpx.AsyncClient, path: str = "/metrics") -> tuple[int, str]:
    answer = await client.get(path)
    return answer.status_code, answer.text


def test_an_older_page_has_the_older_name() -> None:
    fleet = FakeFleet([FakeBackend("only", spec=SPEC, old_names=True)])

    async def main() -> str:
        async with httpx.AsyncClient(
            transport=fleet.transport("httpx"), base_url="http://only.test"
        ) as client:
            return (await got(client))[1]

    text = VirtualClock().run(main())
    assert "vllm:gpu_cache_usage_perc{" in text
    assert "vllm:kv_cache_usage_perc" not in text


async def check_faults(fake: FakeBackend, client: httpx.AsyncClient) -> None:
    loop = asyncio.get_running_loop()
    fake.fail_page("/metrics", faults.Status(code=401))
    assert (await got(client))[0] == 401
    assert (await got(client, "/load"))[0] == 200, "the other pages are as they were"
    fake.fail_page("/metrics", faults.Frozen(page="stale 1\n"))
    assert await got(client) == (200, "stale 1\n")
    fake.fail_page("/metrics", faults.SlowStart(delay_s=1))
    at = loop.time()
    assert (await got(client))[0] == 200
    assert loop.time() - at >= 1 / fake.live.scale
    fake.fail_page("/metrics", faults.Hang())
    with pytest.raises(httpx.ReadTimeout):
        await client.get("/metrics", timeout=0.2)
    fake.heal()
    assert "vllm:num_requests_running" in (await got(client))[1]
    assert fake.polls == {"/metrics": 5, "/load": 1}


def test_what_may_be_wrong_with_a_page(fleet: FakeFleet) -> None:
    async def main() -> None:
        async with httpx.AsyncClient(
            transport=fleet.transport("httpx"), base_url="http://only.test"
        ) as client:
            await check_faults(fleet["only"], client)

    VirtualClock().run(main())


def test_what_may_be_wrong_with_a_page_on_the_wire(fleet: FakeFleet) -> None:
    async def main() -> None:
        async with fleet.serve(time_scale=20):
            root = fleet.base_urls[0].removesuffix("/v1")
            async with httpx.AsyncClient(base_url=root) as client:
                await check_faults(fleet["only"], client)

    asyncio.run(main())


def test_answers_tell_the_load_where_they_come_whole_and_are_asked_to() -> None:
    """What there is when the call has ended: of four others, one runs and two or three wait."""
    fleet = FakeFleet([FakeBackend("only", spec=SPEC, load_header=True)])
    ask = {"model": "fake-model", "prompt": "x" * 400}

    async def main() -> None:
        async with httpx.AsyncClient(
            transport=fleet.transport("httpx"), base_url="http://only.test/v1", timeout=None
        ) as client:

            async def told(form: str | None, tokens: int = 2, **fields: Any) -> str:
                headers = {} if form is None else {"endpoint-load-metrics-format": form}
                answer = await client.post(
                    "/completions", json=ask | {"max_tokens": tokens} | fields, headers=headers
                )
                assert answer.status_code == 200
                return answer.headers.get("endpoint-load-metrics", "")

            assert await told("TEXT", stream=True) == await told(None) == ""
            text = await told("text")
            assert (
                text == "TEXT named_metrics.kv_cache_usage_perc=0.0, named_metrics.num_requests_waiting=0.0"
            )
            report, *_ = await asyncio.gather(told("JSON"), *(told(None, 100) for _ in range(4)))
            form, _, content = report.partition(" ")
            named = json.loads(content)["named_metrics"]
            assert form == "JSON"
            assert named["num_requests_waiting"] in (2.0, 3.0)
            assert named["kv_cache_usage_perc"] > 0
            fleet["only"].load_header = "anything"
            assert await told("TEXT") == "anything"

    VirtualClock().run(main())


def test_a_server_that_takes_no_priorities_says_so() -> None:
    fleet = FakeFleet([FakeBackend("only", refuse_priority=True)])

    async def main() -> None:
        async with httpx.AsyncClient(
            transport=fleet.transport("httpx"), base_url="http://only.test/v1"
        ) as client:
            ask = {"model": "fake-model", "prompt": "x", "max_tokens": 1}
            statuses = [
                (await client.post("/completions", json=ask | fields)).status_code
                for fields in ({}, {"priority": 0}, {"priority": 1}, {"priority": -1, "stream": True})
            ]
            assert statuses == [200, 200, 400, 400]

    VirtualClock().run(main())
