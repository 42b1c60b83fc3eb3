"""Runs the engine's commands as tasks and feeds what comes of them back as events.

One lock around the engine; everything under it is quick and none of it waits. A call, its attempts and its
spool live on the event loop of the caller; the engine's state is the only thing that loops share.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import Any

from agentsched.engine import Engine
from agentsched.engine.commands import Abort, Command, ListModels, Resolve, Start, WakeAt
from agentsched.engine.events import Cancelled, Closed, Event, ModelsListed, Submitted, Woke
from agentsched.model import Backend, Reason, Request
from agentsched.runtime.attempt import Attempt
from agentsched.runtime.call import Call
from agentsched.runtime.loops import LoopRow
from agentsched.transport.incoming import Incoming
from agentsched.transport.listing import list_models
from agentsched.transport.outgoing import Addressing
from agentsched.transport.stack import Stack


class Driver:
    """The asyncio shell around one engine.

    Args:
        clock: monotonic seconds, the same on every loop.
        upstream: an async transport of `stack` for all loops; None for a pool per loop.
    """

    def __init__(
        self, engine: Engine, *, clock: Callable[[], float], stack: Stack, upstream: Any | None
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.stack = stack
        self.addressing = Addressing(stack)
        self.lock = threading.RLock()
        self._upstream = upstream
        self._backends: dict[str, Backend] = {name: row.spec for name, row in engine.backends.items()}
        self._calls: dict[str, Call] = {}
        self._attempts: dict[int, tuple[Attempt, Call]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, LoopRow] = {}
        self._dropped: deque[Call] = deque()

    def submit(self, incoming: Incoming, request: Request) -> Call:
        """Take a call from the running loop."""
        loop = asyncio.get_running_loop()
        call = Call(request.id, incoming, loop)
        with self.lock:
            self._register(loop)
            self._calls[request.id] = call
            try:
                self.feed(lambda at: Submitted(at=at, request=request))
            except BaseException:
                self._calls.pop(request.id, None)
                raise
        return call

    def cancel(self, call: Call, reason: Reason = Reason.CALLER_LEFT) -> None:
        """End a call that nobody waits for; nothing happens if it has ended."""
        if not call.over:
            self.feed(lambda at: Cancelled(at=at, request_id=call.request_id, reason=reason))

    def drop(self, call: Call) -> None:
        """Cancel a call from a place where no lock may be taken, such as a garbage collector's callback."""
        if not call.over:
            self._dropped.append(call)
            try:
                call.loop.call_soon_threadsafe(self._sweep)
            except RuntimeError:
                pass  # its loop has closed: the next event of any other loop sweeps

    def report(self, attempt_id: int, event: Callable[[float], Event]) -> None:
        """Feed the event that ends an attempt."""
        with self.lock:
            self._attempts.pop(attempt_id, None)
            self.feed(event)

    def feed(self, event: Callable[[float], Event]) -> None:
        """Let the engine handle an event of now, and set going what it commands."""
        with self.lock:
            for command in self.engine.handle(event(self.clock())):
                self._obey(command)

    async def aclose(self) -> None:
        """End all calls, wait for their connections to close, and close the pools."""
        self.feed(lambda at: Closed(at=at))
        with self.lock:
            rows = list(self._loops.values())
            self._loops.clear()
        here = asyncio.get_running_loop()
        for row in rows:
            if row.loop is here:
                await row.aclose()
            elif row.loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(row.aclose(), row.loop))

    async def list_models(self, backend: Backend) -> None:
        """Ask a backend what it serves and tell the engine; call it on a registered loop."""
        models: tuple[str, ...] | None = None
        try:
            transport = await self._loops[asyncio.get_running_loop()].transport()
            models = await list_models(self.stack, transport, backend)
        finally:
            self.feed(lambda at: ModelsListed(at=at, backend=backend.name, models=models))

    async def _ask(self, row: LoopRow, backend: Backend) -> None:
        try:
            await self.list_models(backend)
        finally:
            row.asking.remove(backend.name)

    async def list_all_models(self) -> list[str]:
        """Ask every backend that was not configured with its models, and return all names served."""
        with self.lock:
            self._register(asyncio.get_running_loop())
        unknown = [backend for backend in self._backends.values() if backend.models is None]
        await asyncio.gather(*map(self.list_models, unknown))
        return self.engine.directory.served()

    # -- commands -------------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        match command:
            case Start(attempt_id, request_id, backend):
                call = self._calls[request_id]
                attempt = Attempt(self, attempt_id, call, self._backends[backend])
                self._attempts[attempt_id] = (attempt, call)
                row = self._loops.get(call.loop)
                if row is None:
                    self._dropped.append(call)
                else:
                    self._on(call, attempt.start, row)
            case Abort(attempt_id):
                attempt, call = self._attempts.pop(attempt_id)
                self._on(call, attempt.abort)
            case Resolve():
                call = self._calls.pop(command.request_id)
                call.over = True
                self._on(call, call.resolve, command, self.engine.directory.served)
            case ListModels(backend):
                row = self._loops[asyncio.get_running_loop()]
                row.asking.append(backend)
                row.spawn(row.loop.create_task(self._ask(row, self._backends[backend])))
            case WakeAt(at):
                for row in self._loops.values():
                    self._call(row.loop, row.arm, at - self.clock())

    def _on(self, call: Call, act: Callable[..., None], *args: Any) -> None:
        if not self._call(call.loop, act, *args) and not call.over:
            self._dropped.append(call)

    def _call(self, loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: Any) -> bool:
        """Run something on a loop: now if it is this one, soon if not; return False if it has closed."""
        if loop is _running_loop():
            act(*args)
            return True
        try:
            loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            return False
        return True

    # -- loops ----------------------------------------------------------------------------------------

    def _register(self, loop: asyncio.AbstractEventLoop) -> None:
        for closed in [known for known in self._loops if known.is_closed()]:
            row = self._loops.pop(closed)
            self._dropped.extend(call for call in self._calls.values() if call.loop is closed)
            for backend in row.asking:
                self.feed(lambda at, name=backend: ModelsListed(at=at, backend=name, models=None))
        if loop not in self._loops:
            row = self._loops[loop] = LoopRow(loop, self.stack, self._upstream, self._woke)
            if isfinite(self.engine.wake_at):
                row.arm(self.engine.wake_at - self.clock())
        self._sweep()

    def _woke(self) -> None:
        self._sweep()
        self.feed(lambda at: Woke(at=at))

    def _sweep(self) -> None:
        while self._dropped:
            call = self._dropped.popleft()
            self.cancel(call, Reason.LOOP_CLOSED if call.loop.is_closed() else Reason.CALLER_LEFT)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
