"""No engine stands idle while a call waits that may go there, whatever the fleet, the calls and what engines say."""

from dataclasses import dataclass

from benchmarks.policy.idling import Idling, instants
from benchmarks.policy.lies import Lying, silent
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import Backend, Policy
from agentsched.engine import Engine
from agentsched.engine.commands import Resolve
from agentsched.engine.dispatch import kept_from
from agentsched.model import Outcome, Request
from agentsched.predict import Learned, Measured, Profile
from agentsched.predict.prefixes import MARK_TOKENS
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed

WIDTH = 16
MOST_TOKENS = 640
"""Of a call, which the smallest engine has room for."""


@dataclass(frozen=True)
class Place:
    """A backend of a scene.

    Attributes:
        tells: whether it says how full it is.
        known: whether an earlier run has learned how much memory it has: before it tells, all are given to it.
    """

    spec: BackendSpec
    limit: int | None
    rpm: int | None
    tells: bool
    known: bool


Arrival = tuple[float, Node]


@st.composite
def places(draw: st.DrawFn) -> Place:
    speed = Speed(
        step_s=draw(st.sampled_from([0.01, 0.02, 0.05])), prefill_s=draw(st.sampled_from([1e-4, 1e-3]))
    )
    spec = BackendSpec(
        speed=speed,
        kv_blocks=draw(st.integers(MOST_TOKENS // WIDTH, 200)),
        block_tokens=WIDTH,
        max_num_seqs=draw(st.sampled_from([2, 8, 64])),
        max_num_batched_tokens=draw(st.sampled_from([64, 256, 2048])),
        prefix_cache=draw(st.booleans()),
    )
    limit = draw(st.sampled_from([None, None, None, 1, 3]))
    rpm = draw(st.sampled_from([None, None, None, 30]))
    return Place(spec, limit, rpm, draw(st.booleans()), draw(st.sampled_from([True, True, False])))


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    family = draw(st.integers(0, 3))
    tokens = draw(st.integers(1, 600) | st.integers(200, 600))
    shared = 100 * family  # none in family 0
    blocks = tuple(family * 1000 + number for number in range(min(shared, tokens) // WIDTH))
    marks = tuple(family * 1000 + number for number in range(min(shared, tokens) // MARK_TOKENS))
    node = Node(
        step=draw(st.sampled_from("ab")),
        input_tokens=tokens,
        output_tokens=draw(st.integers(1, MOST_TOKENS - tokens)),
        prompt_blocks=blocks,
        marks=marks,
    )
    return draw(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0])) + draw(st.floats(0.0, 0.2)), node


def missed(engine: Engine) -> list[tuple[str, str]]:
    """Return the calls that are not looked at in vain, and where they could start by the engine's own rules."""
    found: list[tuple[str, str]] = []
    for choice, lane in engine.queue.lanes.items():
        for _, request_id in lane.front:
            row = engine.requests[request_id]
            kept = kept_from(row, engine.queue, engine.requests, engine.policy)
            for backend in (engine.backends[name] for name in choice if name not in kept):
                fits = backend.has_slot and backend.has_room(backend.needs(row)[1])
                if fits and backend.fits_at(engine.now, row.tokens_wanted) <= engine.now:
                    found.append((request_id, backend.name))
    return found


def scene(there: list[Place], calls: list[Arrival]) -> tuple[Loop, dict[str, BatchServer], list[Resolve]]:
    servers = {f"b{number}": BatchServer(place.spec) for number, place in enumerate(there)}
    fleet = [
        (
            Backend(f"http://{name}/v1", name=name, models=["m"], max_concurrency=place.limit, rpm=place.rpm),
            server if place.tells else Lying(server, silent),
        )
        for (name, server), place in zip(servers.items(), there, strict=True)
    ]
    known = [
        Measured(
            base_url=backend.base_url,
            name=backend.name,
            learned=Learned(kv_tokens=place.spec.kv_blocks * WIDTH),
            source="run",
        )
        for (backend, _), place in zip(fleet, there, strict=True)
        if place.known
    ]
    ended: list[Resolve] = []
    loop = Loop(
        fleet,
        policy=Policy(patience=0),
        profile=Profile(backends=tuple(known)),
        on_end=lambda _, end: ended.append(end),
    )
    for number, (at, node) in enumerate(calls):
        request = Request(
            id=f"r{number}", model="m", input_tokens=node.input_tokens, step=node.step, marks=node.marks
        )
        loop.at(at, lambda _, request=request, node=node: loop.submit(request, node))
    return loop, servers, ended


@settings(max_examples=200, deadline=None)
@given(st.lists(places(), min_size=1, max_size=3), st.lists(arrivals(), min_size=10, max_size=50))
def test_no_engine_stands_idle_while_a_call_waits_for_it(there: list[Place], calls: list[Arrival]) -> None:
    loop, servers, ended = scene(there, calls)
    models = {name: server.model for name, server in servers.items()}
    idling = Idling(loop, models)
    for seconds in instants(loop, models.values()):
        idling.look(seconds)
        loop.engine.check()
        assert idling.idle_s == 0, f"idle at {loop.now}"
        assert missed(loop.engine) == [], f"missed at {loop.now}"
    assert len(ended) == len(calls)
    assert {end.outcome for end in ended} == {Outcome.COMPLETED}
    for model in models.values():
        model.check()


def test_the_scenes_have_calls_that_wait() -> None:
    """Else the test above would say nothing."""
    spec = BackendSpec(kv_blocks=100, block_tokens=WIDTH)
    calls = [(0.1 * number, Node(input_tokens=300, output_tokens=100)) for number in range(12)]
    loop, servers, _ = scene([Place(spec, None, None, tells=True, known=True)], calls)
    model = servers["b0"].model
    idling = Idling(loop, {"b0": model})
    for seconds in instants(loop, [model]):
        idling.look(seconds)
    assert idling.waited_s > 0.5 * loop.now
    assert idling.idle_s == 0 < idling.busy_s
