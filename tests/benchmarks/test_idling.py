"""What counts as an engine that has room while a call waits."""

from dataclasses import replace

import pytest
from benchmarks.policy.idling import Idle, Idling, has_room, instants
from benchmarks.policy.row import Row
from benchmarks.policy.tuned import rate_of

from agentsched import Backend, Policy
from agentsched.model import Request
from agentsched.sim.backend import BackendModel
from agentsched.sim.calls import Call
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec

SPEC = BackendSpec(kv_blocks=10, block_tokens=16, max_num_seqs=3)
CALL = Call(call_id="c", prompt_tokens=40, output_tokens=40, prompt_blocks=(1, 2))
"""Of five blocks in the end, three of them at first."""


def holding(spec: BackendSpec = SPEC, calls: int = 1, at: float = 0.1) -> BackendModel:
    model = BackendModel(spec)
    for number in range(calls):
        model.submit(0.0, replace(CALL, call_id=number))
    model.advance(at)
    return model


def test_room_is_memory_that_is_free_or_shared() -> None:
    model = holding()
    assert model.gauges().running == 1
    assert has_room(model, Node(input_tokens=72, output_tokens=40))  # seven blocks
    assert not has_room(model, Node(input_tokens=73, output_tokens=40))
    assert has_room(model, Node(input_tokens=104, output_tokens=40, prompt_blocks=(1, 2, 3)))
    assert not has_room(model, Node(input_tokens=105, output_tokens=40, prompt_blocks=(1, 2, 3)))


def test_room_to_the_end_is_beside_what_is_still_written() -> None:
    model = holding()
    assert has_room(model, Node(input_tokens=40, output_tokens=40), whole=True)
    assert not has_room(model, Node(input_tokens=41, output_tokens=40), whole=True)
    assert has_room(model, Node(input_tokens=41, output_tokens=40))


def test_no_room_without_a_seat_or_behind_others() -> None:
    small = Node(input_tokens=16, output_tokens=1)
    assert has_room(holding(calls=2), small)
    assert not has_room(holding(replace(SPEC, max_num_seqs=2), calls=2), small)
    crowded = holding(replace(SPEC, kv_blocks=8, prefix_cache=False), calls=3)
    assert crowded.gauges().waiting == 1
    assert crowded._memory.pool.free > 1
    assert not has_room(crowded, small)


def alone(limit: int | None, rpm: int | None = None) -> tuple[Loop, BackendModel]:
    """Return a fleet of one engine before which two calls arrive."""
    server = BatchServer(BackendSpec())
    backend = Backend("http://a/v1", name="a", models=["m"], max_concurrency=limit, rpm=rpm)
    loop = Loop([(backend, server)], policy=Policy(patience=0))
    for name in ("r0", "r1"):
        request = Request(id=name, model="m", input_tokens=10)
        node = Node(input_tokens=10, output_tokens=50)
        loop.at(0.0, lambda _, request=request, node=node: loop.submit(request, node))
    return loop, server.model


@pytest.mark.parametrize(("limit", "rpm"), [(1, None), (None, 1)])
def test_what_a_limit_forbids_is_not_missed(limit: int | None, rpm: int | None) -> None:
    loop, model = alone(limit, rpm)
    idling = Idling(loop, {"a": model})
    for seconds in instants(loop, [model]):
        idling.look(seconds)
    assert idling.waited_s > 0.5
    assert idling.idle_s == idling.room_s == idling.whole_s == 0
    assert not loop.engine.requests


def test_what_waits_for_no_reason_is_counted() -> None:
    loop, model = alone(1)
    idling = Idling(loop, {"a": model})
    row = loop.engine.backends["a"]
    for seconds in instants(loop, [model]):
        row.has_slot = True  # now nobody can tell why the second one waits
        idling.look(seconds)
    assert idling.room_s == idling.whole_s == pytest.approx(idling.waited_s - 0.001)  # its way in
    assert idling.busy_s > idling.waited_s


def test_who_looks_changes_nothing() -> None:
    times: list[list[float]] = []
    for looks in (False, True):
        loop, model = alone(1)
        ended: list[float] = []
        loop._on_end = lambda now, _, ended=ended: ended.append(now)
        if looks:
            for _ in instants(loop, [model]):
                pass
        else:
            loop.run()
        times.append(ended)
    assert times[0] == times[1]
    assert len(times[0]) == 2


@pytest.mark.parametrize("workload", ["text2sql", "mixed"])
@pytest.mark.parametrize("load", [0.85, 1.3, 4.0])
def test_without_patience_no_engine_stands_idle_while_a_call_waits(workload: str, load: float) -> None:
    row = Row(workload=workload, fleet="hetero1", load=load, warm_up=0, queries=200)
    figures = Idle(row=row, seed=1, rate=rate_of(row), patience=0.0).play()
    assert figures["idle"] == 0
    assert figures["whole"] <= figures["room"] < 1
    if load == 4.0:
        assert figures["waited"] > 0.1
