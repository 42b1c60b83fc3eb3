"""What happens to a fleet in mid-run, and who knows of it."""

from collections.abc import Sequence
from math import inf

import pytest
from benchmarks.policy import changing
from benchmarks.policy.changes import draining
from benchmarks.policy.changes.draining import Leaving
from benchmarks.policy.changes.joining import NEVER, PROFILED, learned
from benchmarks.policy.changes.slowing import TOLD, Held, Slowing, copied, slower
from benchmarks.policy.changing import CHANGES, Change, Since
from benchmarks.policy.pool import Figures
from benchmarks.policy.row import Row

from agentsched.engine.backends import BackendRow
from agentsched.engine.events import Finished
from agentsched.model import BackendLoad, Job, Outcome, Request
from agentsched.policy import finish_time
from agentsched.predict import Speed
from agentsched.sim.plan import Node
from agentsched.sim.player import CallRow, Player
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec

SMALL = Row(workload="chat", fleet="pair", load=1.0, warm_up=10, queries=30)
AT = 25 / 1.0


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have few calls count."""
    monkeypatch.setattr(changing, "FIRST", 5)
    monkeypatch.setattr(changing, "LAST", 25)


def scene(what: str, who: str, factor: float = 2.0) -> Change:
    return Change(row=SMALL, seed=3, rate=1.0, what=what, backend="h100", who=who, factor=factor)


def played(what: str, who: str, factor: float = 2.0) -> Figures:
    change = scene(what, who, factor)
    assert change.at == pytest.approx(AT)
    return change.play()


def at_h100(player: Player) -> list[CallRow]:
    return [call for call in player.calls if call.backend == "h100"]


# -- slower --------------------------------------------------------------------------------------------------


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


def experienced() -> Speed:
    speed = Speed()
    for _ in range(5):
        speed.observe_prefill(1000, 0.3)
        speed.observe_decode(100, 3.0, 2.0, read=500, held=2000.0)
    return speed


def test_who_knew_has_learned_the_same_of_a_slower_engine() -> None:
    speed = experienced()
    before = [*speed.prefill.coefficients, *speed.decode.coefficients]
    knew = slower(speed, 2.0)
    assert [*knew.prefill.coefficients, *knew.decode.coefficients] == [2.0 * one for one in before]
    assert knew.pace is not None and speed.pace is not None
    assert knew.pace.decode_s == 2.0 * speed.pace.decode_s
    assert [*speed.prefill.coefficients, *speed.decode.coefficients] == before


def test_what_is_held_learns_no_more() -> None:
    held = copied(experienced(), Held)
    pace = held.pace
    held.observe_prefill(1000, 3.0)
    held.observe_decode(100, 30.0, 2.0)
    assert held.pace == pace


# -- a play ------------------------------------------------------------------------------------------------


def test_the_calls_that_count_are_those_made_since_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "LAST", 2)
    since, over = Since(10.0), list[bool]()
    since.over = lambda: over.append(True)
    calls = {at: CallRow(None, 0, at) for at in (9.0, 10.0, 11.0, 12.0)}  # type: ignore[arg-type]
    for at, call in calls.items():
        since.calling(f"{at}", call)
    assert since.calls == [calls[10.0], calls[11.0]]
    since.ended("9.0", calls[9.0])
    since.ended("11.0", calls[11.0])
    assert not over
    since.ended("10.0", calls[10.0])
    assert over


@pytest.mark.parametrize(("what", "who"), [(what, who) for what in CHANGES for who in CHANGES[what]])
def test_whatever_happens_the_play_ends_and_nothing_is_lost(
    players: list[Player], what: str, who: str
) -> None:
    figures = played(what, who)
    assert figures["lost"] == 0
    assert 0 < figures["mean_s"] < figures["p95_s"] < inf
    player = players[0]
    assert all(run.closed for run in player.runs)
    assert not player.loop.engine.requests


def test_no_more_arrive_than_that_takes(players: list[Player], monkeypatch: pytest.MonkeyPatch) -> None:
    played("slows", "learns")
    monkeypatch.setattr(changing, "LAST", 6)
    played("slows", "learns")
    more, fewer = (len(player.runs) for player in players)
    assert fewer < more <= SMALL.arriving


def test_what_is_not_completed_is_lost(monkeypatch: pytest.MonkeyPatch, players: list[Player]) -> None:
    def both_leave(scene: Change, watches: Sequence[Since]) -> Player:
        player = draining.DRAINS[draining.REMOVED](scene, watches)
        player.loop.at(scene.at, lambda _: player.loop.leave("a6000", drain=False))
        return player

    monkeypatch.setitem(changing.CHANGES, "drains", {"learns": both_leave})
    lost = played("drains", "learns")["lost"]
    assert lost == sum(call.outcome is not Outcome.COMPLETED for call in players[0].calls) > 0


def test_the_slower_it_becomes_the_longer_calls_take(players: list[Player]) -> None:
    learns, deaf = played("slows", "learns", 20.0), played("slows", "never hears", 20.0)
    assert isinstance(players[1].loop.engine.backends["h100"].speed, Held)
    assert not isinstance(players[1].loop.engine.backends["a6000"].speed, Held)
    assert played("slows", "learns", 1.0)["mean_s"] < learns["mean_s"] < deaf["mean_s"]
    assert {who: played("slows", who, 20.0)["p95_s"] < inf for who in TOLD} == dict.fromkeys(TOLD, True)


# -- one more ------------------------------------------------------------------------------------------------


def test_one_that_joins_is_given_calls_from_then_on(players: list[Player]) -> None:
    joined, never = played("joins", "learns"), played("joins", NEVER)
    with_it, without = players
    assert min(call.started_at for call in at_h100(with_it)) >= AT
    assert not at_h100(without)
    assert joined["mean_s"] < never["mean_s"]


def begun(who: str) -> BackendRow:
    """Return the newcomer's row once it has joined, before any call there has ended."""
    change = scene("joins", who)
    player = CHANGES["joins"][who](change, [])
    player.run(until=change.at)
    return player.loop.engine.backends["h100"]


