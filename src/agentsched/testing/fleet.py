"""Several fake backends under one roof: found by URL, carried in process or served on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, overload
from urllib.parse import urlsplit

from agentsched.sim.gpus import fleet as gpu_specs
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from agentsched.testing.backend import FakeBackend
from agentsched.testing.faults import Fault
from agentsched.testing.received import Received
from agentsched.testing.responder import Responder, default_responder

if TYPE_CHECKING:
    import httpx
    import httpx2

    from agentsched.testing.server import FleetServer
    from agentsched.testing.transport import FleetTransport

FAST = Speed(step_s=0.005, prefill_s=0.00002, entry_s=0.001)
"""A small model on a large card: 200 tokens a second alone."""

DEFAULT_PORTS = {"http": 80, "https": 443}


class FakeFleet:
    """Hold fake backends that apps can call; iterate over them or look them up by name."""

    def __init__(self, backends: Sequence[FakeBackend]) -> None:
        self._backends = {backend.name: backend for backend in backends}
        if len(self._backends) != len(backends):
            raise ValueError("fake backends need different names")

    @classmethod
    def fast(
        cls,
        count: int = 2,
        *,
        models: Sequence[str] = ("fake-model",),
        seats: int = 16,
        responder: Responder = default_responder,
    ) -> FakeFleet:
        """Return `count` equal, quick backends named `fake-1`, `fake-2` and so on."""
        spec = BackendSpec(speed=FAST, max_num_seqs=seats)
        names = [f"fake-{number + 1}" for number in range(count)]
        return cls([FakeBackend(name, models=models, spec=spec, responder=responder) for name in names])

    @classmethod
    def gpus(
        cls, name: str, *, models: Sequence[str] = ("fake-model",), responder: Responder = default_responder
    ) -> FakeFleet:
        """Return a fleet as fast as real cards, by its name in `agentsched.sim.gpus`."""
        specs = gpu_specs(name)
        return cls(
            [FakeBackend(card, models=models, spec=specs[card], responder=responder) for card in specs]
        )

    def __iter__(self) -> Iterator[FakeBackend]:
        return iter(self._backends.values())

    def __len__(self) -> int:
        return len(self._backends)

    def __getitem__(self, name: str) -> FakeBackend:
        return self._backends[name]

    def __repr__(self) -> str:
        return f"<FakeFleet {list(self)}>"

    @property
    def base_urls(self) -> list[str]:
        """Return the base URLs of all backends."""
        return [backend.base_url for backend in self]

    @property
    def calls(self) -> list[tuple[str, Received]]:
        """Return the calls of all backends with the backend's name, in order of arrival."""
        calls = [(backend.name, row) for backend in self for row in backend.calls]
        return sorted(calls, key=lambda call: call[1].at)

    def fail(self, fault: Fault) -> None:
        """Let a fault hit every call of every backend."""
        for backend in self:
            backend.fail(fault)

    def heal(self) -> None:
        """Forget the faults of all backends."""
        for backend in self:
            backend.heal()

    def find(self, url: str) -> FakeBackend | None:
        """Return the backend that a URL leads to: same host and port, and the longest path that fits."""
        wanted = urlsplit(url)
        found = [
            backend
            for backend in self
            if _address(backend.base_url) == _address(url)
            and (wanted.path == backend.prefix or wanted.path.startswith(f"{backend.prefix}/"))
        ]
        return max(found, key=lambda backend: len(backend.prefix), default=None)

    @overload
    def transport(self, http: Literal["httpx"]) -> httpx.AsyncBaseTransport: ...
    @overload
    def transport(self, http: Literal["httpx2"]) -> httpx2.AsyncBaseTransport: ...
    @overload
    def transport(self, http: None = None) -> FleetTransport: ...
    def transport(
        self, http: str | None = None
    ) -> httpx.AsyncBaseTransport | httpx2.AsyncBaseTransport | FleetTransport:
        """Return an async transport that leads every request to this fleet, without a socket.

        It is one of `httpx2` where the installed `openai` builds on that, else of `httpx`, unless said.
        """
        from agentsched.testing.transport import make_transport

        return make_transport(self, http)

    def serve(
        self, *, ports: Sequence[int] | None = None, time_scale: float = 1.0, interval_s: float = 0.02
    ) -> FleetServer:
        """Return a server for this fleet on 127.0.0.1, to be entered with `async with`; see `FleetServer`."""
        from agentsched.testing.server import FleetServer

        return FleetServer(self, ports=ports, time_scale=time_scale, interval_s=interval_s)


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    return (parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme))
