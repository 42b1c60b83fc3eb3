"""How many calls a second the simulator plays on one core.

Calls arrive at a backend that is two thirds busy, alone and with an engine's model behind it. The bars are those of
the project's design: 100,000 and 10,000 calls a second. Beside them, in the same round, runs a loop whose engine
decides nothing: what it takes is what the loop, the heap and the values that cross the walls cost, and no engine can
be quicker. Run it with `python -m benchmarks.micro.loop`.
"""

from __future__ import annotations

import random
import sys
import time

from agentsched import Backend, Policy
from agentsched.engine.commands import Command, Resolve, Start
from agentsched.engine.events import Event, Finished, Submitted
from agentsched.model import Outcome, Request
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer, Server, TimedServer
from agentsched.sim.spec import BackendSpec

CALLS = 30_000
ROUNDS = 5
NAME = "b"
BARS = {"timed": 100_000, "batching": 10_000}


def calls_per_s(
    server: Server, node: Node, *, limit: int, gap_s: float, engine: NoDecisions | None = None
) -> float:
    """Play calls that arrive at random, and return how many a second of real time."""
    dice = random.Random(1)
    backend = Backend("http://b:1/v1", name=NAME, models=["m"], max_concurrency=limit)
    loop = Loop([(backend, server)], policy=Policy.fcfs())
    if engine is not None:
        loop.engine = engine  # type: ignore[assignment]
    left = CALLS

    def arrive(now: float) -> None:
        nonlocal left
        left -= 1
        loop.submit(Request(id=str(left), model="m", input_tokens=node.input_tokens), node)
        if left:
            loop.at(now + dice.expovariate(1.0 / gap_s), arrive)

    loop.at(0.0, arrive)
    began = time.perf_counter()
    loop.run()
    took = time.perf_counter() - began
    assert not loop.engine.requests
    return CALLS / took


class NoDecisions:
    """Starts every call when it comes, and keeps nothing: the least that an engine can be."""

    def __init__(self) -> None:
        self.requests: dict[str, str] = {}
        self._running: dict[int, str] = {}
        self._attempts = 0

    def handle(self, event: Event) -> list[Command]:
        """Answer a call's two events."""
        if isinstance(event, Submitted):
            self._attempts += 1
            self._running[self._attempts] = event.request.id
            return [Start(self._attempts, event.request.id, NAME)]
        assert isinstance(event, Finished)
        return [Resolve(self._running.pop(event.attempt_id), Outcome.COMPLETED, backend=NAME, attempts=1)]


def main() -> int:
    timed, batched = Node(service_s=1.0), Node(input_tokens=300, output_tokens=100)
    spec = BackendSpec()
    gap_s = spec.speed.alone_s(300, 100) / 8
    rounds: dict[str, list[float]] = {"timed": [], "no decisions": [], "batching": []}
    for _ in range(ROUNDS):
        for name, engine in (("timed", None), ("no decisions", NoDecisions())):
            rounds[name].append(calls_per_s(TimedServer(), timed, limit=3, gap_s=0.5, engine=engine))
        rounds["batching"].append(calls_per_s(BatchServer(spec), batched, limit=16, gap_s=gap_s))
    missed = False
    for name, found in rounds.items():
        found.sort()
        middle, bar = found[ROUNDS // 2], BARS.get(name)
        verdict = "" if bar is None else f", wanted {bar:,}  {'ok' if middle >= bar else 'MISSED'}"
        missed = missed or (bar is not None and middle < bar)
        print(f"{name:12} {middle:9,.0f} calls/s ({found[0]:,.0f} to {found[-1]:,.0f}){verdict}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
