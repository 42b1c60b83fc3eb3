"""What is claimed of a fleet one backend of which becomes slower, joins or leaves in mid-run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.policy.changes.draining import REMOVED
from benchmarks.policy.changes.joining import NEVER
from benchmarks.policy.changes.scene import LEARNS
from benchmarks.policy.changes.slowing import DEAF
from benchmarks.policy.changing import CHANGES, FIRST, LAST, Change
from benchmarks.policy.report.claim import P95, Claim, Found, Line, Players, best_of, seconds_of, values_of
from benchmarks.policy.report.stats import change
from benchmarks.policy.report.verdict import at_most
from benchmarks.policy.row import Row, rows
from benchmarks.policy.tuned import rate_of

CHANGING = rows(("text2sql", "mixed"), ("hetero1",), (0.7, 0.85))
BACKEND = "a100-1"
MOST = 0.10
BESIDE = {"slows": DEAF, "joins": NEVER, "drains": REMOVED}
"""Who is shown beside those who knew, by what happens."""


def _played(row: Row, what: str, who: str, seed: int) -> Change:
    return Change(row=row, seed=seed, rate=rate_of(row), what=what, backend=BACKEND, who=who)


def _name(what: str, who: str) -> str:
    return f"{what}: {who}"


def _players(row: Row) -> Players:
    return {
        _name(what, who): partial(_played, row, what, who) for what, whos in CHANGES.items() for who in whos
    }


def _judged(row: Row, found: Found) -> list[Line]:
    return [
        _line(row, what, {who: found[_name(what, who)] for who in whos}) for what, whos in CHANGES.items()
    ]


def _line(row: Row, what: str, found: Found) -> Line:
    beside = BESIDE[what]
    knew = [who for who in found if who not in (LEARNS, beside)]
    best = best_of(found, knew, P95)
    worse, other = (
        change(values_of(found, who, P95), values_of(found, best, P95)) for who in (LEARNS, beside)
    )
    shown = {who: seconds_of(found, who, P95) for who in found}
    shown[best] = f"**{shown[best]}**"
    lost = sum(sum(values_of(found, who, "lost")) for who in found)
    cells = [
        row.name,
        what,
        "; ".join(f"{who}: {shown[who]}" for who in knew),
        shown[LEARNS],
        f"{worse:+.1%}",
        f"{lost:g}",
        f"{beside}: {shown[beside]}, {other:+.1%}",
    ]
    verdict = at_most(worse, MOST)
    return Line(cells, verdict if not lost else replace(verdict, holds=False, sure=True))


CHANGE = Claim(
    name="change",
    says=f"When {BACKEND} becomes half as fast in mid-run, or joins, or is drained, nothing is lost, and P95 of calls "
    f"{FIRST} to {LAST:,} after that is at most {MOST:.0%} above what it is when the policy knew.",
    notes="""P95 latency of calls in seconds, of those made since the change, in order. The best of those who knew, in
bold, is what agentsched is held against. Lost are queries that were not completed, of all that arrived, whoever
played; once the calls that count are over no more arrive, and the rest is played to its end.

*Slows*: calls in flight go on, at half the speed. Who knew has, from that moment on, what would have been learned of
an engine that always was half as fast, and goes on learning from there or does not. Beside: who never hears of the
change and keeps to what was learned before.

*Joins*: the row begins without the backend, so that more arrives than the others can do, and work has piled up when it
comes; load is as a share of what the whole fleet can do. Who knew has, at its first call, what was learned of it by
then in a run of the same queries in which it was there from the start (speeds with their full weight, its budget, how
long calls stay), and goes on learning or does not; or the part of that which a profile keeps. The newcomer's prefix
cache is empty for all. Beside: the fleet that it never joins.

*Drains*: the others have to do what it did, which at load 0.85 is more than they can. A drain leaves nothing to be
learned, so who knew acted before it: from the start no call was given to the backend that would still run there then,
by the policy's own estimate of the call's time there; or it was drained a minute sooner. (Giving it more than usual in
its last minute, as what is done there later costs nobody, was tried too, and is no better.) Beside: it is removed
instead, and its calls go on elsewhere.

What is shown beside is information. Where that is within the bar too, the claim asks little.""",
    rows=CHANGING,
    head=("row", BACKEND, "who knew", "agentsched", "change", "lost", "beside"),
    players=_players,
    judged=_judged,
)
