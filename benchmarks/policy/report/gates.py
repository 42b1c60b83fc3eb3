"""`docs/gates.md`: what is claimed of the default policy, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.policy.changing import Change
from benchmarks.policy.idling import Idle
from benchmarks.policy.pool import ROOT, Playable, Pool
from benchmarks.policy.report.claim import Claim, Found, Line
from benchmarks.policy.report.claims import CLAIMS
from benchmarks.policy.report.stats import COVERED
from benchmarks.policy.row import Row
from benchmarks.policy.task import Task, queries_of

PAGE = ROOT / "docs" / "gates.md"
COMMAND = "python -m benchmarks.policy gates"
SEEDS = 10
TALLY = ("| claim | holds in | verdict |", "|---|---|---|")


class OtherSeeds(ValueError):
    """A page that was written from more or fewer seeds."""


@dataclass(frozen=True, slots=True)
class Part:
    """What the page says of one claim: its row in the table of all, and its section."""

    row: str
    section: str


def write_gates(pool: Pool, seeds: Sequence[int], claims: Sequence[Claim] = CLAIMS, path: Path = PAGE) -> str:
    """Play what the claims need, write the page, and return it; what it says of other claims stays.

    Raises:
        OtherSeeds: if it says something of other claims by more or fewer seeds.
    """
    new = [claim.name for claim in claims]
    old = {} if len(new) == len(CLAIMS) else _read(path.read_text(encoding="utf-8"), seeds)
    parts = old | dict(zip(new, _parts(claims, pool, seeds), strict=True))
    text = _page([parts[claim.name] for claim in CLAIMS if claim.name in parts], seeds)
    path.write_text(text + "\n", encoding="utf-8")
    return text


def page(claims: Sequence[Claim], pool: Pool, seeds: Sequence[int]) -> str:
    """Return some claims with what was found."""
    return _page(_parts(claims, pool, seeds), seeds)


def _page(parts: Sequence[Part], seeds: Sequence[int]) -> str:
    tally = "\n".join([*TALLY, *(part.row for part in parts)])
    return "\n\n".join([_head(seeds), tally, *(part.section for part in parts)])


def _parts(claims: Sequence[Claim], pool: Pool, seeds: Sequence[int]) -> list[Part]:
    pool.play(_everything(claims, seeds))
    judged = [(claim, _lines(claim, pool, seeds)) for claim in claims]
    return [Part(_tally(claim, lines), _section(claim, lines)) for claim, lines in judged]


def _read(text: str, seeds: Sequence[int]) -> dict[str, Part]:
    """Return what a page says, by claim."""
    head, *sections = text.rstrip("\n").split("\n\n## ")
    if _seeds(seeds) not in head:
        raise OtherSeeds(
            f"the page does not say {_seeds(seeds)}: write all of it, or with as many as it says"
        )
    rows = {line[2:].partition(":")[0]: line for line in head.splitlines() if line.startswith("| ")}
    named = {section.partition("\n")[0]: f"## {section}" for section in sections}
    return {name: Part(rows[name], section) for name, section in named.items()}


def _everything(claims: Iterable[Claim], seeds: Sequence[int]) -> list[Playable]:
    """Return all that has to be played, those of equal queries together."""
    tasks = {task.key: task for claim in claims for task in claim.tasks(seeds)}
    return sorted(tasks.values(), key=_together)


def _together(task: Playable) -> tuple[str, int]:
    assert isinstance(task, (Task, Change, Idle)), "claims are about rows"
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


def _tally(claim: Claim, lines: Iterable[Line]) -> str:
    verdicts = [line.verdict for line in lines if line.verdict is not None]
    held = sum(verdict.holds for verdict in verdicts)
    whole = "holds" if held == len(verdicts) else "missed"
    return f"| {claim.name}: {claim.says} | {held} of {len(verdicts)} | {whole} |"


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seeds a row"


def _head(seeds: Sequence[int]) -> str:
    return f"""# Gates

Written by `{COMMAND}`: what is claimed of `Policy.fcfs()`, and whether it holds.
Rows, contenders and their dials are those of [the benchmarks](benchmarks.md); {_seeds(seeds)}, the same
queries at the same times for everybody. In brackets are paired bootstrap intervals over the seeds ({COVERED:.0%} of
the resamples; with ten seeds they cover about 90 %). A claim holds if the value itself is on the right side of the
bar, unless the whole interval has to be; "not for sure" says that the interval lies on both sides. Changes are ratios
of means over the seeds."""
