"""Plays what the page shows, and writes the page with its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from agentsched.cli.plot import latency_plot
from agentsched.sim.gpus import FLEETS
from agentsched.sim.report import mean
from benchmarks.policy.bounds import Bounds
from benchmarks.policy.capacity import ENOUGH, HIGHEST, LOWEST, Probe, capacities
from benchmarks.policy.clairvoyant import CLAIRVOYANT
from benchmarks.policy.ours import DEFAULT
from benchmarks.policy.peers import FIFO, PEERS
from benchmarks.policy.pool import ROOT, Playable, Pool
from benchmarks.policy.report.page import (
    capacity_table,
    contenders,
    fleets_table,
    legend,
    summary,
    table,
    workload_table,
)
from benchmarks.policy.report.standings import KNOWING, Standings, standings, tasks_of
from benchmarks.policy.routers import ROUTERS
from benchmarks.policy.row import CORE, FULL, ROUTED, ROUTED_SEEDS, SWEEP, TAIL, Row
from benchmarks.policy.task import Task, queries_of, tasks_at
from benchmarks.policy.tuned import Site, rate_of, tuned
from benchmarks.policy.tuning import LOADS
from benchmarks.policy.workloads import WORKLOADS

PAGE = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
QUOTED = ("<!-- bench -->", "<!-- /bench -->")
SHORT_LOAD, SHORT_METRICS = 0.85, ("p95_s",)
PICTURES = ROOT / "docs" / "img"
FAIR = tuple(contender.name for contender in (*PEERS, DEFAULT))
WITH_ROUTERS = (*FAIR[:-1], *ROUTERS, FAIR[-1])
DRAWN = (DEFAULT.name, "least outstanding", "weighted LO", FIFO.name)
PROBED = ("weighted LO", FIFO.name, "EDF", DEFAULT.name)
SWEPT_SEEDS = 2
WORKLOADS_ON = "hetero1"
COMMAND = "python -m benchmarks.policy"


def write_page(pool: Pool, seeds: Sequence[int], *, full: bool) -> Path:
    """Play the core table, and with `full` every other row; return where the page is."""
    pool.play(_everything(seeds, full=full))  # in one go, so that nobody idles where a row ends
    core = [standings(row, FAIR, seeds, pool) for row in CORE]
    routed = [standings(row, WITH_ROUTERS, seeds[:ROUTED_SEEDS], pool) for row in ROUTED]
    more = [standings(row, FAIR, seeds, pool) for row in FULL] if full else []
    sites = list(dict.fromkeys(row.site for row in CORE))
    found = capacities(_probes(sites), seeds, pool)
    of_sites = {standing.row.site: standing for standing in core}
    limits = {
        "upper bound": {site: _most(one.bounds) for site, one in of_sites.items()},
        "upper bound, fusing": {
            site: _most(one.fused_bounds) for site, one in of_sites.items() if one.fused_bounds
        },
    }
    pictures = [draw(site, pool, seeds[:SWEPT_SEEDS]) for site in sites]
    short = summary([one for one in core if one.row.load == SHORT_LOAD], SHORT_METRICS)
    parts = [
        _head(seeds),
        "## In short\n\n" + short,
        "## Summary\n\n" + summary(core),
        "## Capacity\n\n" + _on_capacity() + "\n\n" + capacity_table(found, limits),
        "## Latency against rate\n\n" + _on_pictures() + "\n\n" + "\n\n".join(pictures),
        "## Beside LiteLLM Router\n\n" + _on_routers() + "\n\n" + "\n\n".join(map(section, routed)),
        "## Core table\n\n" + "\n\n".join(map(section, core)),
    ]
    if more:
        parts.append("## Other rows\n\n" + summary(more) + "\n\n" + "\n\n".join(map(section, more)))
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    quote(short)
    return PAGE


def _everything(seeds: Sequence[int], *, full: bool) -> list[Playable]:
    """Return all that the page shows but the capacities: the longest first, then those of equal queries together."""
    routed = [task for row in ROUTED for task in tasks_of(row, WITH_ROUTERS, seeds[:ROUTED_SEEDS])]
    rows = (*CORE, *FULL) if full else CORE
    others = [task for row in rows for task in tasks_of(row, FAIR, seeds)]
    others += [task for row in SWEEP for task in _sweep_tasks(row, seeds[:SWEPT_SEEDS])]
    return [*routed, *sorted(others, key=queries_of)]


def quote(table: str) -> None:
    """Put a table of the page where the README has it."""
    before, _, rest = README.read_text(encoding="utf-8").partition(QUOTED[0])
    _, _, after = rest.partition(QUOTED[1])
    README.write_text(f"{before}{QUOTED[0]}\n{table}\n{QUOTED[1]}{after}", encoding="utf-8")


def draw(site: Site, pool: Pool, seeds: Sequence[int]) -> str:
    """Draw P95 against the rate on a site; return the picture as the page shows it."""
    swept = [row for row in SWEEP if row.site == site]
    tasks = [task for row in swept for task in _sweep_tasks(row, seeds)]
    found = dict(zip([task.key for task in tasks], pool.play(tasks), strict=True))
    series: dict[str, list[tuple[float, float]]] = {}
    for row in swept:
        for name in (*DRAWN, CLAIRVOYANT.name):
            played = [found[task.key]["p95_s"] for task in _sweep_tasks(row, seeds) if task.contender == name]
            series.setdefault(name, []).append((rate_of(row), mean(played)))
    path = PICTURES / f"{'-'.join(site)}.svg"
    path.parent.mkdir(exist_ok=True)
    title = f"{site[0]} on {site[1]}; load 1.0 is {tuned(site).rate:.3f} queries/s"
    y_title = "P95 latency of queries, s"
    latency_plot(path, series, x_title="queries/s", y_title=y_title, title=title, logarithmic=True)
    return f"![{title}]({path.relative_to(PAGE.parent)})"


def _sweep_tasks(row: Row, seeds: Iterable[int]) -> list[Task]:
    kept = tuned(row.site)
    settings = [(name, kept.dials_of(name, row.load)) for name in DRAWN]
    settings.append((CLAIRVOYANT.name, kept.ceiling(CLAIRVOYANT.name, row.load)["p95_s"]))
    return tasks_at(row, rate_of(row), settings, seeds)


def _probes(sites: Iterable[Site]) -> list[Probe]:
    probes: list[Probe] = []
    for site in sites:
        kept = tuned(site)
        probes += [Probe(site, name, kept.dials_of(name, 0.85)) for name in PROBED]
        probes += [Probe(site, name, kept.ceiling(name, 1.3)["slo_share"]) for name in kept.ceilings]
    return probes


def _most(bounds: Iterable[Bounds]) -> float:
    return max(bound.throughput for bound in bounds)


def section(standing: Standings) -> str:
    """Return a row as the page shows it."""
    rate = rate_of(standing.row)
    head = f"### {standing.row.name}"
    return f"{head}\n\n{rate:.4f} queries/s.\n\n{table(standing)}" if rate else f"{head}\n\n{table(standing)}"


def _head(seeds: Sequence[int]) -> str:
    return f"""# Benchmarks

