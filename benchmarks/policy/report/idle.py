"""What is claimed of engines that have room while calls wait."""

from __future__ import annotations

from functools import partial

from agentsched.sim.report import mean
from benchmarks.policy.idling import Idle
from benchmarks.policy.report.claim import Claim, Found, Line, Players, values_of
from benchmarks.policy.report.verdict import Verdict
from benchmarks.policy.row import Row, rows
from benchmarks.policy.tuned import rate_of

PATIENCE = {"without patience": 0.0, "as it comes": 0.25}
CLAIMED = "without patience"
SHARES = ("waited", "idle", "room", "whole")


def _idle(row: Row, patience: float, seed: int) -> Idle:
    return Idle(row=row, seed=seed, rate=rate_of(row), patience=patience)


def _players(row: Row) -> Players:
    return {who: partial(_idle, row, patience) for who, patience in PATIENCE.items()}


def _judged(row: Row, found: Found) -> list[Line]:
    lines: list[Line] = []
    for who in PATIENCE:
        shares = [f"{mean(values_of(found, who, share)):.2%}" for share in SHARES]
        idle = max(values_of(found, who, "idle"))
        lines.append(Line([row.name, who, *shares], Verdict(idle == 0.0) if who == CLAIMED else None))
    return lines


IDLE = Claim(
    name="idle",
    says="Without patience, no engine stands idle while a call waits that may go there.",
    notes="""By what engines really hold, looked at whenever something has happened, until the queries that count are
over. In the first column of shares: of the time, in which a call waited at all. The others are shares of the
engine-seconds with something to do, for which the engine could have had one of the first calls of a lane: with nothing
in it; with no call waiting there for its seat, a seat, and memory for the call's prompt and answer; and memory to write
all that runs there to its end besides. With patience a call may wait for a much better engine than one that is idle:
that is shown, not claimed, as is what room was left. To fill it gains nothing: an engine is aimed at nine tenths of its
memory, and with more P95 is worse (ADR 0005).""",
    rows=rows(("text2sql", "mixed"), ("hetero1",), (0.85, 1.3, 2.0)),
    head=("row", "patience", "a call waited", "idle", "room", "room to the end"),
    players=_players,
    judged=_judged,
)
