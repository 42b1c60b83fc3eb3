"""Claims are judged by what was found, and what is found for them is what they are about."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, nan
from pathlib import Path

import pytest
from benchmarks.policy import changing
from benchmarks.policy.cast import CAST
from benchmarks.policy.changing import TOLD, Change, Held, Since, Slowing, slower
from benchmarks.policy.lies import LIES, Frozen, Lying, full, idle, silent, sized, told
from benchmarks.policy.ours import DEFAULT, WITHOUT
from benchmarks.policy.play import play
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.report.claims import (
    CHANGE,
    CLAIMS,
    GAP,
    LIGHT_LOAD,
    METRICS_WRONG,
    PARTS,
    Claim,
    Line,
)
from benchmarks.policy.report.gates import page, write_gates
from benchmarks.policy.report.stats import NO_GAP, Interval
from benchmarks.policy.report.verdict import Verdict, above, at_least, at_most
from benchmarks.policy.routers import ROUTERS
from benchmarks.policy.row import ROUTED, Row
from benchmarks.policy.task import Task

from agentsched.engine.events import Finished
from agentsched.model import Signals
from agentsched.predict import Speed
from agentsched.sim.plan import Node
from agentsched.sim.player import CallRow, Player
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
        "agentsched, no metrics": [10.6, 10.6],
        "agentsched, full metrics": [10.4, 10.5],
        "else": [10.0, 10.0],
    }
    lines = judged(METRICS_WRONG, METRICS_WRONG.rows[0], p95s)
    assert [line.cells[1] for line in lines if str(line.verdict) == "missed"] == ["no metrics"]
    assert len(lines) == len(LIES)


def test_a_change_is_held_against_the_better_one_who_knew() -> None:
    values = {"learns": [10.5, 10.5], "knew": [11.0, 11.0], "knew, learns no more": [9.0, 9.0]}
    (line,) = judged(CHANGE, CHANGE.rows[0], {**values, "never hears": [12.0, 12.0], "else": []})
    assert line.cells[1:3] == ["11.00", "**9.00**"]
    assert line.cells[-1] == "12.00: +33.3% (+33.3% to +33.3%)"
    assert str(line.verdict) == "missed"


# -- the page ------------------------------------------------------------------------------------------------


class Equals:
    """Plays nothing: everybody is as good as everybody."""

    def __init__(self) -> None:
        self.asked: dict[str, Playable] = {}

    def play(self, tasks: Iterable[Playable]) -> list[Figures]:
        wanted = list(tasks)
        self.asked |= {task.key: task for task in wanted}
        return [{"p95_s": 2.0, "mean_s": 1.0} for _ in wanted]


def test_the_page_has_every_claim_with_its_verdicts(tmp_path: Path) -> None:
    pool = Equals()
    text = write_gates(pool, range(2), tmp_path / "gates.md")  # type: ignore[arg-type]
    assert (tmp_path / "gates.md").read_text() == text + "\n"
    for claim, held in zip(CLAIMS, ("0 of 3", "0 of 8", "8 of 8", "12 of 12", "4 of 4"), strict=True):
        assert f"| {claim.name}: {claim.says} | {held} |" in text
        assert f"`python -m benchmarks.policy gates {claim.name}`" in text
        (table,) = (part for part in text.split("\n\n") if part.startswith(f"| {' | '.join(claim.head)} |"))
        assert len({line.count("|") for line in table.splitlines()}) == 1
    only = page([PARTS], pool, range(2))  # type: ignore[arg-type]
    assert "## parts" in only and "## gap" not in only


def test_all_that_claims_want_can_be_played() -> None:
    tasks = [task for claim in CLAIMS for task in claim.tasks(range(2))]
    for task in tasks:
        assert isinstance(task, (Task, Change))
        assert task.rate > 0
        if isinstance(task, Task):
            assert task.contender in {*CAST, *ROUTERS}
        else:
            assert task.who in TOLD
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


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> list[Player]:
    """The players that were made."""
    made: list[Player] = []
    first = Player.__init__

    def noted(self: Player, *given: object, **options: object) -> None:
        made.append(self)
        first(self, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Player, "__init__", noted)
    return made


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


# -- a fleet that changes ------------------------------------------------------------------------------------


def finished_at(server: BatchServer, starts: Sequence[float]) -> list[float]:
    found: list[float] = []
    for number, at in enumerate(starts):
        server.start(at, number, Node(input_tokens=100, output_tokens=50))
        while (due := server.next_at()) is not None and len(found) <= number:
            found += [one.at for one in server.advance(due) if isinstance(one, Finished)]
    return found


def test_a_call_alone_is_slowed_down_from_the_moment_on() -> None:
    spec = BackendSpec()
    (alone,) = finished_at(BatchServer(spec), [0.0])
    (slowed,) = finished_at(Slowing(spec, at=0.5, factor=2.0), [0.0])
    assert slowed == pytest.approx(0.5 + 2.0 * (alone - 0.5))
    assert finished_at(Slowing(spec, at=inf, factor=2.0), [0.0]) == [alone]


def test_who_was_idle_is_slower_too() -> None:
    spec = BackendSpec()
    before, after = finished_at(Slowing(spec, at=5.0, factor=2.0), [0.0, 9.0])
    entry_s = spec.speed.entry_s
    assert after - 9.0 - entry_s == pytest.approx(2.0 * (before - entry_s))


def learned() -> Speed:
    speed = Speed()
    for _ in range(5):
        speed.observe_prefill(1000, 0.3)
        speed.observe_decode(100, 3.0, 2.0, read=500, held=2000.0)
    return speed


def test_who_knew_has_learned_the_same_of_a_slower_engine() -> None:
    speed = learned()
    before = [*speed.prefill.coefficients, *speed.decode.coefficients]
    knew = slower(speed, 2.0)
    assert [*knew.prefill.coefficients, *knew.decode.coefficients] == [2.0 * one for one in before]
    assert knew.pace is not None and speed.pace is not None
    assert knew.pace.decode_s == 2.0 * speed.pace.decode_s
    assert [*speed.prefill.coefficients, *speed.decode.coefficients] == before


def test_what_is_held_learns_no_more() -> None:
    held = slower(learned(), 1.0, Held)
    pace = held.pace
    held.observe_prefill(1000, 3.0)
    held.observe_decode(100, 30.0, 2.0)
    assert held.pace == pace


def test_the_calls_that_count_are_those_made_since_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "LAST", 2)
    since, over = Since(10.0), list[bool]()
    since.stop = lambda: over.append(True)
    calls = {at: CallRow(None, 0, at) for at in (9.0, 10.0, 11.0, 12.0)}  # type: ignore[arg-type]
    for at, call in calls.items():
        since.calling(f"{at}", call)
    assert since.calls == [calls[10.0], calls[11.0]]
    since.ended("9.0", calls[9.0])
    since.ended("11.0", calls[11.0])
    assert not over
    since.ended("10.0", calls[10.0])
    assert over


def test_a_change_is_played(monkeypatch: pytest.MonkeyPatch, players: list[Player]) -> None:
    monkeypatch.setattr(changing, "FIRST", 5)
    monkeypatch.setattr(changing, "LAST", 25)

    def played(who: str, factor: float) -> Figures:
        change = Change(row=SMALL, seed=3, rate=5.0, backend="h100", factor=factor, who=who)
        assert change.at == pytest.approx(25 / 5.0)
        return change.play()

    learns, deaf = played("learns", 20.0), played("never hears", 20.0)
    assert isinstance(players[1].loop.engine.backends["h100"].speed, Held)
    assert not isinstance(players[1].loop.engine.backends["a6000"].speed, Held)
    assert played("learns", 1.0)["mean_s"] < learns["mean_s"] < deaf["mean_s"]
    assert {who: played(who, 20.0)["p95_s"] < inf for who in TOLD} == dict.fromkeys(TOLD, True)
