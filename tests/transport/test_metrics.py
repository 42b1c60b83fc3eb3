"""What engines show of their load: pages under all names that are known, and nothing that makes the reader fail."""

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentsched import Backend
from agentsched.model import Signals
from agentsched.sim.backend import BackendModel
from agentsched.testing import BackendSpec, FakeFleet, VirtualClock
from agentsched.testing.metrics import page
from agentsched.transport import metrics
from agentsched.transport.metrics import (
    CAP_S,
    MAX_CALLS,
    MAX_TOKENS,
    load_of_header,
    read_signals,
    server_root,
    signals_of,
    signals_of_load,
)
from agentsched.transport.refusal import Broken
from tests.doubles import Answer, Script, upstream, whole

VLLM = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",version="3.12.9"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-32B"} 12.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-32B"} 3.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-32B",reason="capacity"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-32B",reason="deferred"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-32B"} 0.25
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="Qwen/Qwen3-32B"} 1.234567e+06
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",kv_cache_memory_bytes="None",\
num_gpu_blocks="5000",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256"} 1.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-32B"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-32B"} 9.0
"""

OLD_VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="meta-llama/Llama-3.1-8B"} 5.0
# TYPE vllm:num_requests_swapped gauge
vllm:num_requests_swapped{model_name="meta-llama/Llama-3.1-8B"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="meta-llama/Llama-3.1-8B"} 2.0
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.35
# TYPE vllm:cpu_cache_usage_perc gauge
vllm:cpu_cache_usage_perc{model_name="meta-llama/Llama-3.1-8B"} 0.9
"""

SGLANG = """\
# HELP sglang:num_running_reqs The number of running requests
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B",tp_rank="0",pp_rank="0"} 162.0
# HELP sglang:num_used_tokens The number of used tokens
# TYPE sglang:num_used_tokens gauge
sglang:num_used_tokens{model_name="meta-llama/Llama-3.1-8B",tp_rank="0",pp_rank="0"} 123859.0
# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B",tp_rank="0",pp_rank="0"} 0.28
# HELP sglang:num_queue_reqs The number of requests in the waiting queue
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B",tp_rank="0",pp_rank="0"} 2826.0
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{model_name="meta-llama/Llama-3.1-8B",tp_rank="0",pp_rank="0"} 442353.0
"""

LLAMA = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 1024
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds 35.2
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 7
"""

OLD_LLAMA = (
    LLAMA
    + """\
# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.49
"""
)


@pytest.mark.parametrize(
    ("text", "signals"),
    [
        (VLLM, Signals(running=12, waiting=3, kv_usage=0.25, kv_tokens=80_000)),
        (OLD_VLLM, Signals(running=5, waiting=2, kv_usage=0.35)),
        (SGLANG, Signals(running=162, waiting=2826, kv_usage=0.28, kv_tokens=442_353)),
        (LLAMA, Signals(running=4, waiting=7)),
        (OLD_LLAMA, Signals(running=4, waiting=7, kv_usage=0.49)),
    ],
    ids=["vllm", "old vllm", "sglang", "llama.cpp", "old llama.cpp"],
)
def test_pages_of_engines(text: str, signals: Signals) -> None:
    assert signals_of(text) == signals
    assert signals_of(text.replace("\n", "\r\n")) == signals
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    stamped = "\n".join(f"{line} 1764547200000" for line in reversed(lines))
    assert signals_of(stamped) == signals, "in any order, with times"


def test_the_page_of_a_fake_backend() -> None:
    model = BackendModel(BackendSpec(kv_blocks=100, block_tokens=16))
    for old_names in (False, True):
        text = page(model, model_name='a "b} c" \\', old_names=old_names)
        assert signals_of(text) == Signals(running=0, waiting=0, kv_usage=0.0, kv_tokens=1_600)


def test_several_engines_are_one_load() -> None:
    text = """
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:num_requests_waiting{engine="0",model_name="m"} 1
vllm:num_requests_waiting{engine="1",model_name="m"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.4
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="50"} 1.0
"""
    assert signals_of(text) == Signals(running=5, waiting=1, kv_usage=pytest.approx(0.3), kv_tokens=2_400)


def test_parts_of_one_engine_count_its_calls_once() -> None:
    """SGLang's ranks of tensor and pipeline each count all; its ranks of data have calls of their own."""
    text = """
sglang:num_running_reqs{dp_rank="0",pp_rank="0",tp_rank="0"} 3
sglang:num_running_reqs{dp_rank="0",pp_rank="1",tp_rank="1"} 3
sglang:num_running_reqs{dp_rank="1",pp_rank="0",tp_rank="2"} 4
sglang:num_queue_reqs{dp_rank="0",priority=""} 5
sglang:num_queue_reqs{dp_rank="0",priority="1"} 2
sglang:num_queue_reqs{dp_rank="0",priority="7"} 3
"""
    assert signals_of(text) == Signals(running=7, waiting=5)