def test_who_knew_has_what_was_learned_where_it_was_there_from_the_start(players: list[Player]) -> None:
    known = learned(scene("joins", "knew"))
    assert known.speed.pace is not None and known.budget.told is not None
    assert len(at_h100(players[0])) > 10
    assert begun("learns").speed.pace is None
    for who in ("knew", "knew, learns no more", PROFILED):
        row = begun(who)
        assert row.speed.pace == known.speed.pace
        assert isinstance(row.speed, Held) is (who == "knew, learns no more")
        assert row.budget.told == known.budget.told
        assert (row.stay_s == known.stay_s) is (who != PROFILED)


# -- one less ------------------------------------------------------------------------------------------------


def test_one_that_leaves_is_given_nothing_from_then_on(players: list[Player]) -> None:
    for who in CHANGES["drains"]:
        played("drains", who)
    for player in players:
        assert all(call.started_at < AT for call in at_h100(player))
        assert list(player.loop.engine.backends) == ["a6000"]
    moved = [[call for call in player.calls if call.attempts > 1] for player in players]
    assert [bool(calls) for calls in moved] == [False, False, False, True]
    assert {call.backend for call in moved[-1]} == {"a6000"}


def test_who_knew_leaves_less_there_to_drain(players: list[Player]) -> None:
    for who in ("learns", "knew", "knew, drains a minute before"):
        played("drains", who)
    left = [sum(call.ended_at > AT for call in at_h100(player)) for player in players]
    assert left[0] > left[1] >= left[2] == 0
    assert max(call.started_at for call in at_h100(players[1])) > AT - 10.0  # until the end for what is short


def test_a_call_that_would_outlast_a_backend_is_not_for_it() -> None:
    cost = Leaving("old", 10.0)
    job = Job(Request(id="r", model="m", input_tokens=100), 0.0, 50.0, 100)
    old = BackendLoad("old", 3, 0, 0, 0.0, 0.01, 0.02, 0.001, 0.0)
    own_s = 100 * 0.01 + 50 * 0.02
    cost.now = lambda: 10.0 - own_s
    assert cost(job, old) == finish_time(job, old) > own_s  # what it costs the others does not keep it there
    cost.now = lambda: 10.1 - own_s
    assert cost(job, old) == inf
    new = BackendLoad("new", 3, 0, 0, 0.0, 0.01, 0.02, 0.001, 0.0)
    assert cost(job, new) == finish_time(job, new)
