"""What is claimed of the default policy, what has to be played to see whether it holds, and whether it does."""

from __future__ import annotations

from functools import partial

from agentsched.sim.report import METRICS
from benchmarks.policy.clairvoyant import CLAIRVOYANT
from benchmarks.policy.contender import Dials
from benchmarks.policy.lies import LIES, NOTHING
from benchmarks.policy.ours import DEFAULT, WITHOUT
from benchmarks.policy.peers import EXPONENTS
from benchmarks.policy.report.changed import CHANGE
from benchmarks.policy.report.claim import (
    HEAVY,
    MEAN,
    P95,
    Claim,
    Found,
    Line,
    Players,
    best_of,
    seconds_of,
    values_of,
)
from benchmarks.policy.report.idle import IDLE
from benchmarks.policy.report.standings import ceilings_of
from benchmarks.policy.report.stats import change, gap_closed
from benchmarks.policy.report.verdict import above, at_least, at_most
from benchmarks.policy.row import CORE_WORKLOADS, ROUTED, Row, rows
from benchmarks.policy.task import Task
from benchmarks.policy.tuned import rate_of, tuned

LIGHT = rows(CORE_WORKLOADS, ("hetero1",), (0.3,))
ROUTED_TOO = tuple(row for row in ROUTED if row.workload in {one.workload for one in HEAVY})

LEAST_BUSY = "LiteLLM least-busy"
WEIGHTED = "weighted LO"
IN_ORDER = ("round robin", "least outstanding", WEIGHTED, "FIFO + limit")
"""The fair contenders that serve first what came first."""

ENOUGH_CLOSED = 0.5
LIGHT_MOST, LIES_MOST = 0.01, 0.05
UNCLAIMED = ("patience",)


def _task(row: Row, name: str, dials: Dials, seed: int) -> Task:
    return Task(contender=name, dials=dials, row=row, seed=seed, rate=rate_of(row))


def _as_tuned(row: Row, *names: str) -> Players:
    kept = tuned(row.site)
    return {name: partial(_task, row, name, kept.dials_of(name, row.load)) for name in names}


# -- the gap closed ------------------------------------------------------------------------------------------


def _gap_players(row: Row) -> Players:
    routed = (LEAST_BUSY,) if row in ROUTED else ()
    knowing = {
        f"{CLAIRVOYANT.name} {dials}": partial(_task, row, CLAIRVOYANT.name, dials)
        for dials in ceilings_of(row, CLAIRVOYANT.name)
    }
    return {**_as_tuned(row, *IN_ORDER, *routed, DEFAULT.name), **knowing}


def _gap_judged(row: Row, found: Found) -> list[Line]:
    fair = [name for name in (*IN_ORDER, LEAST_BUSY) if name in found]
    strongest = best_of(found, fair, P95)
    knowing = best_of(found, [name for name in found if name.startswith(CLAIRVOYANT.name)], P95)
    ours, base, ceiling = (values_of(found, name, P95) for name in (DEFAULT.name, strongest, knowing))
    closed = gap_closed(ours, base, ceiling, sign=1)
    shown = {name: seconds_of(found, name, P95) for name in fair}
    shown[strongest] = f"**{shown[strongest]}**"
    cells = [
        row.name,
        *(shown.get(name, "left out") for name in (*IN_ORDER, LEAST_BUSY)),
        seconds_of(found, DEFAULT.name, P95),
        seconds_of(found, knowing, P95),
        closed if isinstance(closed, str) else f"{closed:.0%}",
    ]
    return [Line(cells, at_least(closed, ENOUGH_CLOSED))]


GAP = Claim(
    name="gap",
    says=f"At least {ENOUGH_CLOSED:.0%} of the gap in P95 between the strongest baseline and clairvoyant is closed.",
    notes="""P95 latency of queries in seconds. Baselines are those who serve first what came first, as the policy
does; the strongest is in bold. LiteLLM Router is a hundred times as slow to play as a policy: it plays on the small
row of 150 queries alone, and is left out elsewhere. Clairvoyant does not fuse; it has the best of its settings
there.""",
    rows=(*HEAVY, *ROUTED_TOO),
    head=("row", *IN_ORDER, LEAST_BUSY, "agentsched", "clairvoyant", "gap closed"),
    players=_gap_players,
    judged=_gap_judged,
)


# -- what the parts are worth --------------------------------------------------------------------------------


def _without(part: str) -> str:
    return f"{DEFAULT.name} without {part}"


def _parts_judged(row: Row, found: Found) -> list[Line]:
    return [_part_judged(row, found, part) for part in WITHOUT]