def test_the_newer_name_goes_before_the_older_one() -> None:
    text = "vllm:gpu_cache_usage_perc 0\nvllm:kv_cache_usage_perc 0.5\n"
    assert signals_of(text) == Signals(kv_usage=0.5)


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="None"', None),
        ('block_size="None",num_gpu_blocks="None",kv_cache_size_tokens="64000"', 64_000),
        ('block_size="16",num_gpu_blocks="10",kv_cache_size_tokens="None"', 160),
        ('block_size="16"', None),
        ('block_size="16",num_gpu_blocks="-10"', None),
        ('block_size="1e300",num_gpu_blocks="1e300"', None),
        ('block_size="16",num_gpu_blocks="0"', None),
        ('x="num_gpu_blocks=\\"7\\"",block_size="2",num_gpu_blocks="3"', 6),
        ('x="}",block_size="2",num_gpu_blocks="3"', 6),
    ],
)
def test_the_memory_of_vllm(labels: str, tokens: int | None) -> None:
    found = signals_of(f"vllm:cache_config_info{{{labels}}} 1.0\nvllm:num_requests_running 1\n")
    assert found == Signals(running=1, kv_tokens=tokens)


@pytest.mark.parametrize(
    ("value", "running"),
    [
        *((value, None) for value in ["NaN", "+Inf", "-Inf", "-3", "1e30", "", "four"]),
        *[("0", 0), ("2.9", 2), ("1e2", 100), ("7 1764547200", 7)],
    ],
)
def test_values_that_cannot_be_are_none(value: str, running: int | None) -> None:
    found = signals_of(f"vllm:num_requests_running {value}\nvllm:num_requests_waiting 1\n")
    assert found == Signals(running=running, waiting=1)


@pytest.mark.parametrize(("value", "usage"), [("35.0", 1.0), ("1.0001", 1.0), ("NaN", None), ("-0.1", None)])
def test_usage_stays_within_0_and_1(value: str, usage: float | None) -> None:
    assert signals_of(f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_waiting 0\n") == Signals(
        waiting=0, kv_usage=usage
    )


UNKNOWN = [
    "",
    "\n\n",
    "<html>vllm:num_requests_running</html>",
    "process_cpu_seconds_total 12.5\n",
    "vllm:num_requests_running_total 7\n",
    "# vllm:num_requests_running 7\n",
    "vllm:num_requests_running{",
    'vllm:num_requests_running{a="b" 7',
    "vllm:num_requests_running}7",
    "vllm:num_requests_running",
    "vllm:num_requests_running NaN\n",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_unknown_is_no_load_of_zero(text: str) -> None:
    """91: a page whose names are not known says nothing, rather than zero everywhere."""
    assert signals_of(text) is None


def valid(signals: Signals | None) -> bool:
    if signals is None:
        return True
    counts = [(signals.running, MAX_CALLS), (signals.waiting, MAX_CALLS), (signals.kv_tokens, MAX_TOKENS)]
    whole_numbers = all(n is None or (type(n) is int and 0 <= n <= most) for n, most in counts)
    return whole_numbers and (signals.kv_usage is None or 0.0 <= signals.kv_usage <= 1.0)


PARTS = [
    *metrics.RUNNING,
    *metrics.WAITING,
    *metrics.USAGE,
    *metrics.TOKENS,
    *'{ } , = " \\ # \n \t 1 -1 NaN +Inf 1e308 None'.split(" "),
    " ",
    'block_size="16"',
    'num_gpu_blocks="None"',
    'num_gpu_blocks="1e308"',
    'engine="1"',
]
PAGES = st.lists(st.sampled_from(PARTS) | st.text(max_size=5) | st.floats().map(str)).map("".join)


@given(PAGES | st.text())
def test_no_text_makes_it_fail(text: str) -> None:
    assert valid(signals_of(text))


@given(PAGES | st.text() | st.text().map("TEXT {}".format) | st.text().map("JSON {}".format))
def test_no_header_makes_it_fail(value: str) -> None:
    assert valid(load_of_header(value))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "server_load num_running_reqs num_waiting_reqs named_metrics num_requests_waiting "
                "kv_cache_usage_perc".split()
            ),
            inner,
        )
    ),
)


