"""Queries arrive as long as those that count are under way, and everybody meets the same ones."""

from itertools import islice
from typing import Any

import pytest
from benchmarks.policy import play as playing
from benchmarks.policy.peers import FIFO
from benchmarks.policy.play import play, saturate
from benchmarks.policy.row import CLOSED, Row
from benchmarks.policy.traffic import alone_of, arrivals, plans

from agentsched.sim.player import Player

CHAT = Row(workload="chat", fleet="pair", load=1.0, warm_up=10, queries=30)


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> list[Player]:
    """The players that were made, as they are when the play is over."""
    made: list[Player] = []
    real = playing._player

    def noted(*given: Any) -> Any:
        player, servers = real(*given)
        made.append(player)
        return player, servers

    monkeypatch.setattr(playing, "_player", noted)
    return made


def test_the_same_queries_come_at_the_same_times() -> None:
    one, other = list(arrivals(CHAT, 3, 2.0)), list(arrivals(CHAT, 3, 2.0))
    assert one == other
    assert [plan for _, plan in one] == list(islice(plans(CHAT, 3), len(one)))
    slower = list(arrivals(CHAT, 3, 1.0))
    assert [plan for _, plan in slower] == [plan for _, plan in one]
    assert [at for at, _ in slower] == pytest.approx([2 * at for at, _ in one])
    assert [plan for _, plan in arrivals(CHAT, 4, 2.0)] != [plan for _, plan in one]


def test_queries_wish_for_a_multiple_of_their_path() -> None:
    plan = next(plans(CHAT, 3))
    assert plan.slo_s == pytest.approx(4.0 * alone_of("pair")(plan))


def test_others_arrive_until_those_that_count_are_over(players: list[Player]) -> None:
    found = play(FIFO, (0.5,), CHAT, 3, 50.0)
    (player,) = players
    counted = CHAT.warm_up + CHAT.queries
    assert all(run.completed for run in player.runs[:counted])
    assert counted < len(player.runs) <= CHAT.arriving
    assert 0 < found["mean_s"] < found["p99_s"]


def test_the_tail_has_an_end(players: list[Player]) -> None:
    """Far beyond what the fleet can do, it does not grow for ever."""
    play(FIFO, (0.5,), CHAT, 3, 1e6)
    assert len(players[0].runs) == CHAT.arriving


@pytest.mark.parametrize("in_system", [5, 60])
def test_a_closed_loop_never_runs_dry(players: list[Player], in_system: int) -> None:
    row = Row(workload="chat", fleet="pair", load=in_system, arrivals=CLOSED, warm_up=10, queries=30)
    saturate(FIFO, (1.0,), row, plans(row, 3), in_system)
    (player,) = players
    assert (
        len(player.runs) - sum(run.completed for run in player.runs) == in_system - 1
    )  # the next is on its way
    assert max(_in_system(player)) == in_system


def _in_system(player: Player) -> list[int]:
    """Return how many queries were in the system whenever one came."""
    return [
        sum(run.arrived_at <= at and not run.ended_at <= at for run in player.runs)
        for at in (run.arrived_at for run in player.runs)
    ]
