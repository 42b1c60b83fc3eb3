"""Doubles for tests and demos: a virtual clock, and fake backends that batch, queue and fail like real ones.

In process and in virtual time, without a socket::

    clock, fleet = VirtualClock(), FakeFleet.fast(2)
    scheduler = Scheduler([...], upstream=fleet.transport(), clock=clock)
    clock.run(main(scheduler))
    assert fleet["fake-1"].log.peak_in_flight <= 8

On loopback, in real time, for any client::

    async with fleet.serve(time_scale=10):
        client = AsyncOpenAI(base_url=fleet.base_urls[0], api_key="none")

Nothing here needs pytest; `agentsched.pytest_plugin` makes fixtures of it.
"""

from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from agentsched.testing import faults
from agentsched.testing.backend import FakeBackend
from agentsched.testing.clock import Deadlock, VirtualClock
from agentsched.testing.fleet import FakeFleet
from agentsched.testing.received import Received
from agentsched.testing.responder import ErrorReply, FakeRequest, Reply, default_responder

__all__ = [
    "BackendSpec",
    "Deadlock",
    "ErrorReply",
    "FakeBackend",
    "FakeFleet",
    "FakeRequest",
    "Received",
    "Reply",
    "Speed",
    "VirtualClock",
    "default_responder",
    "faults",
]
