"""One contender on one row with one seed, and the figures of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from agentsched import Backend
from agentsched.sim.plan import Plan
from agentsched.sim.player import Player, Run, Watch
from agentsched.sim.report import figures
from agentsched.sim.server import BatchServer
from benchmarks.policy.contender import Contender, Dials, Stage
from benchmarks.policy.fleets import fleet
from benchmarks.policy.profile import profile
from benchmarks.policy.row import Row
from benchmarks.policy.traffic import alone_of, arrivals


class Stop(Watch):
    """Ends the play once the first so many queries that arrived are over."""

    def __init__(self, first: int) -> None:
        self._ids = {f"q{number}" for number in range(first)}
        self.stop: Callable[[], None] = lambda: None

    def closed(self, run: Run) -> None:
        self._ids.discard(run.query.id)
        if not self._ids:
            self.stop()


class Feed(Watch):
    """Lets the next query arrive when one has: no more are made than are played."""

    def __init__(self, arrivals: Iterator[tuple[float, Plan]]) -> None:
        self._arrivals = arrivals
        self.arrive: Callable[[float, Plan], None] = lambda at, plan: None

    def opened(self, run: Run) -> None:
        self.next()

    def end(self) -> None:
        """Let no more arrive but the one that is on its way."""
        self._arrivals = iter(())

    def next(self) -> None:
        """Have the next one arrive."""
        for at, plan in islice(self._arrivals, 1):
            self.arrive(at, plan)


class Refill(Watch):
    """Lets the next query arrive when one is over: a closed loop."""

    def __init__(self, plans: Iterator[Plan]) -> None:
        self._plans = plans
        self.arrive: Callable[[Plan], None] = lambda plan: None

    def closed(self, run: Run) -> None:
        self.arrive(next(self._plans))


def play(contender: Contender, dials: Dials, row: Row, seed: int, rate: float) -> dict[str, float]:
    """Return the figures of an open row, `rate` queries a second.

    Every contender meets the same queries at the same times.
    """
    feed = Feed(arrivals(row, seed, rate))
    player, servers = _player(contender, dials, row, feed)
    feed.arrive = player.arrive
    feed.next()
    player.run()
    return _figures(player, servers, row)


def saturate(
    contender: Contender, dials: Dials, row: Row, plans: Iterator[Plan], in_system: int
) -> dict[str, float]:
    """Return the figures of a closed loop: so many queries are in the system, a further one enters as one leaves.

    The first enter one by one while such a query takes its time alone, so that they do not march in step.
    """
    refill = Refill(plans)
    player, servers = _player(contender, dials, row, refill)
    refill.arrive = lambda plan: player.arrive(player.loop.now, plan)
    first = list(islice(plans, in_system))
    apart_s = alone_of(row.fleet)(first[0]) / in_system
    for number, plan in enumerate(first):
        player.arrive(number * apart_s, plan)
    player.run()
    return _figures(player, servers, row)


def _player(contender: Contender, dials: Dials, row: Row, supply: Watch) -> tuple[Player, list[BatchServer]]:
    servers = {name: BatchServer(spec) for name, spec in fleet(row.fleet).items()}
    stop = Stop(row.warm_up + row.queries)
    player = ready(contender, dials, row, servers, [stop, supply])
    stop.stop = player.loop.stop
    return player, list(servers.values())


def ready(
    contender: Contender,
    dials: Dials,
    row: Row,
    servers: Mapping[str, BatchServer],
    watches: Sequence[Watch],
) -> Player:
    """Return a contender's player before the servers of a row's fleet, by name; no query has arrived."""
    known = profile(row.workload, row.fleet)
    stage = Stage(specs=fleet(row.fleet), servers=servers, profile=known, slo_scale=row.slo_scale)
    setup = contender.prepare(stage, *dials)
    limits = setup.limits
    backends = [
        (backend(name, limits[name] if limits is not None else None), server)
        for name, server in servers.items()
    ]
    return setup.player(backends, setup.policy, [*setup.watches, *watches])


def backend(name: str, limit: int | None = None) -> Backend:
    """Return a backend that serves the model of all workloads, with so many calls at a time."""
    return Backend(f"http://{name}.invalid/v1", name=name, models=["m"], max_concurrency=limit)


def _figures(player: Player, servers: list[BatchServer], row: Row) -> dict[str, float]:
    return figures(
        player.runs,
        player.calls,
        alone_of(row.fleet),
        engines=[server.model for server in servers],
        first=row.warm_up,
        last=row.warm_up + row.queries,
    )