Written by `{COMMAND} core`; every figure is exact and comes again. All queries, arrivals and engines are simulated
in virtual time ({len(seeds)} seeds a row, the same queries at the same times for everybody; 100 queries to warm up, 500
that count, more behind them so that the last ones see load too). The library's part is its real engine and policies.

- **Load 1.0** of a workload on a fleet is what FIFO behind the best of its limits completes when it always has
  queries waiting (`{COMMAND} tune`; kept in `benchmarks/policy/tuned.json` with everybody's dials, which were set on
  other queries at the load nearest to a row's). Few queries are within their SLO at 0.85 of that where it is much more
  than the capacity below.
- **Engines** batch continuously, chunk prefills and cache prefixes as vLLM does (`src/agentsched/sim/backend.py`), at
  speeds fitted to published stage times of Llama-3.1-70B at 4 bits on these cards: `python -m agentsched.sim.gpus`
  prints the fits with their residuals. "True speeds" are those of this model.
- **SLO**: four times the query's critical path on an idle fleet. Whoever goes by deadlines thus learns how long a query
  is.
- **Gap closed**: (strongest baseline - ours) / (strongest baseline - clairvoyant), with paired bootstrap intervals over
  the seeds (of percentiles: with five seeds they cover about 85 %); below 0 ours is worse than the strongest baseline.
  **Against it**: ours over the strongest baseline, which of several equal ones is the first of the list below; of
  latencies less is better, of the share in SLO more.
- **Lower bound**: no scheduler can have a lower mean latency on these queries (`benchmarks/policy/bounds.py`).
- Above load 1.0 the backlog grows for as long as queries come, at most {TAIL:.0%} more than count: latencies there are
  those of this horizon.
- Where contenders that differ in order have equal figures, no call ever waited behind their limits.
- Workloads: `benchmarks/policy/workloads`; their data and its licences: `benchmarks/data/README.md`. A query of each,
  on {WORKLOADS_ON} as far as time goes:

{workload_table(WORKLOADS, WORKLOADS_ON)}

{fleets_table(FLEETS)}

Who competes:

{contenders((*FAIR, *KNOWING))}

What the columns of the tables below hold:

{legend()}"""


def _on_capacity() -> str:
    return f"""The highest rate, in queries a second, at which {ENOUGH:.0%} of the queries of all seeds together are
within their SLO, by bisection between loads {LOWEST} and {HIGHEST}. No scheduler can complete such queries at more than
the upper bound for ever, late or not. Where no work is done twice there is nothing to fuse."""


def _on_pictures() -> str:
    loads = ", ".join(f"{load:g}" for load in sorted({row.load for row in SWEEP}))
    return f"""P95 latency at loads {loads}, {SWEPT_SEEDS} seeds. Dials are those of the nearer of the two loads that
they were set at, {" and ".join(map(str, LOADS))}: a line may step down where they change."""


def _on_routers() -> str:
    return (
        "The real package, 1.110, calls the same engines through its own clients, in virtual time. It is slow to play: "
        f"two small rows, {ROUTED_SEEDS} seeds, with its strategies `simple-shuffle`, `least-busy` and "
        "`latency-based-routing`."
    )