@given(VALUES)
def test_no_json_makes_it_fail(value: Any) -> None:
    text = json.dumps(value)
    assert valid(signals_of_load(text.encode()))
    assert valid(load_of_header(f"JSON {text}"))


@given(st.binary())
def test_no_bytes_make_it_fail(content: bytes) -> None:
    assert valid(signals_of_load(content))


@pytest.mark.parametrize(
    "line",
    ["x" * 10**6, "}" * 10**6, 'a="' * 10**5 + "\\" * 10**6, " " * 10**6, "x{" + 'b="c",' * 10**5 + "} 1"],
    ids=["a word", "braces", "quotes", "spaces", "labels"],
)
def test_no_line_takes_long(line: str) -> None:
    """The cost is in proportion to the length: its square would take hours here."""
    assert signals_of(f"vllm:cache_config_info{{{line}}} 1\n{line}\n") is None


@pytest.mark.parametrize(
    ("content", "signals"),
    [
        (b'{"server_load": 17}', Signals(running=17)),
        (b'{"num_running_reqs": 3, "num_waiting_reqs": 4}', Signals(running=3, waiting=4)),
        (
            b'[{"dp_rank":0,"num_running_reqs":3,"num_waiting_reqs":4},{"dp_rank":1,"num_running_reqs":2}]',
            Signals(running=5, waiting=4),
        ),
        (b'{"server_load": true}', None),
        (b'{"server_load": -1}', None),
        (b'{"server_load": NaN}', None),
        (b'{"server_load": 1e99}', None),
        (b'{"server_load": "3"}', None),
        (b"[]", None),
        (b"17", None),
        (b"", None),
    ],
)
def test_loads(content: bytes, signals: Signals | None) -> None:
    assert signals_of_load(content) == signals


@pytest.mark.parametrize(
    ("value", "signals"),
    [
        (
            "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0",
            Signals(waiting=3, kv_usage=0.4),
        ),
        ("TEXT kv_cache_usage_perc=0.1,num_requests_waiting=2", Signals(waiting=2, kv_usage=0.1)),
        ("named_metrics.kv_cache_usage_perc=0.1", Signals(kv_usage=0.1)),
        (
            'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 3.0}}',
            Signals(waiting=3, kv_usage=0.4),
        ),
        ('{"named_metrics":{"num_requests_waiting":0}}', Signals(waiting=0)),
        ('json {"kv_cache_utilization": 7}', Signals(kv_usage=1.0)),
        ("TEXT named_metrics.num_requests_running=8", Signals(running=8)),
        ("TEXT cpu=0.3,mem=0.8", None),
        ("TEXT kv_cache_usage_perc=NaN", None),
        ('JSON {"named_metrics": 3}', None),
        ("JSON {", None),
        ("BIN Cg4KCHNvbWUta2V5", None),
        ("", None),
    ],
)
def test_headers_of_answers(value: str, signals: Signals | None) -> None:
    assert load_of_header(value) == signals


# -- asking -------------------------------------------------------------------------------------------


KEYED = Backend("http://b:1/v1", api_key="sesame")


def ask(
    stack: ModuleType, *answers: Answer, backend: Backend = KEYED
) -> tuple[Signals | str, list[Any], float]:
    """The signals or what was wrong, the requests, and the time it took."""
    clock, transport = VirtualClock(), upstream(stack, *answers)

    async def main() -> Any:
        try:
            found: Any = await read_signals(stack, transport, backend)
        except Broken as broken:
            assert broken.detail
            found = broken.detail
        assert transport.seen.open == 0
        return found, transport.seen.requests, clock()

    return clock.run(main())


def shown(text: str, status: int = 200) -> Script:
    return Script(status=status, headers=[("content-type", "text/plain")], pieces=[text.encode()])


