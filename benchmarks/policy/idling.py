"""How long engines had room while a call waited that could have gone there, by what they really hold.

An engine is *idle* with nothing in it. It *has room* for a call if nothing waits for a seat there, there is a seat, and
its memory has room for the call's prompt and answer, less what they share of what is held there. It has room *to the
end* if all that runs there may be written to its end beside the call, so that none is driven out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agentsched import Policy
from agentsched.sim.backend import BackendModel
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer
from benchmarks.policy.contender import Contender
from benchmarks.policy.fleets import fleet
from benchmarks.policy.ours import unlimited
from benchmarks.policy.play import Feed, Stop, ready
from benchmarks.policy.pool import Figures, Playable
from benchmarks.policy.row import Row
from benchmarks.policy.traffic import arrivals


class Idling:
    """Adds up how long each engine of a loop had room for a call that waited.

    Attributes:
        waited_s: seconds in which some call waited.
        busy_s: engine-seconds with something to do.
        idle_s: with nothing to do, while a call waited that could go there.
        room_s, whole_s: with something to do, and room for such a call; and to the end.
    """

    def __init__(self, loop: Loop, models: Mapping[str, BackendModel]) -> None:
        self.waited_s = self.busy_s = self.idle_s = self.room_s = self.whole_s = 0.0
        self._loop = loop
        self._models = models

    def look(self, seconds: float) -> None:
        """Count what is so now as being so for so long."""
        if self._loop.engine.queue.lanes:
            self.waited_s += seconds
        for name, model in self._models.items():
            gauges, waiting = model.gauges(), self._waiting(name)
            if gauges.running or gauges.waiting:
                self.busy_s += seconds
                if any(has_room(model, node) for node in waiting):
                    self.room_s += seconds
                    if any(has_room(model, node, whole=True) for node in waiting):
                        self.whole_s += seconds
            elif waiting:
                self.idle_s += seconds

    def _waiting(self, name: str) -> list[Node]:
        """Return the first calls of each lane that may go to a backend, if no limit forbids it."""
        engine, found = self._loop.engine, list[Node]()
        backend = engine.backends.get(name)
        for choice, lane in engine.queue.lanes.items():
            if backend is not None and backend.has_slot and name in choice:
                rows = [engine.requests[request_id] for _, request_id in lane.front]
                free = [row for row in rows if backend.fits_at(engine.now, row.tokens_wanted) <= engine.now]
                found += [self._loop._nodes[row.request.id] for row in free]
        return found


def has_room(model: BackendModel, node: Node, *, whole: bool = False) -> bool:
    """Whether an engine has room for a call; `whole`: to the end."""
    spec, gauges, pool = model.spec, model.gauges(), model._memory.pool
    if gauges.waiting or gauges.running >= spec.max_num_seqs:
        return False
    _, shared = pool.find(node.prompt_blocks)
    needed = spec.blocks(node.input_tokens + node.output_tokens) - shared
    if whole and needed <= pool.free:
        needed += sum(_to_come(model, call_id) for call_id in model._live)
    return needed <= pool.free


def _to_come(model: BackendModel, call_id: int | str) -> int:
    call, spec = model._live[call_id].call, model.spec
    now = call.prompt_tokens + model.tokens(call_id)
    return spec.blocks(call.prompt_tokens + call.output_tokens) - spec.blocks(now)


def instants(loop: Loop, models: Iterable[BackendModel]) -> Iterator[float]:
    """Play on; yield, once all that happens at a time has happened, how long nothing will happen."""
    engines, heap = list(models), loop._heap
    while heap:
        now = heap[0][0]
        loop.run(until=now)
        for model in engines:
            model._run(now)
        yield heap[0][0] - now if heap else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(Playable):
    """The library with some patience on an open row.

    Attributes:
        rate: queries a second.
    """

    row: Row
    seed: int
    rate: float
    patience: float

    def play(self) -> Figures:
        """Return shares of the busy engine-seconds, and of the time in which a call waited."""
        servers = {name: BatchServer(spec) for name, spec in fleet(self.row.fleet).items()}
        feed, stop = Feed(arrivals(self.row, self.seed, self.rate)), Stop(self.row.warm_up + self.row.queries)
        over: list[bool] = []
        us = Contender(name="patience", prepare=unlimited(Policy(patience=self.patience)))
        player = ready(us, (), self.row, servers, [stop, feed])
        feed.arrive, stop.stop = player.arrive, lambda: over.append(True)
        feed.next()
        models = {name: server.model for name, server in servers.items()}
        idling = Idling(player.loop, models)
        for seconds in instants(player.loop, models.values()):
            if over:
                break
            idling.look(seconds)
        return {
            "waited": idling.waited_s / player.loop.now,
            "idle": idling.idle_s / idling.busy_s,
            "room": idling.room_s / idling.busy_s,
            "whole": idling.whole_s / idling.busy_s,
        }
