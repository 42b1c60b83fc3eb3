"""Tables say what was found: who is strongest, how much of the gap is closed, what nobody can beat."""

from dataclasses import replace
from math import inf

import pytest
from benchmarks.policy.bounds import Bounds
from benchmarks.policy.capacity import Probe
from benchmarks.policy.report.page import WHO, capacity_table, contenders, summary, table
from benchmarks.policy.report.standings import KNOWING, Standings
from benchmarks.policy.routers import ROUTERS
from benchmarks.policy.row import CORE, FULL, ROUTED, SWEEP, Row

from agentsched.sim.report import METRICS

ROW = Row(workload="w", fleet="f", load=0.85)


def figures(mean_s: float, slo_share: float = 0.5) -> dict[str, float]:
    return {**dict.fromkeys(METRICS, 1.0), "mean_s": mean_s, "p95_s": 2 * mean_s, "slo_share": slo_share}


def bound(path_s: float, pool_s: float) -> Bounds:
    return Bounds(path_s=path_s, pool_s=pool_s, makespan_s=9.0, throughput=1.0)


def standing() -> Standings:
    return Standings(
        row=ROW,
        seeds=range(2),
        figures={
            "round robin": [figures(20.0, 0.4), figures(24.0, 0.4)],
            "FIFO + limit": [figures(10.0, 0.6), figures(12.0, 0.6)],
            "agentsched": [figures(8.0, 0.7), figures(9.6, 0.7)],
        },
        ceilings={
            "clairvoyant": [
                [figures(6.0, 0.7), figures(7.2, 0.7)],
                [figures(7.0, 0.8), figures(8.0, 0.8)],
            ]
        },
        bounds=[bound(1.0, 3.0), bound(4.0, 3.0)],
    )


def lines_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_the_ceiling_of_each_metric_is_by_the_dials_that_are_best_for_it() -> None:
    found = standing()
    assert found.values("clairvoyant", "mean_s") == [6.0, 7.2]
    assert found.values("clairvoyant", "slo_share") == [0.8, 0.8]
    assert found.strongest("mean_s", ["round robin", "FIFO + limit"]) == "FIFO + limit"
    assert found.strongest("slo_share", ["round robin", "FIFO + limit"]) == "FIFO + limit"
    assert found.spread("round robin", "mean_s") == 2.0


def test_the_summary_compares_with_the_strongest_baseline() -> None:
    by_metric = {line[1]: line for line in lines_of(summary([standing()]))}
    assert by_metric["mean"] == [
        "w / f / load 0.85",
        "mean",
        "FIFO + limit: 11.00",
        "8.80",
        "6.60",
        "-20.0% (-20.0% to -20.0%)",
        "50% (50% to 50%)",
    ]
    assert by_metric["in SLO"][-1] == "50% (50% to 50%)"
    assert by_metric["slowdown"][-1] == "no gap worth 2 %"


def test_a_share_of_nothing_is_not_shown() -> None:
    found = standing()
    nobody = replace(found, figures={name: [figures(1.0, 0.0)] * 2 for name in found.figures})
    by_metric = {line[1]: line for line in lines_of(summary([nobody]))}
    assert by_metric["in SLO"][-2] == "baseline near 0"


def test_the_table_has_everybody_and_the_bound() -> None:
    lines = lines_of(table(standing()))
    assert [line[0] for line in lines[2:]] == [
        "round robin",
        "FIFO + limit",
        "agentsched",
        "clairvoyant",
        "*lower bound*",
    ]
    assert lines[0][1:] == [metric.title for metric in METRICS.values()]
    assert lines[-1][1] == "3.50"  # the better bound of each seed: 3 and 4
    assert {len(line) for line in lines} == {1 + len(METRICS)}


def test_capacities() -> None:
    site = ("w", "f")
    found = {Probe(site, "good", ()): 0.5, Probe(site, "hopeless", ()): 0.0, Probe(site, "great", ()): inf}
    lines = lines_of(capacity_table(found, {"upper bound": {site: 1.25}, "of nothing": {}}))
    assert lines == [
        ["", "w/f"],
        ["---", "---"],
        ["good", "0.5000"],
        ["hopeless", "below all tried"],
        ["great", "above all tried"],
        ["*upper bound*", "1.2500"],
        ["*of nothing*", ""],
    ]


def test_everybody_is_introduced() -> None:
    from benchmarks.policy.cast import COMPETING

    assert set(WHO) == {*(contender.name for contender in COMPETING), *ROUTERS}
    assert contenders(list(KNOWING)).count("\n") == 1


def test_rows_have_names_of_their_own() -> None:
    rows = [*CORE, *FULL, *ROUTED]
    assert len({row.name for row in rows}) == len(rows) == len(set(rows))
    assert set(CORE) <= set(SWEEP)
    assert len(CORE) == 24
    assert all(row.queries >= 500 for row in CORE)


@pytest.mark.parametrize("row", [*CORE, *FULL, *ROUTED], ids=lambda row: row.name)
def test_rows_name_what_there_is(row: Row) -> None:
    from benchmarks.policy.row import CLOSED
    from benchmarks.policy.traffic import ARRIVALS
    from benchmarks.policy.workloads import WORKLOADS

    from agentsched.sim.gpus import FLEETS

    assert row.workload in WORKLOADS
    assert row.fleet in FLEETS
    assert row.arrivals in {*ARRIVALS, CLOSED}
