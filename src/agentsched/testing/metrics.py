"""The metrics page of a fake backend, in Prometheus text and under vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agentsched.sim.backend import BackendModel
from agentsched.sim.gauges import Histogram


def page(
    model: BackendModel,
    *,
    model_name: str,
    finished: Mapping[str, int] | None = None,
    old_names: bool = False,
) -> str:
    """Return the page; `finished` counts answers by finish reason. Names are the current ones unless said."""
    labels = f'engine="0",model_name="{_escape(model_name)}"'
    return "".join(_lines(model, labels, finished or {}, "gpu" if old_names else "kv"))


def load_header(model: BackendModel, form: str) -> str:
    """Return vLLM's header `endpoint-load-metrics`, in the format that the request's header asks for."""
    gauges = model.gauges()
    named = {"kv_cache_usage_perc": gauges.kv_usage, "num_requests_waiting": float(gauges.waiting)}
    if form.lower() == "json":
        return f"JSON {json.dumps({'named_metrics': named})}"
    return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())


def _lines(model: BackendModel, labels: str, finished: Mapping[str, int], memory: str) -> Iterator[str]:
    gauges, counters, spec = model.gauges(), model.counters, model.spec
    yield from _number("gauge", "num_requests_running", labels, gauges.running)
    yield from _number("gauge", "num_requests_waiting", labels, gauges.waiting)
    yield "# TYPE vllm:num_requests_waiting_by_reason gauge\n"
    for reason, value in (("capacity", gauges.waiting), ("deferred", 0)):
        yield f'vllm:num_requests_waiting_by_reason{{{labels},reason="{reason}"}} {value}\n'
    yield from _number("gauge", f"{memory}_cache_usage_perc", labels, gauges.kv_usage)
    info = f'block_size="{spec.block_tokens}",num_gpu_blocks="{spec.kv_blocks}"'
    yield from _number("gauge", "cache_config_info", f"{labels},{info}", 1)
    for name, value in (
        ("prefix_cache_queries", counters.prefix_queries),
        ("prefix_cache_hits", counters.prefix_hits),
        ("num_preemptions", counters.preemptions),
        ("prompt_tokens", counters.prompt_tokens),
        ("prompt_tokens_cached", counters.cached_tokens),
        ("generation_tokens", model.generated()),
    ):
        yield from _number("counter", f"{name}_total", labels, value)
    yield "# TYPE vllm:request_success_total counter\n"
    for reason in sorted({"stop", "length", "abort", *finished}):
        value = counters.aborted if reason == "abort" else finished.get(reason, 0)
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {value}\n'
    yield "# TYPE vllm:admission_rejections_total counter\n"
    for reason, value in sorted(counters.refused.items()):
        yield f'vllm:admission_rejections_total{{{labels},reason="{reason}"}} {value}\n'
    for name, histogram in (
        ("time_to_first_token_seconds", counters.first_token),
        ("inter_token_latency_seconds", counters.inter_token),
        ("e2e_request_latency_seconds", counters.end_to_end),
        ("request_queue_time_seconds", counters.queue),
        ("request_prefill_time_seconds", counters.prefill),
        ("request_decode_time_seconds", counters.decode),
        ("request_prompt_tokens", counters.prompt_length),
        ("request_generation_tokens", counters.output_length),
    ):
        yield from _histogram(name, labels, histogram)


def _number(kind: str, name: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {value}\n"


def _histogram(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    yield f"# TYPE vllm:{name} histogram\n"
    bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.cumulative(), strict=True):
        yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count}\n'
    yield f"vllm:{name}_count{{{labels}}} {histogram.count}\nvllm:{name}_sum{{{labels}}} {histogram.total}\n"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
