"""Players: whatever fails, is cancelled or comes too late, each query is over once and nothing is called after it."""

from collections import Counter
from math import inf, isnan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched.engine.events import Finished
from agentsched.errors import UsageError
from agentsched.model import Backend, FailureKind, Outcome
from agentsched.policy import Policy
from agentsched.sim.plan import Node, Plan, check_plan
from agentsched.sim.player import CallRow, Player, Run, Watch
from agentsched.sim.server import BatchServer, FailingServer, Server, TimedServer
from agentsched.sim.spec import BackendSpec

SPEC = BackendSpec(max_model_len=1_000)


class Witness(Watch):
    """Sees what must not happen, when it does."""

    def __init__(self) -> None:
        self.closed_runs: Counter[str] = Counter()
        self.player: Player | None = None

    def calling(self, request_id: str, call: CallRow) -> None:
        assert self.player is not None
        assert not call.run.given_up
        assert not self.closed_runs[call.run.query.id]
        assert self.player.loop.now < (inf if call.run.query.deadline is None else call.run.query.deadline)

    def closed(self, run: Run) -> None:
        self.closed_runs[run.query.id] += 1
        assert not run.live


def played(
    plans: list[tuple[float, Plan]],
    servers: list[Server] | None = None,
    cancels: list[tuple[float, int]] | None = None,
) -> Player:
    """Play to the end, check what holds always, and return the player."""
    servers = servers if servers is not None else [BatchServer(SPEC)]
    fleet = [
        (Backend(f"http://b{number}/v1", models=["m"], max_concurrency=2), server)
        for number, server in enumerate(servers)
    ]
    witness = Witness()
    player = witness.player = Player(fleet, policy=Policy.fcfs(), watches=[witness])
    for at, plan in plans:
        player.arrive(at, plan)
    for at, number in cancels or []:

        def cancel(_: float, number: int = number) -> None:
            live = list(player.loop.engine.requests)
            if live:
                player.loop.cancel(live[number % len(live)])

        player.loop.at(at, cancel)
    player.run()
    engine = player.loop.engine
    engine.check()
    assert (engine.requests, engine.attempts) == ({}, {})
    assert witness.closed_runs == Counter(run.query.id for run in player.runs)
    assert len(player.runs) == len(plans)
    for run in player.runs:
        assert run.closed
        assert run.completed != run.given_up == (run.why is not None)
        assert run.completed == (run.left == 0)
        assert not isnan(run.ended_at)
        assert run.ended_at <= (inf if run.query.deadline is None else run.query.deadline)
        if run.why is Outcome.EXPIRED:
            assert run.ended_at == run.query.deadline
    assert all(call.outcome is not None for call in player.calls)
    return player


times = st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0, 2.0])


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 5))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
        nodes.append(
            Node(
                model=draw(st.sampled_from(["m", "m", "m", None, "gone"])),
                after=tuple(after),
                delay_s=draw(times),
                input_tokens=draw(st.sampled_from([1, 100, 100, 2_000])),
                output_tokens=draw(st.integers(0, 40)),
                service_s=draw(times),
            )
        )
    return Plan(nodes=nodes, timeout_s=draw(st.none() | times))


@st.composite
def servers(draw: st.DrawFn) -> Server:
    inner = draw(st.sampled_from([lambda: BatchServer(SPEC), TimedServer]))()
    fails = draw(st.dictionaries(st.integers(1, 8), st.sampled_from(FailureKind), max_size=4))
    return FailingServer(inner, fails.get)


@given(
    st.lists(st.tuples(times, plans()), min_size=1, max_size=5),
    st.lists(servers(), min_size=1, max_size=3),
    st.lists(st.tuples(times, st.integers(0, 9)), max_size=4),
)
@settings(max_examples=300)
def test_each_query_is_over_once_and_nothing_is_called_after_it(
    arrivals: list[tuple[float, Plan]], fleet: list[Server], cancels: list[tuple[float, int]]
) -> None:
    played(arrivals, fleet, cancels)
    for server in fleet:
        inner = server._inner  # type: ignore[attr-defined]
        if isinstance(inner, TimedServer):
            assert inner._nodes == {}
        else:
            assert inner._inputs == {}


def test_the_roots_after_one_that_ends_at_once_are_not_called() -> None:
    player = played([(1.0, Plan(nodes=[Node(model="gone"), Node(), Node(delay_s=1.0)]))])
    (run,) = player.runs
    assert [call.number for call in player.calls] == [0]
    assert (run.why, run.ended_at) == (Outcome.REJECTED, 1.0)


def test_no_time_at_all_is_time_for_no_call() -> None:
    player = played([(1.0, Plan(nodes=[Node(), Node()], timeout_s=0.0))])
    (run,) = player.runs
    assert player.calls == []
    assert (run.why, run.ended_at) == (Outcome.EXPIRED, 1.0)


def test_a_query_that_waits_for_a_tool_ends_at_its_deadline() -> None:
    player = played([(1.0, Plan(nodes=[Node(), Node(after=(0,), delay_s=9.0)], timeout_s=5.0))])
    (run,) = player.runs
    assert [call.outcome for call in player.calls] == [Outcome.COMPLETED]
    assert (run.why, run.ended_at) == (Outcome.EXPIRED, 6.0)


def test_calls_under_way_expire_at_the_deadline() -> None:
    player = played([(1.0, Plan(nodes=[Node(output_tokens=900), Node(after=(0,))], timeout_s=5.0))])
    (run,) = player.runs
    assert [(call.outcome, call.ended_at) for call in player.calls] == [(Outcome.EXPIRED, 6.0)]
    assert (run.why, run.ended_at) == (Outcome.EXPIRED, 6.0)


def test_an_answer_at_the_deadline_counts_but_nothing_follows() -> None:
    after = Node(after=(0,), service_s=1.0)
    for nodes in (
        [Node(service_s=5.0)],
        [Node(service_s=5.0), after],
        [Node(service_s=5.0), Node(delay_s=7.0)],
    ):
        player = played([(1.0, Plan(nodes=nodes, timeout_s=5.0))], [TimedServer()])
        assert len(player.calls) == 1
        assert player.runs[0].ended_at == 6.0


def test_a_plan_with_a_timeout_that_is_none_is_refused() -> None:
    for timeout_s in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="is given up"):
            check_plan(Plan(nodes=[Node()], timeout_s=timeout_s))
    check_plan(Plan(nodes=[Node()], timeout_s=inf))
    assert played([(0.0, Plan(nodes=[Node()], timeout_s=inf))]).runs[0].completed


def test_what_was_aborted_after_it_was_told_is_forgotten() -> None:
    server = TimedServer(lambda _: 1.0)
    server.start(0.0, 1, Node())
    server.start(0.0, 2, Node())
    server.start(0.5, 3, Node())
    told = server.advance(1.0)
    assert [(type(news), news.attempt_id) for news in told] == [(Finished, 1), (Finished, 2)]
    for attempt_id in (2, 3):
        server.abort(1.0, attempt_id)
    assert server.next_at() == 1.5
    assert server.advance(2.0) == []
    assert (server._nodes, server._due) == ({}, [])
