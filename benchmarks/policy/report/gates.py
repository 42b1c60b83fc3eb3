"""`docs/gates.md`: what is claimed of the default policy, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.policy.changing import Change
from benchmarks.policy.pool import ROOT, Playable, Pool
from benchmarks.policy.report.claims import CLAIMS, Claim, Found, Line
from benchmarks.policy.report.stats import COVERED
from benchmarks.policy.row import Row
from benchmarks.policy.task import Task, queries_of

PAGE = ROOT / "docs" / "gates.md"
COMMAND = "python -m benchmarks.policy gates"
SEEDS = 10


def write_gates(pool: Pool, seeds: Sequence[int], path: Path = PAGE) -> str:
    """Play what the claims need, write the page, and return it."""
    text = page(CLAIMS, pool, seeds)
    path.write_text(text + "\n", encoding="utf-8")
    return text


def page(claims: Sequence[Claim], pool: Pool, seeds: Sequence[int]) -> str:
    """Return some claims with what was found."""
    pool.play(_everything(claims, seeds))
    judged = [(claim, _lines(claim, pool, seeds)) for claim in claims]
    sections = [_section(claim, lines) for claim, lines in judged]
    return "\n\n".join([_head(seeds), _tally(judged), *sections])


def _everything(claims: Iterable[Claim], seeds: Sequence[int]) -> list[Playable]:
    """Return all that has to be played, those of equal queries together."""
    tasks = {task.key: task for claim in claims for task in claim.tasks(seeds)}
    return sorted(tasks.values(), key=_together)


def _together(task: Playable) -> tuple[str, int]:
    assert isinstance(task, (Task, Change)), "claims are about rows"
    return queries_of(task)


def _lines(claim: Claim, pool: Pool, seeds: Sequence[int]) -> list[Line]:
    return [line for row in claim.rows for line in claim.judged(row, _found(claim, row, pool, seeds))]


def _found(claim: Claim, row: Row, pool: Pool, seeds: Sequence[int]) -> Found:
    return {who: pool.play([make(seed) for seed in seeds]) for who, make in claim.players(row).items()}


def _section(claim: Claim, lines: Iterable[Line]) -> str:
    table = [f"| {' | '.join(claim.head)} | verdict |", f"|{'---|' * (len(claim.head) + 1)}"]
    for line in lines:
        verdict = "" if line.verdict is None else str(line.verdict)
        table.append(f"| {' | '.join(line.cells)} | {verdict} |")
    return "\n\n".join(
        [f"## {claim.name}", claim.says, claim.notes, f"`{COMMAND} {claim.name}`", "\n".join(table)]
    )


def _tally(judged: Iterable[tuple[Claim, Sequence[Line]]]) -> str:
    table = ["| claim | holds in | verdict |", "|---|---|---|"]
    for claim, lines in judged:
        verdicts = [line.verdict for line in lines if line.verdict is not None]
        held = sum(verdict.holds for verdict in verdicts)
        whole = "holds" if held == len(verdicts) else "missed"
        table.append(f"| {claim.name}: {claim.says} | {held} of {len(verdicts)} | {whole} |")
    return "\n".join(table)


def _head(seeds: Sequence[int]) -> str:
    return f"""# Gates

Written by `{COMMAND}`: what is claimed of `Policy.fcfs()`, and whether it holds.
Rows, contenders and their dials are those of [the benchmarks](benchmarks.md); {len(seeds)} seeds a row, the same
queries at the same times for everybody. In brackets are paired bootstrap intervals over the seeds ({COVERED:.0%} of
the resamples; with ten seeds they cover about 90 %). A claim holds if the value itself is on the right side of the
bar, unless the whole interval has to be; "not for sure" says that the interval lies on both sides. Changes are ratios
of means over the seeds."""