def _part_judged(row: Row, found: Found, part: str) -> Line:
    worse = {
        metric: change(values_of(found, _without(part), metric), values_of(found, DEFAULT.name, metric))
        for metric in (P95, MEAN)
    }
    cells = [
        row.name,
        part,
        seconds_of(found, DEFAULT.name, P95),
        seconds_of(found, _without(part), P95),
        f"{worse[P95]:+.1%}",
        f"{worse[MEAN]:+.1%}",
    ]
    return Line(cells, None if part in UNCLAIMED else above(worse[P95], 0.0))


PARTS = Claim(
    name="parts",
    says="Each part of the policy is worth something: without it alone P95 is worse, the whole interval above 0.",
    notes="P95 latency of queries in seconds, with all parts and without the one. Patience is shown, not claimed.",
    rows=HEAVY,
    head=("row", "without", "P95 with it", "P95 without", "change of P95", "change of mean"),
    players=lambda row: _as_tuned(row, DEFAULT.name, *map(_without, WITHOUT)),
    judged=_parts_judged,
)


# -- where there is nothing to hold back ---------------------------------------------------------------------


def _weighted(dials: Dials) -> str:
    return f"{WEIGHTED}, power {dials[0]}"


def _power_of(name: str) -> str:
    return name.removeprefix(f"{WEIGHTED}, ")


def _light_players(row: Row) -> Players:
    others = {_weighted(dials): partial(_task, row, WEIGHTED, dials) for dials in EXPONENTS}
    return {**_as_tuned(row, DEFAULT.name), **others}


def _light_judged(row: Row, found: Found) -> list[Line]:
    as_tuned = _weighted(tuned(row.site).dials_of(WEIGHTED, row.load))
    lines: list[Line] = []
    for metric in (P95, MEAN):
        best = best_of(found, map(_weighted, EXPONENTS), metric)
        ours = values_of(found, DEFAULT.name, metric)
        worse = change(ours, values_of(found, as_tuned, metric))
        cells = [
            row.name,
            METRICS[metric].title,
            f"{seconds_of(found, as_tuned, metric)} ({_power_of(as_tuned)})",
            seconds_of(found, DEFAULT.name, metric),
            f"{worse:+.1%}",
            f"{_power_of(best)}: {change(ours, values_of(found, best, metric)):+.1%}",
        ]
        lines.append(Line(cells, at_most(worse, LIGHT_MOST)))
    return lines


LIGHT_LOAD = Claim(
    name="light",
    says=f"At load 0.3 P95 and mean are at most {LIGHT_MOST:.0%} worse than with weighted least outstanding, "
    "released at once by true speeds.",
    notes="""Latency of queries in seconds. Weighted least outstanding counts each unanswered call with the seconds
per call of its backend, true ones, to a power that was tuned on other queries at the nearest load. The last column
is information: how agentsched stands beside the power that is best on the very row, chosen with its figures known.""",
    rows=LIGHT,
    head=("row", "metric", "weighted LO", "agentsched", "change", "beside the best power"),
    players=_light_players,
    judged=_light_judged,
)


# -- wrong metrics -------------------------------------------------------------------------------------------


def _lied_to(lie: str) -> str:
    return f"{DEFAULT.name}, {lie}"


def _metrics_judged(row: Row, found: Found) -> list[Line]:
    lines: list[Line] = []
    for lie in LIES:
        worse = {
            metric: change(values_of(found, _lied_to(lie), metric), values_of(found, DEFAULT.name, metric))
            for metric in (P95, MEAN)
        }
        right, wrong = (seconds_of(found, name, P95) for name in (DEFAULT.name, _lied_to(lie)))
        harm = change(values_of(found, _lied_to(lie), P95), values_of(found, _lied_to(NOTHING), P95))
        cells = [row.name, lie, right, wrong, f"{worse[P95]:+.1%}", f"{worse[MEAN]:+.1%}"]
        cells.append("" if lie == NOTHING else f"{harm:+.1%}")
        lines.append(Line(cells, None if lie == NOTHING else at_most(worse[P95], LIES_MOST)))
    return lines


METRICS_WRONG = Claim(
    name="metrics",
    says=f"With wrong metrics P95 is at most {LIES_MOST:.0%} worse than with right ones.",
    notes="""P95 latency of queries in seconds. All engines of the fleet lie alike: they say their first answer for
ever; that nothing runs or waits and no memory is used; that all memory is used; that there is half of the memory, or
four times as much. Who says nothing does not lie: that is shown, not claimed, since it says what right metrics are
worth. The last column is information too: what it costs to be lied to beside not being told at all.""",
    rows=HEAVY,
    head=(
        "row",
        "said",
        "P95 told right",
        "P95 told this",
        "change of P95",
        "change of mean",
        "beside no metrics",
    ),
    players=lambda row: _as_tuned(row, DEFAULT.name, *map(_lied_to, LIES)),
    judged=_metrics_judged,
)


CLAIMS = (GAP, PARTS, LIGHT_LOAD, METRICS_WRONG, CHANGE, IDLE)
