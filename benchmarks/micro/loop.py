"""How many calls a second the simulator plays on one core.

Calls arrive at a backend that is two thirds busy, alone and with an engine's model behind it. The bars are those of
the project's design: 100,000 and 10,000 calls a second. Run it with `python -m benchmarks.micro.loop`.
"""

import random
import sys
import time

from agentsched import Backend, Policy
from agentsched.model import Request
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer, Server, TimedServer
from agentsched.sim.spec import BackendSpec

CALLS = 30_000
ROUNDS = 5
BARS = {"timed": 100_000, "batching": 10_000}


def calls_per_s(server: Server, node: Node, *, limit: int, gap_s: float) -> float:
    """Play calls that arrive at random, and return how many a second of real time."""
    dice = random.Random(1)
    loop = Loop(
        [(Backend("http://b:1/v1", models=["m"], max_concurrency=limit), server)], policy=Policy.fcfs()
    )
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


def main() -> int:
    timed, batched = Node(service_s=1.0), Node(input_tokens=300, output_tokens=100)
    spec = BackendSpec()
    alone_s = spec.speed.alone_s(300, 100)
    missed = False
    for name, bar in BARS.items():
        rounds = sorted(
            calls_per_s(TimedServer(), timed, limit=3, gap_s=0.5)
            if name == "timed"
            else calls_per_s(BatchServer(spec), batched, limit=16, gap_s=alone_s / 8)
            for _ in range(ROUNDS)
        )
        middle = rounds[ROUNDS // 2]
        good = middle >= bar
        missed = missed or not good
        print(
            f"{name:9} {middle:9,.0f} calls/s ({rounds[0]:,.0f} to {rounds[-1]:,.0f}), wanted {bar:,}"
            f"  {'ok' if good else 'MISSED'}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
