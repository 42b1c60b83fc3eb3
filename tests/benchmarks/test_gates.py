"""Claims are judged by what was found, and what is found for them is what they are about."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path

import pytest
from benchmarks.policy.cast import CAST
from benchmarks.policy.changing import CHANGES, Change
from benchmarks.policy.idling import Idle
from benchmarks.policy.lies import LIES, Frozen, Lying, full, idle, silent, sized, told
from benchmarks.policy.ours import DEFAULT, WITHOUT
from benchmarks.policy.play import play
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.report.claim import Claim, Line
from benchmarks.policy.report.claims import CHANGE, CLAIMS, GAP, IDLE, LIGHT_LOAD, METRICS_WRONG, PARTS
from benchmarks.policy.report.gates import OtherSeeds, page, write_gates
from benchmarks.policy.report.stats import NO_GAP, Interval
from benchmarks.policy.report.verdict import Verdict, above, at_least, at_most
from benchmarks.policy.routers import ROUTERS
from benchmarks.policy.row import ROUTED, Row
from benchmarks.policy.task import Task

from agentsched.engine.events import Finished
from agentsched.model import Signals
from agentsched.sim.plan import Node
from agentsched.sim.player import Player
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec

SMALL = Row(workload="chat", fleet="pair", load=1.0, warm_up=10, queries=30)


# -- verdicts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(0.6, 0.55, 0.7), "holds"),
        (Interval(0.5, 0.5, 0.7), "holds"),
        (Interval(0.6, 0.4, 0.7), "holds, not for sure"),
        (Interval(0.4, 0.3, 0.45), "missed"),
        (Interval(0.4, 0.3, 0.5), "missed, not for sure"),
        (Interval(nan, nan, nan), "missed, not for sure"),
        (NO_GAP, "missed"),
    ],
)
def test_at_least(found: Interval | str, verdict: str) -> None:
    assert str(at_least(found, 0.5)) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(-0.2, -0.3, 0.01), "holds"),
        (Interval(0.01, 0.0, 0.01), "holds"),
        (Interval(0.0, -0.02, 0.02), "holds, not for sure"),
        (Interval(0.02, 0.015, 0.03), "missed"),
        (Interval(0.02, 0.01, 0.03), "missed, not for sure"),
        (Interval(inf, nan, nan), "missed, not for sure"),
    ],
)
def test_at_most(found: Interval, verdict: str) -> None:
    assert str(at_most(found, 0.01)) == verdict


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (Interval(0.05, 0.01, 0.09), True),
        (Interval(0.05, 0.0, 0.09), False),
        (Interval(0.05, -0.01, 0.09), False),
        (Interval(-0.05, -0.09, -0.01), False),
        (Interval(nan, nan, nan), False),
    ],
)
def test_the_whole_interval_has_to_be_above(found: Interval, holds: bool) -> None:
    assert above(found, 0.0) == Verdict(holds)


# -- claims, on figures that were made up --------------------------------------------------------------------


def found_of(claim: Claim, row: Row, p95s: Mapping[str, Sequence[float]]) -> dict[str, list[Figures]]:
    """Return figures of everybody whom a claim wants on a row; who is not named has those of `else`."""
    by_name = {name: p95s.get(name.split(" (")[0], p95s["else"]) for name in claim.players(row)}
    return {name: [{"p95_s": p95, "mean_s": p95 / 2} for p95 in values] for name, values in by_name.items()}


def judged(claim: Claim, row: Row, p95s: Mapping[str, Sequence[float]]) -> list[Line]:
    assert {name for name in p95s if name != "else"} <= {name.split(" (")[0] for name in claim.players(row)}
    return claim.judged(row, found_of(claim, row, p95s))


@pytest.mark.parametrize(
    ("ours", "closed", "verdict"),
    [
        ([7.0, 14.0, 21.0], "75% (75% to 75%)", "holds"),
        ([9.0, 18.0, 27.0], "25% (25% to 25%)", "missed"),
        ([11.0, 22.0, 33.0], "-25% (-25% to -25%)", "missed"),
    ],
)
def test_the_gap_is_that_of_the_strongest(ours: list[float], closed: str, verdict: str) -> None:
    p95s = {
        "agentsched": ours,
        "FIFO + limit": [10.0, 20.0, 30.0],
        "clairvoyant": [6.0, 12.0, 18.0],
        "else": [11.0, 21.0, 31.0],
    }
    (line,) = judged(GAP, GAP.rows[0], p95s)
    assert line.cells[1:] == ["21.00", "21.00", "21.00", "**20.00**", "left out", *line.cells[6:]]
    assert (line.cells[-1], str(line.verdict)) == (closed, verdict)


def test_a_router_is_a_baseline_where_it_plays() -> None:
    routed = [row for row in GAP.rows if row in ROUTED]
    assert [row.workload for row in routed] == ["mixed"]
    values = {"agentsched": [9.0, 9.0], "LiteLLM least-busy": [10.0, 10.0], "clairvoyant": [6.0, 6.0]}
    (line,) = judged(GAP, routed[0], {**values, "else": [11.0, 11.0]})
    assert "**10.00**" in line.cells
    assert str(line.verdict) == "missed"


def test_without_a_gap_the_claim_is_missed() -> None:
    (line,) = judged(GAP, GAP.rows[0], {"clairvoyant": [9.9, 9.9], "else": [10.0, 10.0]})
    assert (line.cells[-1], str(line.verdict)) == (NO_GAP, "missed")


def test_a_part_is_worth_something_if_the_whole_interval_says_so() -> None:
    p95s = {
        "agentsched without learned speeds": [11.0, 22.0, 31.0],
        "agentsched without release control": [10.0, 20.0, 31.0],  # the interval ends at 0
        "agentsched without interference": [9.0, 19.0, 29.0],
        "agentsched without affinity": [9.0, 25.0, 30.0],
        "agentsched without patience": [11.0, 22.0, 31.0],
        "else": [10.0, 20.0, 30.0],
    }
    lines = judged(PARTS, PARTS.rows[0], p95s)
    assert {line.cells[1]: str(line.verdict) for line in lines} == {
        "learned speeds": "holds",
        "release control": "missed",
        "interference": "missed",
        "affinity": "missed",
        "patience": "None",
    }
    assert lines[1].cells[4].startswith("+1.7% (+0.0% to ")


def test_a_light_load_is_held_against_the_dials_as_they_were_tuned() -> None:
    p95s = {"agentsched": [10.0, 10.05], "weighted LO, power 2.0": [9.0, 9.0], "else": [10.0, 10.0]}
    (rag,) = (row for row in LIGHT_LOAD.rows if row.workload == "rag")
    lines = judged(LIGHT_LOAD, rag, p95s)
    assert [line.cells[1] for line in lines] == ["P95", "mean"]
    for line in lines:
        assert "power 0.5" in line.cells[2]
        assert line.cells[5].startswith("power 2.0: +11.4%")
        assert str(line.verdict) == "holds"
    p95s["agentsched"] = [10.2, 10.3]
    assert [str(line.verdict) for line in judged(LIGHT_LOAD, rag, p95s)] == ["missed", "missed"]


def test_lies_are_held_against_the_truth() -> None:
    p95s = {
        "agentsched, no metrics": [20.0, 20.0],
        "agentsched, frozen metrics": [10.6, 10.6],
        "agentsched, full metrics": [10.4, 10.5],
        "else": [10.0, 10.0],
    }
    lines = judged(METRICS_WRONG, METRICS_WRONG.rows[0], p95s)
    assert [line.cells[1] for line in lines if str(line.verdict) == "missed"] == ["frozen metrics"]
    assert len(lines) == len(LIES)
    silence, frozen, *_ = lines
    assert (silence.cells[4].split()[0], silence.cells[-1], silence.verdict) == ("+100.0%", "", None)
    assert frozen.cells[-1] == "-47.0% (-47.0% to -47.0%)"


def found_of_changes(lost: float = 0.0, **p95s: Sequence[float]) -> dict[str, list[Figures]]:
    """Return figures of everybody in every change, by who knows what; others have those of `others`."""
    return {
        name: [{"p95_s": p95, "lost": lost} for p95 in p95s.get(who, p95s["others"])]
        for name in CHANGE.players(CHANGE.rows[0])
        for who in [name.split(": ")[1].replace(" ", "_").replace(",", "")]
    }


def test_a_change_is_held_against_the_best_who_knew() -> None:
    found = found_of_changes(
        learns=[10.5, 10.5], knew=[9.0, 9.0], never_hears=[12.0, 12.0], others=[11.0, 11.0]
    )
    slows, joins, drains = CHANGE.judged(CHANGE.rows[0], found)
    assert [line.cells[1] for line in (slows, joins, drains)] == ["slows", "joins", "drains"]
    assert slows.cells[2] == "knew: **9.00**; knew, learns no more: 11.00"
    assert slows.cells[-1] == "never hears: 12.00, +33.3% (+33.3% to +33.3%)"
    assert {str(line.verdict) for line in (slows, joins, drains)} == {"missed"}
    assert joins.cells[2].endswith("; begins with a profile: 11.00")
    assert drains.cells[-1].startswith("removed, not drained: 11.00, ")
    found = found_of_changes(learns=[9.8, 9.8], knew=[9.0, 9.0], others=[8.95, 8.95])
    slows, _, _ = CHANGE.judged(CHANGE.rows[0], found)
    assert slows.cells[2] == "knew: 9.00; knew, learns no more: **8.95**"
    assert str(slows.verdict) == "holds"


def test_what_is_lost_is_a_miss_however_quick_the_rest_was() -> None:
    lines = CHANGE.judged(CHANGE.rows[0], found_of_changes(learns=[8.0, 8.0], others=[9.0, 9.0], lost=1.0))
    assert {str(line.verdict) for line in lines} == {"missed"}
    assert lines[0].cells[5] == "8"


def test_not_one_seed_may_stand_idle_without_patience() -> None:
    never = {"waited": 0.5, "idle": 0.0, "room": 0.25, "whole": 0.125}
    once = {**never, "idle": 0.001}
    lines = IDLE.judged(IDLE.rows[0], {"without patience": [never, never], "as it comes": [once, once]})
    assert [line.cells[1:] for line in lines] == [
        ["without patience", "50.00%", "0.00%", "25.00%", "12.50%"],
        ["as it comes", "50.00%", "0.10%", "25.00%", "12.50%"],
    ]
    assert [str(line.verdict) for line in lines] == ["holds", "None"]
    lines = IDLE.judged(IDLE.rows[0], {"without patience": [never, once], "as it comes": [once, once]})
    assert [str(line.verdict) for line in lines] == ["missed", "None"]


# -- the page ------------------------------------------------------------------------------------------------


class Equals:
    """Plays nothing: everybody is as good as everybody."""

    def __init__(self, p95_s: float = 2.0) -> None:
        self.asked: dict[str, Playable] = {}
        self.p95_s = p95_s
        self.others = {"lost": 0.0, "waited": 0.5, "idle": 0.0, "room": 0.25, "whole": 0.125}

    def play(self, tasks: Iterable[Playable]) -> list[Figures]:
        wanted = list(tasks)
        self.asked |= {task.key: task for task in wanted}
        return [{"p95_s": self.p95_s, "mean_s": 1.0, **self.others} for _ in wanted]


def test_the_page_has_every_claim_with_its_verdicts(tmp_path: Path) -> None:
    pool = Equals()
    path = tmp_path / "gates.md"
    text = write_gates(pool, range(2), path=path)  # type: ignore[arg-type]
    assert path.read_text() == text + "\n"
    for claim, held in zip(
        CLAIMS, ("0 of 3", "0 of 8", "8 of 8", "10 of 10", "12 of 12", "6 of 6"), strict=True
    ):
        assert f"| {claim.name}: {claim.says} | {held} |" in text
        assert f"`python -m benchmarks.policy gates {claim.name}`" in text
        (table,) = (part for part in text.split("\n\n") if part.startswith(f"| {' | '.join(claim.head)} |"))
        assert len({line.count("|") for line in table.splitlines()}) == 1
    only = page([PARTS], pool, range(2))  # type: ignore[arg-type]
    assert "## parts" in only and "## gap" not in only


def test_a_claim_may_be_written_anew_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "gates.md"
    before = write_gates(Equals(), range(2), path=path)  # type: ignore[arg-type]
    assert write_gates(Equals(), range(2), [PARTS], path) == before  # type: ignore[arg-type]
    other = Equals(3.0)
    after = write_gates(other, range(2), [PARTS], path)  # type: ignore[arg-type]
    assert other.asked.keys() == {task.key for task in PARTS.tasks(range(2))}
    assert path.read_text() == after + "\n"
    old, new = (dict(part.partition("\n")[::2] for part in text.split("\n## ")) for text in (before, after))
    assert [name for name in old if old[name] != new[name]] == ["parts"]
    assert list(old) == list(new)
    assert new["parts"] == old["parts"].replace(" 2.00 ", " 3.00 ")


def test_a_page_is_of_as_many_seeds_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "gates.md"
    before = write_gates(Equals(), range(2), path=path)  # type: ignore[arg-type]
    with pytest.raises(OtherSeeds, match="does not say 3 seeds a row"):
        write_gates(Equals(), range(3), [PARTS], path)  # type: ignore[arg-type]
    assert path.read_text() == before + "\n"


def test_all_that_claims_want_can_be_played() -> None:
    tasks = [task for claim in CLAIMS for task in claim.tasks(range(2))]
    for task in tasks:
        assert isinstance(task, (Task, Change, Idle))
        assert task.rate > 0
        if isinstance(task, Task):
            assert task.contender in {*CAST, *ROUTERS}
        elif isinstance(task, Change):
            assert task.who in CHANGES[task.what]
    assert {f"agentsched without {part}" for part in WITHOUT} <= CAST.keys()
    assert {f"agentsched, {lie}" for lie in LIES} <= CAST.keys()


# -- lies ----------------------------------------------------------------------------------------------------

TRUE = Signals(running=3, waiting=2, kv_usage=0.5, kv_tokens=1000)


def test_lies() -> None:
    assert silent(TRUE) is None
    assert idle(TRUE) == Signals(running=0, waiting=0, kv_usage=0.0, kv_tokens=1000)
    assert full(TRUE) == Signals(running=3, waiting=2, kv_usage=1.0, kv_tokens=1000)
    assert sized(0.5)(TRUE) == Signals(running=3, waiting=2, kv_usage=0.5, kv_tokens=500)
    assert sized(4.0)(TRUE) == Signals(running=3, waiting=2, kv_usage=0.5, kv_tokens=4000)
    frozen = Frozen()
    assert [frozen(None), frozen(TRUE), frozen(idle(TRUE)), frozen(None)] == [None, TRUE, TRUE, TRUE]
    for lie in (idle, full, sized(4.0)):
        assert lie(None) is None
    assert sized(4.0)(Signals(running=3)) == Signals(running=3)


def test_engines_freeze_each_for_itself() -> None:
    one, other = LIES["frozen metrics"](), LIES["frozen metrics"]()
    one(TRUE)
    assert other(idle(TRUE)) == idle(TRUE)


def test_only_what_a_server_says_is_a_lie() -> None:
    server = Lying(BatchServer(BackendSpec()), full)
    server.start(0.0, 1, Node(input_tokens=100, output_tokens=50))
    server.start(0.0, 2, Node(input_tokens=100, output_tokens=50))
    server.abort(0.01, 2)
    news = [one for _ in range(20) if (due := server.next_at()) is not None for one in server.advance(due)]
    assert [one.attempt_id for one in news if isinstance(one, Finished)] == [1]
    signals = server.signals()
    assert signals is not None and (signals.running, signals.kv_usage) == (0, 1.0)


@pytest.mark.parametrize("lie", LIES)
def test_the_engine_hears_the_lie(players: list[Player], lie: str) -> None:
    play(CAST[f"agentsched, {lie}"], (), SMALL, 3, 20.0)
    heard = [row.heard.signals for row in players[0].loop.engine.backends.values()]
    if lie == "no metrics":
        assert heard == [None, None]
        return
    said = [one for one in heard if one is not None]
    servers = [row.server for row in players[0].loop._rows.values()]
    true = [server._inner.signals() for server in servers]  # type: ignore[attr-defined]
    sizes = [one.kv_tokens for one in true]
    factor = {"half the memory told": 0.5, "four times the memory told": 4.0}.get(lie, 1.0)
    assert [one.kv_tokens for one in said] == [factor * size for size in sizes]
    if lie == "idle metrics":
        assert {(one.running, one.waiting, one.kv_usage) for one in said} == {(0, 0, 0.0)}
    if lie == "full metrics":
        assert {one.kv_usage for one in said} == {1.0}


def test_who_is_told_the_truth_by_this_way_too_does_the_same() -> None:
    """What is found of lies is not an effect of how they are told."""
    honest = type(DEFAULT)(name="honest", prepare=told(lambda: lambda signals: signals))
    assert play(honest, (), SMALL, 3, 20.0) == play(DEFAULT, (), SMALL, 3, 20.0)
