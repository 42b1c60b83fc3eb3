"""A player that schedules by itself, knowing what each call will do: the engine only passes its calls on.

A call is held back until its tokens fit beside those of the calls released to a backend and not ended, up to
`headroom` times its memory. It goes where it costs everybody least: its own finish, and what its prompt and its
seat cost those who run there; or waits, if the best place is full and every other one much worse.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter

from agentsched import Backend
from agentsched.engine.commands import Resolve, Start
from agentsched.model import BackendLoad, Job
from agentsched.sim.plan import Node
from agentsched.sim.player import Run, Watch
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec
from benchmarks.policy.fleets import kv_tokens
from benchmarks.policy.fusing import FusingPlayer
from benchmarks.policy.peers import plain

LOOK_AHEAD = 8
"""Calls that may be passed over, in order, to find one that fits somewhere."""

Waiting = tuple[tuple[bool, float], int, Run, int]
"""Rank, arrival number, and which call."""


class KnowingPlayer(FusingPlayer):
    """Makes each call when and where it is best.

    Args:
        rank: order of waiting calls, by time, query and number in its plan: whether it is hopeless, then lower first.
        affine: whether what a backend has cached counts.
        headroom: tokens released to a backend, in multiples of those that it has memory for.
        patience: how many times the seconds of the best place another one may cost everybody.
    """

    def __init__(
        self,
        fleet: Sequence[tuple[Backend, BatchServer]],
        *,
        watches: Sequence[Watch],
        specs: Mapping[str, BackendSpec],
        rank: Callable[[float, Run, int], tuple[bool, float]],
        affine: bool,
        headroom: float,
        patience: float,
        fuses: bool,
    ) -> None:
        super().__init__(fleet, policy=plain(cost=self._cost), watches=watches, fuses=fuses)
        self._rank = rank
        self._affine = affine
        self._patience = patience
        self._places = [
            _Place(server, specs[spec.name], spec.name, headroom * kv_tokens(specs[spec.name]))
            for spec, server in fleet
        ]
        self._place_of: dict[str, _Place] = {}
        self._waiting: list[Waiting] = []
        self._arrivals = 0

    def _cost(self, job: Job, load: BackendLoad) -> float:
        return 0.0 if self._place_of[job.id].name == load.name else inf

    def _make(self, run: Run, number: int) -> None:
        self._arrivals += 1
        if self._place_now(run, number):  # what waits did not fit before, and does not fit now
            super()._make(run, number)
        else:
            rank = self._rank(self.loop.now, run, number)
            heapq.heappush(self._waiting, (rank, self._arrivals, run, number))

    def _release(self) -> None:
        """Make the waiting calls that fit somewhere, in order."""
        passed: list[Waiting] = []
        while self._waiting and len(passed) < LOOK_AHEAD:
            entry = heapq.heappop(self._waiting)
            (late, _), arrival, run, number = entry
            rank = self._rank(self.loop.now, run, number)
            if rank[0] and not late:  # it has become hopeless while it waited
                heapq.heappush(self._waiting, (rank, arrival, run, number))
            elif self._place_now(run, number):
                super()._make(run, number)
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._waiting, entry)

    def _place_now(self, run: Run, number: int) -> bool:
        """Find the best place that has room for a call and take the room; return whether there is one."""
        node = run.plan.nodes[number]
        offers = [(*self._price(place, node), place) for place in self._places]
        most = self._patience * min(price for price, _, _ in offers)
        fitting = [offer for offer in offers if offer[0] <= most and offer[2].fits(offer[1])]
        if not fitting:
            return False
        _, tokens, place = min(fitting, key=itemgetter(0))
        request_id = f"{run.query.id}.{number}"
        self._place_of[request_id] = place
        place.give(request_id, node, tokens)
        return True

    def _price(self, place: _Place, node: Node) -> tuple[float, int]:
        """Return everybody's seconds for a call at a backend, and the tokens that it needs there."""
        speed, running = place.spec.speed, len(place.given)
        spared = place.server.model.cached_tokens(node.prompt_blocks) if self._affine else 0
        unread = max(node.input_tokens - spared, 1)
        prefill_s = unread * speed.prefill_s
        ahead = place.unread + self.loop.engine.backends[place.name].unread_tokens
        seat_s = node.output_tokens * speed.step_s * speed.batch_slope
        own_s = ahead * speed.prefill_s + prefill_s + node.output_tokens * speed.step(running + 1)
        return own_s + running * (prefill_s + seat_s), unread + node.output_tokens

    def _started(self, now: float, start: Start) -> None:
        super()._started(now, start)
        self._place_of[start.request_id].unread -= self._live[start.request_id].node.input_tokens

    def _ended(self, now: float, end: Resolve) -> None:
        self._place_of.pop(end.request_id).take(end.request_id)
        super()._ended(now, end)
        self._release()


class _Place:
    """A backend with what has been released to it.

    Attributes:
        given: tokens of each call released and not ended.
        unread: prompt tokens released of which the engine does not know yet.
    """

    def __init__(self, server: BatchServer, spec: BackendSpec, name: str, room: float) -> None:
        self.server = server
        self.spec = spec
        self.name = name
        self.given: dict[str, int] = {}
        self.unread = 0
        self._room = room
        self._taken = 0

    def fits(self, tokens: int) -> bool:
        return not self.given or self._taken + tokens <= self._room

    def give(self, request_id: str, node: Node, tokens: int) -> None:
        self.given[request_id] = tokens
        self._taken += tokens
        self.unread += node.input_tokens

    def take(self, request_id: str) -> None:
        self._taken -= self.given.pop(request_id)
