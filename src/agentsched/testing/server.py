"""Serve a fake fleet on loopback: real HTTP/1.1, one port per backend, in one process.

    python -m agentsched.testing.server --fleet hetero1 --port 18001 --time-scale 10

`time_scale` is model seconds per wall second. The tokens of a stream are gathered so that an event is sent
about every `interval_s` wall seconds; this keeps thousands of tokens a second affordable. How far the sent
ends of calls lag behind the model is measured and readable at `/fake/lag`: a run whose `share` isn't small
was too fast for its machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import math
import re
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from agentsched.sim import gpus
from agentsched.testing.backend import FakeBackend
from agentsched.testing.fleet import FakeFleet
from agentsched.testing.http1 import Connection

HOST = "127.0.0.1"
WATCH_S = 0.01
"""How often the fault plans are looked at, to close or open the listening sockets."""


class FleetServer:
    """Serve every backend of a fleet; while entered, their `base_url` is the one on loopback.

    `ports` are one per backend; by default the system picks them.
    """

    def __init__(
        self,
        fleet: FakeFleet,
        *,
        ports: Sequence[int] | None = None,
        time_scale: float = 1.0,
        interval_s: float = 0.02,
        host: str = HOST,
    ) -> None:
        if host != HOST:
            raise ValueError(f"a fake fleet is served on loopback only, {HOST}, not on {host}")
        if time_scale <= 0 or interval_s < 0:
            raise ValueError("time_scale must be above 0 and interval_s not below")
        if ports is not None and len(ports) != len(fleet):
            raise ValueError(f"{len(fleet)} backends need {len(fleet)} ports")
        self._fleet = fleet
        self._doors = [
            _Door(backend, port=port) for backend, port in zip(fleet, ports or [0] * len(fleet), strict=True)
        ]
        self._time_scale = time_scale
        self._interval_s = interval_s
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> FleetServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the ports, and let model time begin."""
        now = asyncio.get_running_loop().time()
        for door in self._doors:
            backend = door.backend
            backend.live.start_at(now, scale=self._time_scale)
            step_s = backend.spec.speed.step_s / self._time_scale
            backend.event_tokens = max(backend.event_tokens, round(self._interval_s / step_s))
            await door.open()
            backend.base_url = f"http://{HOST}:{door.port}/v1"
        self._watch = asyncio.get_running_loop().create_task(self._mind_the_doors())

    async def stop(self) -> None:
        """Close the ports and all connections, wait for their calls to end, and leave the fleet as it was."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        now = asyncio.get_running_loop().time()
        for door in self._doors:
            await door.shut(drop=True)
            door.backend.base_url, door.backend.event_tokens = door.before
            door.backend.live.start_at(now, scale=1.0)

    async def _mind_the_doors(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for door in self._doors:
                if door.backend.faults.refusing(door.backend.live.now()):
                    await door.shut(drop=False)
                else:
                    await door.open()


class _Door:
    """Listen for one backend; shut, its port refuses connections."""

    def __init__(self, backend: FakeBackend, *, port: int) -> None:
        self.backend = backend
        self.before = (backend.base_url, backend.event_tokens)
        self.port = port
        self._server: asyncio.Server | None = None
        self._connections: dict[Connection, None] = {}

    async def open(self) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        listener = socket.create_server((HOST, self.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        self._server = await loop.create_server(self._connection, sock=listener)

    def _connection(self) -> Connection:
        return Connection(self.backend, opened=self._opened, closed=self._closed)

    def _opened(self, connection: Connection) -> None:
        self._connections[connection] = None

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    async def shut(self, *, drop: bool) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if drop:
            connections = list(self._connections)
            for connection in connections:
                connection.abort()
            await asyncio.gather(*(connection.gone() for connection in connections))


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 2**16:
        raise argparse.ArgumentTypeError("must be between 0 and 65535")
    return port


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError("must be a number above 0")
    return number


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m agentsched.testing.server",
        description=__doc__.split("\n")[0] if __doc__ else None,
        epilog="Prints one line of JSON with the addresses once it is ready.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--fleet", default="fast:2", help=f"one of {', '.join(gpus.FLEETS)}, fast:N, or module:attribute"
    )
    parser.add_argument(
        "--port", type=_port, default=0, help="first port; the others follow. 0: the system picks them"
    )
    parser.add_argument("--time-scale", type=_positive, default=1.0, help="model seconds per wall second")
    parser.add_argument(
        "--interval", type=_positive, default=0.02, help="wall seconds between the events of a stream"
    )
    parser.add_argument("--model", action="append", help="served model name; may be repeated")
    parser.add_argument("--responder", help="module:function that answers; see agentsched.testing.Reply")
    parser.add_argument("--api-key", help="what callers have to show")
    parser.add_argument(
        "--for", dest="seconds", type=_positive, help="stop by itself after so many wall seconds"
    )
    return parser.parse_args(arguments)


def build_fleet(options: argparse.Namespace) -> FakeFleet:
    """Return the fleet that the command line asks for."""
    name: str = options.fleet
    if name in gpus.FLEETS:
        fleet = FakeFleet.gpus(name)
    elif (fast := re.fullmatch(r"fast(?::([1-9]\d*))?", name)) is not None:
        fleet = FakeFleet.fast(int(fast[1] or 2))
    else:
        found = _load(name, f"one of {', '.join(gpus.FLEETS)}, fast:N or module:attribute")
        fleet = found if isinstance(found, FakeFleet) else found()
    for backend in fleet:
        backend.models = tuple(options.model or backend.models)
        backend.api_key = options.api_key or backend.api_key
        if options.responder:
            backend.responder = _load(options.responder, "module:function")
    return fleet


def _load(path: str, what: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = path.partition(":")
    if not attribute:
        raise SystemExit(f"{path!r} is not {what}")
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"{path!r} is not {what}: {error}") from None


async def _main(options: argparse.Namespace) -> None:
    fleet = build_fleet(options)
    ports = [options.port + i for i in range(len(fleet))] if options.port else None
    server = FleetServer(fleet, ports=ports, time_scale=options.time_scale, interval_s=options.interval)
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # on Windows loops take no signals
            asyncio.get_running_loop().add_signal_handler(number, over.set)
    try:
        await server.start()
        backends = [
            {"name": backend.name, "base_url": backend.base_url, "models": backend.models}
            for backend in fleet
        ]
        print(json.dumps({"time_scale": options.time_scale, "backends": backends}), flush=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), options.seconds)
    except OSError as error:
        raise SystemExit(f"cannot listen from port {options.port} on: {error.strerror}") from None
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(_main(_parse(None)))
