"""`docs/benchmarks.md`: every table of the bench, written anew by each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, isinf, isnan
from statistics import mean, pstdev

from agentsched.sim.gpus import FLEETS
from agentsched.sim.report import METRICS
from benchmarks.policy.bounds import Bounds
from benchmarks.policy.capacity import Probe
from benchmarks.policy.fleets import fleet, kv_tokens
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.profile import sampled
from benchmarks.policy.report.standings import KNOWING, Standings
from benchmarks.policy.report.stats import Interval, change, gap_closed
from benchmarks.policy.traffic import alone_of

SUMMED_UP = ("mean_s", "p95_s", "p99_s", "slo_share", "slowdown")
WHO = {
    "round robin": "released at once, each backend in turn",
    "least outstanding": "released at once, to the backend with the fewest unanswered calls",
    "weighted LO": "the same, each unanswered call counted with the backend's seconds per call (a tuned power of it)",
    "FIFO + limit": "held back at limits tuned for it, in order of arrival, to where it ends first at true speeds",
    "EDF": "likewise at limits tuned for it, earliest deadline of the query first",
    "LLF": "likewise, least laxity first: deadline less what the workflow takes from this step on, on average",
    "QLM-like": "likewise, deadlines in groups, the earliest group first (QLM)",
    "PLAS": "likewise, least attained service of the query first (Autellix)",
    "VTC-like": "likewise, fair over tenants by token prices (VTC), as start tags",
    "Ayo-like": "likewise, by depth in the workflow, nearest to its end first or last, whichever is better (Ayo)",
    "LiteLLM shuffle": "LiteLLM Router, `simple-shuffle`",
    "LiteLLM least-busy": "LiteLLM Router, `least-busy`",
    "LiteLLM latency": "LiteLLM Router, `latency-based-routing`",
    "agentsched": "`Policy.default()` behind a `max_concurrency` tuned for it; learns speeds and lengths meanwhile",
    "clairvoyant": "knows true lengths, plans, speeds and caches; set for the mean, P95 and the SLO, on other queries",
    "clairvoyant, fusing": "the same, and computes equal nodes once and remembers their answers",
}


def summary(rows: Iterable[Standings], metrics: Sequence[str] = SUMMED_UP) -> str:
    """Return a table with a line per row and metric: the strongest baseline, ours, the ceiling, the gap closed."""
    lines = [
        "| row | metric | strongest baseline | agentsched | clairvoyant | against it | gap closed |",
        "|---|---|---|---|---|---|---|",
    ]
    for standing in rows:
        lines += [_line(standing, metric) for metric in metrics]
    return "\n".join(lines)


def _line(standing: Standings, metric: str) -> str:
    fair = [name for name in standing.figures if name != DEFAULT.name]
    strongest = standing.strongest(metric, fair)
    base, ours = standing.values(strongest, metric), standing.values(DEFAULT.name, metric)
    ceiling = standing.values(KNOWING[0], metric)
    closed = gap_closed(ours, base, ceiling, sign=METRICS[metric].sign)
    cells = [
        standing.row.name,
        METRICS[metric].title,
        f"{strongest}: {number(metric, standing.mean(strongest, metric))}",
        number(metric, standing.mean(DEFAULT.name, metric)),
        number(metric, standing.mean(KNOWING[0], metric)),
        _signed(change(ours, base)),
        closed if isinstance(closed, str) else f"{closed:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def _signed(moved: Interval) -> str:
    return f"{moved:+.1%}" if isfinite(moved.low) and isfinite(moved.high) else "baseline near 0"


def table(standing: Standings) -> str:
    """Return a row's table: contenders down, figures across; half the range over the seeds behind the P95."""
    names = [*standing.figures, *standing.ceilings]
    lines = [
        f"| | {' | '.join(metric.title for metric in METRICS.values())} |",
        f"|---|{'---|' * len(METRICS)}",
    ]
    for name in names:
        cells = [_cell(standing, name, metric) for metric in METRICS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(_bound_line("lower bound", standing.bounds))
    if standing.fused_bounds:
        lines.append(_bound_line("lower bound, fusing", standing.fused_bounds))
    return "\n".join(lines)


def _bound_line(name: str, bounds: Sequence[Bounds]) -> str:
    mean_s = mean([found.mean_s for found in bounds])
    return f"| *{name}* | {number('mean_s', mean_s)} |" + " |" * (len(METRICS) - 1)


def capacity_table(
    found: Mapping[Probe, float], bounds: Mapping[str, Mapping[tuple[str, str], float]]
) -> str:
    """Return the capacities: contenders down, sites across; last, bounds by their name."""
    sites = list(dict.fromkeys(probe.site for probe in found))
    names = list(dict.fromkeys(probe.contender for probe in found))
    by = {(probe.site, probe.contender): rate for probe, rate in found.items()}
    lines = [f"| | {' | '.join('/'.join(site) for site in sites)} |", f"|---|{'---|' * len(sites)}"]
    rows = [(name, [by.get((site, name)) for site in sites]) for name in names]
    rows += [(f"*{name}*", [rates.get(site) for site in sites]) for name, rates in bounds.items()]
    lines += [f"| {name} | {' | '.join(map(_rate, rates))} |" for name, rates in rows]
    return "\n".join(lines)


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return "above all tried" if isinf(rate) else f"{rate:.4f}" if rate else "below all tried"


def workload_table(names: Iterable[str], fleet_name: str) -> str:
    """Return what a query of each workload is like."""
    lines = [
        "| workload | calls | prompt tokens | answer tokens | critical path s | its variation |",
        "|---|---|---|---|---|---|",
    ]
    alone = alone_of(fleet_name)
    for name in names:
        drawn = sampled(name)
        nodes = [node for plan in drawn for node in plan.nodes]
        paths = list(map(alone, drawn))
        cells = [
            f"{len(nodes) / len(drawn):.1f}",
            f"{sum(node.input_tokens for node in nodes) / len(drawn):,.0f}",
            f"{sum(node.output_tokens for node in nodes) / len(drawn):,.0f}",
            f"{mean(paths):.1f}",
            f"{pstdev(paths) / mean(paths):.2f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


LEGEND = {
    "mean": "of the queries' latencies, from arrival to the last answer, in seconds; P50, P95, P99 likewise. "
    "± is half the range over the seeds",
    "slowdown": "mean of latency over the query's critical path on an idle fleet with cold caches; warm ones may bring "
    "it below 1",
    "in SLO": "share of the queries within their SLO",
    "goodput, throughput": "queries a second, within their SLO and at all",
    "Jain": "Jain's index of the tenants' mean slowdowns, of the queries' where there is one tenant; 1 is equal",
    "call mean, ...": "the same seconds of single calls",
    "upstream calls, preemptions, wasted tokens": "per query: attempts at backends; calls whose memory an engine took "
    "away; tokens computed in vain for them",
}
"""What the columns of a table hold."""


def fleets_table(names: Iterable[str]) -> str:
    """Return what each fleet consists of, and for how many tokens each of its backends has memory."""
    lines = ["| fleet | backends | KV tokens of each |", "|---|---|---|"]
    for name in names:
        room = ", ".join(f"{kv_tokens(spec):,}" for spec in fleet(name).values())
        lines.append(f"| {name} | {', '.join(card.gpu for card in FLEETS[name])} | {room} |")
    return "\n".join(lines)


def legend() -> str:
    """Say what the columns of a table hold."""
    return "\n".join(f"- **{column}**: {text}." for column, text in LEGEND.items())


def contenders(names: Sequence[str]) -> str:
    """Say who is who."""
    return "\n".join(f"- **{name}**: {WHO[name]}." for name in names if name in WHO)


def number(metric: str, value: float) -> str:
    """Return a figure as tables show it."""
    return "" if isnan(value) else f"{value:.{METRICS[metric].digits}f}"


def _cell(standing: Standings, name: str, metric: str) -> str:
    text = number(metric, standing.mean(name, metric))
    return f"{text} ±{number(metric, standing.spread(name, metric))}" if metric == "p95_s" else text