def test_the_page_is_beside_the_api(stack: ModuleType) -> None:
    found, requests, _ = ask(stack, shown(VLLM))
    assert found == Signals(running=12, waiting=3, kv_usage=0.25, kv_tokens=80_000)
    (request,) = requests
    assert (request.method, str(request.url)) == ("GET", "http://b:1/metrics")
    assert request.headers["authorization"] == "Bearer sesame"


def test_without_a_key_none_is_sent(stack: ModuleType) -> None:
    _, requests, _ = ask(stack, shown(""), backend=Backend("http://b:1/v1"))
    assert [str(request.url) for request in requests] == ["http://b:1/metrics", "http://b:1/load"]
    assert not any("authorization" in request.headers for request in requests)


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("http://b:1/v1", "http://b:1"),
        ("http://b:1", "http://b:1"),
        ("http://v1", "http://v1"),
        ("https://gate/team/v1", "https://gate/team"),
        ("https://gate/v1/openai", "https://gate/v1/openai"),
        ("https://gate/rev1", "https://gate/rev1"),
    ],
)
def test_roots_of_servers(base_url: str, root: str) -> None:
    assert server_root(Backend(base_url).base_url) == root


LOAD = whole({"server_load": 9})


@pytest.mark.parametrize(
    "first",
    [shown("", 404), shown(VLLM, 501), shown("python_info 1\n"), shown(VLLM, 302), shown("no", 401)],
    ids=["missing", "an error", "unknown names", "a redirect", "a locked door"],
)
def test_where_there_is_no_such_page_there_may_be_a_load(stack: ModuleType, first: Script) -> None:
    assert ask(stack, first, LOAD)[0] == Signals(running=9)


def test_what_was_wrong_is_said_of_the_first_page(stack: ModuleType) -> None:
    none = shown("", 404)
    assert ask(stack, shown("no", 401), none)[0] == "GET http://b:1/metrics answers HTTP 401"
    found, _, _ = ask(stack, shown("python_info 1\n"), none)
    assert found == "GET http://b:1/metrics shows no gauge that is known here"


SLOW = {
    "a head that never comes": Script(before=[3600.0]),
    "a body that never ends": Script(pieces=[VLLM.encode(), 3600.0]),
    "a body that trickles": Script(pieces=[0.1, b" "] * 100_000),
}


@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("first", [[], [shown("", 404)]], ids=["metrics", "load"])
def test_it_takes_two_seconds_at_most(stack: ModuleType, first: list[Script], answer: Script) -> None:
    found, _, took = ask(stack, *first, answer)
    assert isinstance(found, str)
    assert took == pytest.approx(CAP_S)
    assert CAP_S == 2.0


GARBAGE: dict[str, Script] = {
    "nothing": whole(b""),
    "html": whole(b"<html>"),
    "no text": whole(b"\xff\xfe"),
    "nesting": whole(b"[" * 100_000),
    "a refusal": Script(before=[OSError("refused")]),
    "a foreign error": Script(before=[RuntimeError("loop closed")]),
    "a break": Script(pieces=[VLLM.encode(), OSError("reset")]),
}


@pytest.mark.parametrize("answer", GARBAGE.values(), ids=GARBAGE)
def test_anything_else_is_no_load(stack: ModuleType, answer: Script) -> None:
    found, _, took = ask(stack, answer)
    assert isinstance(found, str)
    assert took == 0.0


def test_a_huge_page_is_not_read_to_its_end(stack: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_BYTES", 1_000)
    transport = upstream(stack, Script(pieces=[VLLM.encode()] * 1_000), LOAD)
    assert VirtualClock().run(read_signals(stack, transport, KEYED)) == Signals(running=9)
    assert transport.seen.sent == 2, "one piece of each page"


@pytest.mark.parametrize("base", ["http://gpu/v1", "http://gpu/team/v1", "http://gpu"])
def test_a_fake_fleet_answers(stack: ModuleType, base: str) -> None:
    fleet = FakeFleet.fast(1)
    fleet["fake-1"].base_url = base
    transport = fleet.transport(stack.__name__)  # type: ignore[call-overload]
    found = VirtualClock().run(read_signals(stack, transport, Backend(base)))
    assert found.running == found.waiting == found.kv_usage == 0
    assert found.kv_tokens
