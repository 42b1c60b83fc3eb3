"""Runs the engine's commands as tasks and feeds what comes of them back as events.

One lock around the engine; everything under it is quick and none of it waits. A call, its attempts and its
spool live on the event loop of the caller; the engine's state is the only thing that loops share.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

from agentsched.engine import Engine, Journal
from agentsched.engine.commands import Abort, Command, Forget, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.events import Cancelled, Closed, Event, ModelsListed, Submitted, Woke
from agentsched.errors import BackendUnavailable, FleetEmpty, SchedulerClosed, UsageError
from agentsched.model import Backend, Limits, Outcome, Reason, Request
from agentsched.runtime.abilities import Abilities
from agentsched.runtime.attempt import Attempt
from agentsched.runtime.call import Call
from agentsched.runtime.complaints import Complaints
from agentsched.runtime.fleet import Fleet
from agentsched.runtime.fork import watch
from agentsched.runtime.gauges import Gauges
from agentsched.runtime.inquiry import Inquiry
from agentsched.runtime.loops import LoopRow, Question, close_there, running_loop
from agentsched.runtime.pools import Pools
from agentsched.runtime.verdict import NO_BACKEND
from agentsched.transport.incoming import Incoming
from agentsched.transport.listing import CAP_S
from agentsched.transport.outgoing import Addressing
from agentsched.transport.stack import Stack
from agentsched.transport.upstream import Upstream

WATCH_S = 1.0
"""How long room may stay with calls whose loop was closed without a word, if nothing else happens."""

OVERDUE_S = 1.5 * CAP_S
"""Age at which a question for models that bounds its own time must be on a loop that has stopped."""


class Driver:
    """The asyncio shell around one engine.

    Args:
        clock: monotonic seconds, the same on every loop.
        upstream: where the loops get their transports from, of `stack`; None for pools of our own.
        limits: on attempts at backends that have none of their own.
        journal: told of all events and commands.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        stack: Stack,
        upstream: Upstream | None = None,
        limits: Limits | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.engine = engine
        self.engine.journal = self._journal = journal
        self.clock = clock
        self.stack = stack
        self.addressing = Addressing(stack)
        self.lock = threading.RLock()
        self.limits = limits
        self._upstream = upstream
        self.fleet = Fleet(self)
        self._calls: dict[str, Call] = {}
        self._attempts: dict[int, tuple[Attempt, Call]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, LoopRow] = {}
        self._asker: LoopRow | None = None
        self._dropped: deque[Call] = deque()
        self._deciding = False
        self._inbox: deque[Callable[[float], Event]] = deque()
        self._orders: deque[Command] = deque()
        self.complaints = Complaints(clock)
        self.abilities = Abilities(stack)
        self._inquiry = Inquiry(stack, self.fleet.hear)
        self.gauges = Gauges(stack, self.fleet.hear, clock, engine.backends)
        self._left_behind: list[object] = []
        watch(self)

    def submit(
        self, incoming: Incoming, request: Request, loop: asyncio.AbstractEventLoop | None = None
    ) -> Call:
        """Take a call that is to run on a loop: the running one if None."""
        with self.lock:
            if self._deciding:
                raise UsageError("a policy cannot make calls: it is asked in the middle of a decision")
            row = self._row(loop if loop is not None else asyncio.get_running_loop())
            call = Call(request.id, incoming, row, request.priority)
            self._calls[request.id] = call
            self._asker = row
            try:
                self.feed(lambda at: Submitted(at=at, request=request))
            except BaseException:
                self._calls.pop(request.id, None)
                self.feed(lambda at: Cancelled(at=at, request_id=request.id))
                raise
            finally:
                self._asker = None
            self._watch()
        return call

    def waits_in_vain(self, call: Call, blocked: asyncio.AbstractEventLoop) -> bool:
        """Whether a call waits for room, or for a list of models, that work of a blocked loop may never free."""
        with self.lock:
            if call.over or call.running:
                return False
            row = self.engine.requests[call.request_id]
            if not row.choice:
                return blocked in self._loops and bool(self._loops[blocked].asking)
            running = [a for name in row.choice for a in self.engine.backends[name].running.values()]
            return bool(running) and all(self._calls[a.request_id].loop is blocked for a in running)

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
            _, call = self._attempts.pop(attempt_id, (None, None))
            if call is not None:
                call.running = False
            self.feed(event)

    def knows(self, attempt_id: int) -> bool:
        """Whether an attempt is under way: it has not been stopped; the lock is held."""
        return attempt_id in self._attempts

    def seen_at(self, backend: str) -> tuple[int, ...]:
        """Return the attempts at a backend that nobody can go on with, or begin anew unseen; the lock is held."""
        return tuple(
            id_
            for id_, (attempt, _) in self._attempts.items()
            if attempt.backend.name == backend and attempt.lost
        )

    def let_change(self) -> None:
        """End the calls of loops that have closed, which a change of the fleet is not to move; the lock is held."""
        if self._deciding:
            raise UsageError("a policy cannot change the fleet: it is asked in the middle of a decision")
        self._sweep()

    def feed(self, event: Callable[[float], Event]) -> None:
        """Let the engine handle an event of now, and set going what it commands."""
        with self.lock:
            self._take(event)
            if self._dropped or len(self._loops) > 1:
                self._sweep()

    def _take(self, event: Callable[[float], Event]) -> None:
        """Decide and act on one event, then on those that came up meanwhile.

        They come from inside a decision or an action: tasks that start eagerly, a policy that calls back, and
        the garbage collector, which may close a query anywhere.
        """
        self._inbox.append(event)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._inbox:
                taken = self._inbox.popleft()(self.clock())
                try:
                    self.engine.handle(taken)
                finally:
                    self._orders.extend(self.engine.commands)
                    if self._journal is not None:
                        self._journal.decided(self.engine.commands)
                    # if an exception hits an action, the next event goes on with the rest
                    while self._orders:
                        self._obey(self._orders.popleft())
        finally:
            self._deciding = False

    async def aclose(self) -> None:
        """End all calls, wait for their connections to close, and close the pools."""
        self.feed(lambda at: Closed(at=at))
        with self.lock:
            rows = list(self._loops.values())
        await asyncio.gather(*map(close_there, rows), return_exceptions=True)
        with self.lock:
            for row in rows:
                self._loops.pop(row.loop, None)

    async def list_all_models(self) -> list[str]:
        """Ask every backend that was not configured with its models, and return all names served.

        Raises:
            SchedulerClosed: after the end.
            FleetEmpty: if there is no backend.
            BackendUnavailable: if nobody could say.
        """
        if self.engine.closed:
            raise SchedulerClosed("the scheduler is closed")
        with self.lock:
            row = self._row(asyncio.get_running_loop())
            fleet = [known.spec for known in self.engine.backends.values() if not known.draining]
        unknown = [backend for backend in fleet if backend.models is None]
        await asyncio.gather(*(self._inquiry.list(row, backend) for backend in unknown))
        with self.lock:
            served = self.engine.directory.served()
        if self.engine.closed:
            raise SchedulerClosed("the scheduler is closed")
        if not fleet:
            raise FleetEmpty(NO_BACKEND)
        if not served:
            raise BackendUnavailable(
                "no backend could list its models; the log says why", backend="", attempts=1
            )
        return served

    # -- a fork ---------------------------------------------------------------------------------------

    def hold(self) -> None:
        self.lock.acquire()

    def let_go(self) -> None:
        self.lock.release()

    def start_anew(self) -> None:
        """Forget what the parent has under way; its connections are the parent's, so nothing is closed."""
        # kept, not dropped: being collected here, they would speak to the parent's loops
        self._left_behind += [self._loops, self._calls, self._attempts, self._dropped]
        self._left_behind += self.fleet.start_anew()
        self._loops, self._calls, self._attempts, self._dropped = {}, {}, {}, deque()
        self._inbox.clear()
        self._orders.clear()
        self._deciding = False
        self._asker = None
        engine, now = self.engine, self.clock()
        engine.journal = self._journal = None
        while engine.requests:
            engine.handle(Cancelled(at=now, request_id=next(iter(engine.requests))))
        for name in engine.directory.asked:
            engine.handle(ModelsListed(at=now, backend=name, answered=False))
        engine.handle(Woke(at=now))

    # -- commands -------------------------------------------------------------------------------------

    def _obey(self, command: Command) -> None:
        match command:
            case Start():
                self._start(command)
            case Abort(attempt_id):
                attempt, call = self._attempts.pop(attempt_id, (None, None))
                if attempt is not None and call is not None:
                    if call.request_id in self.engine.requests:  # it goes on elsewhere
                        call.running, call.sent = False, True
                    self._on(call, attempt.abort)
            case Resolve():
                call = self._calls.pop(command.request_id, None)
                if call is not None:
                    call.over = True
                    if command.outcome is not Outcome.COMPLETED:  # its attempt hands the answer over
                        self._on(call, call.resolve, command, self.engine.directory.served)
            case ListModels() | LookAt():
                self._ask(command)
            case Forget(backend):
                self._forget(backend)
            case WakeAt(at):
                for row in self._loops.values():
                    self._call(row.loop, row.arm, at - self.clock())

    def _start(self, command: Start) -> None:
        call, spec = self._calls.get(command.request_id), self._spec(command.backend)
        if call is None:  # its submission was cut short by an exception
            self._take(lambda at: Cancelled(at=at, request_id=command.request_id))
        elif spec is not None:  # else it has left before this was obeyed, and the order to abort it follows
            call.running = True
            attempt = Attempt(self, command.attempt_id, call, spec)
            self._attempts[command.attempt_id] = (attempt, call)
            self._on(call, attempt.start)

    def _ask(self, command: ListModels | LookAt) -> None:
        spec = self._spec(command.backend)
        if spec is None:
            return
        if isinstance(command, ListModels):
            row = self._row_to_ask_on()
            question = row.asking[spec.name] = Question(self.clock())
            self._call(row.loop, self._inquiry.begin, row, spec, question)
            return
        with suppress(StopIteration):  # no loop is open: nobody waits for what runs there
            row = self._row_to_ask_on()
            self._call(row.loop, self.gauges.begin, row, spec)

    def _spec(self, backend: str) -> Backend | None:
        row = self.engine.backends.get(backend)
        return None if row is None else row.spec

    def _forget(self, backend: str) -> None:
        """Close what is open to a backend that is gone, and remember nothing of it."""
        addressing = self.addressing
        for known in (addressing, addressing.priorities, self.complaints, self.abilities, self._inquiry):
            known.forget(backend)
        for row in self._loops.values():
            self._call(row.loop, self.gauges.forget, row, backend)
            self._call(row.loop, row.forget, backend, row.asking.pop(backend, None))
        self.fleet.gone(backend)

    def _row_to_ask_on(self) -> LoopRow:
        """Return the loop of the call that leads to a question, else the running one, else any that is open.

        Raises:
            StopIteration: if none is.
        """
        if self._asker is not None:
            return self._asker
        loop = running_loop()
        if loop is not None:
            return self._row(loop)
        return next(row for row in self._loops.values() if not row.loop.is_closed())

    def _on(self, call: Call, act: Callable[..., None], *args: Any) -> None:
        if not self._call(call.loop, act, *args) and not call.over:
            self._dropped.append(call)

    def _call(self, loop: asyncio.AbstractEventLoop, act: Callable[..., None], *args: Any) -> bool:
        """Run something on a loop: now if it is this one, soon if not; return False if it has closed."""
        if loop is running_loop():
            act(*args)
            return True
        try:
            loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            return False
        return True

    # -- loops ----------------------------------------------------------------------------------------

    def _row(self, loop: asyncio.AbstractEventLoop) -> LoopRow:
        """Return the row of a loop."""
        row = self._loops.get(loop)
        if row is None:
            pools = Pools(self.stack, self._upstream)
            row = LoopRow(loop, pools, self._woke)
            if not self.engine.closed:
                self._loops[loop] = row
                if isfinite(self.engine.wake_at):
                    self._call(loop, row.arm, self.engine.wake_at - self.clock())
            self._sweep()
        return row

    def _woke(self) -> None:
        with self.lock:
            self.feed(lambda at: Woke(at=at))
            self._watch()

    def _watch(self) -> None:
        """While several loops share the backends, look now and then whether one has closed under its calls."""
        if len(self._loops) > 1 and self._calls:
            for row in self._loops.values():
                self._call(row.loop, row.arm, WATCH_S)

    def _sweep(self) -> None:
        """End the calls that were dropped, and those whose loop has closed."""
        with self.lock:
            lost = [self._loops.pop(known) for known in list(self._loops) if known.is_closed()]
            self._dropped.extend(call for call in self._calls.values() if call.row in lost)
            while self._dropped:
                call = self._dropped.popleft()
                if not call.over:
                    reason = Reason.LOOP_CLOSED if call.loop.is_closed() else Reason.CALLER_LEFT
                    self._take(
                        lambda at, id_=call.request_id, why=reason: Cancelled(
                            at=at, request_id=id_, reason=why
                        )
                    )
            for row in lost:
                self._take_back(row, list(row.asking))
            overdue = self.clock() - OVERDUE_S
            for row in list(self._loops.values()) if len(self._loops) > 1 else ():
                self._take_back(row, [name for name, asked in row.asking.items() if asked.since < overdue])

    def _take_back(self, row: LoopRow, backends: Sequence[str]) -> None:
        """Have somebody else ask what this loop does not come to hear."""
        for backend in backends:
            del row.asking[backend]
            self._take(lambda at, name=backend: ModelsListed(at=at, backend=name, answered=False))
