"""`docs/benchmarks.md`: every table of the bench, written anew by each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan

from agentsched.sim.report import METRICS
from benchmarks.policy.capacity import Probe
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.report.standings import KNOWING, Standings
from benchmarks.policy.report.stats import change, gap_closed
from benchmarks.policy.row import Row

SUMMED_UP = ("mean_s", "p95_s", "p99_s", "slo_share", "slowdown")
WHO = {
    "round robin": "released at once, each backend in turn",
    "least outstanding": "released at once, to the backend with the fewest unanswered calls",
    "weighted LO": "the same, each unanswered call counted with the backend's seconds per call (a tuned power of it)",
    "FIFO + limit": "held back at tuned limits, in order of arrival, to the backend that by true speeds finishes first",
    "EDF": "the same limits and placement, earliest deadline of the query first",
    "LLF": "least laxity first: deadline less what the workflow takes from this step on, on average",
    "QLM-like": "deadlines in groups, the earliest group first (QLM)",
    "PLAS": "least attained service of the query first (Autellix)",
    "VTC-like": "fair over tenants by token prices (VTC), as start tags",
    "Ayo-like": "by depth in the workflow, nearest to its end first or last, whichever is better (Ayo)",
    "LiteLLM shuffle": "LiteLLM Router, `simple-shuffle`",
    "LiteLLM least-busy": "LiteLLM Router, `least-busy`",
    "LiteLLM latency": "LiteLLM Router, `latency-based-routing`",
    "agentsched": "`Policy.default()` behind the same limits; speeds and lengths are learned during the run",
    "clairvoyant": "knows true lengths, plans, speeds and caches; the best of 18 settings for each column",
    "clairvoyant, fusing": "the same, and computes equal nodes once",
}


def summary(rows: Iterable[Standings]) -> str:
    """Return a table with a line per row: the strongest baseline, ours, the ceiling, and the gap closed."""
    lines = [
        "| row | metric | strongest baseline | agentsched | clairvoyant | against it | gap closed |",
        "|---|---|---|---|---|---|---|",
    ]
    for standing in rows:
        lines += [_line(standing, metric) for metric in SUMMED_UP]
    return "\n".join(lines)


def _line(standing: Standings, metric: str) -> str:
    fair = [name for name in standing.figures if name != DEFAULT.name]
    strongest = standing.strongest(metric, fair)
    base, ours = standing.values(strongest, metric), standing.values(DEFAULT.name, metric)
    ceiling = standing.values(KNOWING[0], metric)
    closed = gap_closed(ours, base, ceiling)
    cells = [
        standing.row.name,
        METRICS[metric].title,
        f"{strongest}: {number(metric, standing.mean(strongest, metric))}",
        number(metric, standing.mean(DEFAULT.name, metric)),
        number(metric, standing.mean(KNOWING[0], metric)),
        f"{change(ours, base):+.1%}",
        "gap under 2 %" if closed is None else f"{closed:.0%}",
    ]
    return f"| {' | '.join(cells)} |"


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
    seeds = standing.bounds
    lines.append(
        f"| *lower bound* | {number('mean_s', sum(found.mean_s for found in seeds) / len(seeds))} |"
        + " |" * (len(METRICS) - 1)
    )
    return "\n".join(lines)


def capacity_table(found: Mapping[Probe, float], limits: Mapping[tuple[str, str], float]) -> str:
    """Return the capacities: contenders down, sites across; last what no scheduler can exceed."""
    sites = list(dict.fromkeys(probe.site for probe in found))
    names = list(dict.fromkeys(probe.contender for probe in found))
    by = {(probe.site, probe.contender): rate for probe, rate in found.items()}
    lines = [f"| | {' | '.join('/'.join(site) for site in sites)} |", f"|---|{'---|' * len(sites)}"]
    for name in names:
        rates = [by.get((site, name)) for site in sites]
        lines.append(f"| {name} | {' | '.join('' if rate is None else f'{rate:.4f}' for rate in rates)} |")
    lines.append(f"| *upper bound* | {' | '.join(f'{limits[site]:.4f}' for site in sites)} |")
    return "\n".join(lines)


def contenders(names: Sequence[str]) -> str:
    """Say who is who."""
    return "\n".join(f"- **{name}**: {WHO[name]}." for name in names if name in WHO)


def number(metric: str, value: float) -> str:
    """Return a figure as tables show it."""
    return "" if isnan(value) else f"{value:.{METRICS[metric].digits}f}"


def _cell(standing: Standings, name: str, metric: str) -> str:
    text = number(metric, standing.mean(name, metric))
    return f"{text} ±{number(metric, standing.spread(name, metric))}" if metric == "p95_s" else text


def anchor(row: Row) -> str:
    """Return the heading of a row."""
    return f"### {row.name}"
