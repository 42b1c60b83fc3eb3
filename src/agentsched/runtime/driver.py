"""Runs the engine's commands as tasks and feeds what comes of them back as events.

One lock around the engine; everything under it is quick and none of it waits. A call, its attempts and its
spool live on the event loop of the caller; the engine's state is the only thing that loops share.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

from agentsched.engine import Engine, Journal
from agentsched.engine.commands import Abort, Command, ListModels, Resolve, Start, WakeAt
from agentsched.engine.events import Cancelled, Closed, Event, ModelsListed, Submitted, Woke
from agentsched.errors import BackendUnavailable, SchedulerClosed, UsageError
from agentsched.model import Backend, Failure, Limits, Outcome, Reason, Request
from agentsched.runtime.attempt import Attempt
from agentsched.runtime.call import Call
from agentsched.runtime.fork import watch
from agentsched.runtime.inquiry import Inquiry
from agentsched.runtime.loops import LoopRow, Question, running_loop
from agentsched.runtime.pools import Pools
from agentsched.transport.incoming import Incoming
from agentsched.transport.listing import CAP_S
from agentsched.transport.outgoing import Addressing
from agentsched.transport.stack import Stack
from agentsched.transport.upstream import Upstream

log = logging.getLogger("agentsched")

WATCH_S = 1.0
"""How long room may stay with calls whose loop was closed without a word, if nothing else happens."""

OVERDUE_S = 1.5 * CAP_S
"""Age at which a question for models that bounds its own time must be on a loop that has stopped."""

SILENT_S = 60.0
"""How long the log says nothing more of a backend that comes and goes."""

STOPPED_S = 0.1
"""How often a loop that others wait for is looked at: it may stop before it has done what was asked of it."""


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
        self._backends: dict[str, Backend] = {name: row.spec for name, row in engine.backends.items()}
        self._calls: dict[str, Call] = {}
        self._attempts: dict[int, tuple[Attempt, Call]] = {}
        self._loops: dict[asyncio.AbstractEventLoop, LoopRow] = {}
        self._asker: LoopRow | None = None
        self._dropped: deque[Call] = deque()
        self._deciding = False
        self._inbox: deque[Callable[[float], Event]] = deque()
        self._orders: deque[Command] = deque()
        self._failing: set[str] = set()
        self._silent_until: dict[str, float] = {}
        self._inquiry = Inquiry(stack, self.feed)
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
            call = Call(request.id, incoming, row)
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

    def tell(self, backend: str, failure: Failure | None) -> None:
        """Tell the log when a backend begins to fail, now and then; the snapshot counts all failures."""
        if failure is None or not failure.of_the_backend:
            self._failing.discard(backend)
        elif backend not in self._failing:
            self._failing.add(backend)
            now = self.clock()
            if now >= self._silent_until.get(backend, now):
                self._silent_until[backend] = now + SILENT_S
                log.warning("%s: %s: %s", backend, failure.kind, failure.detail)

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
        await asyncio.gather(*map(_closed, rows), return_exceptions=True)
        with self.lock:
            for row in rows:
                self._loops.pop(row.loop, None)

    async def list_all_models(self) -> list[str]:
        """Ask every backend that was not configured with its models, and return all names served.

        Raises:
            SchedulerClosed: after the end.
            BackendUnavailable: if nobody could say.
        """
        if self.engine.closed:
            raise SchedulerClosed("the scheduler is closed")
        with self.lock:
            row = self._row(asyncio.get_running_loop())
        unknown = [backend for backend in self._backends.values() if backend.models is None]
        await asyncio.gather(*(self._inquiry.list(row, backend) for backend in unknown))
        with self.lock:
            served = self.engine.directory.served()
        if self.engine.closed:
            raise SchedulerClosed("the scheduler is closed")
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
            case Start(attempt_id, request_id, backend):
                call = self._calls.get(request_id)
                if call is None:  # its submission was cut short by an exception
                    self._take(lambda at: Cancelled(at=at, request_id=request_id))
                    return
                call.running = True
                attempt = Attempt(self, attempt_id, call, self._backends[backend])
                self._attempts[attempt_id] = (attempt, call)
                self._on(call, attempt.start)
            case Abort(attempt_id):
                attempt, call = self._attempts.pop(attempt_id, (None, None))
                if attempt is not None and call is not None:
                    self._on(call, attempt.abort)
            case Resolve():
                call = self._calls.pop(command.request_id, None)
                if call is not None:
                    call.over = True
                    if command.outcome is not Outcome.COMPLETED:  # its attempt hands the answer over
                        self._on(call, call.resolve, command, self.engine.directory.served)
            case ListModels(backend):
                row = self._row_to_ask_on()
                row.asking[backend] = Question(self.clock())
                self._call(row.loop, self._inquiry.begin, row, self._backends[backend])
            case WakeAt(at):
                for row in self._loops.values():
                    self._call(row.loop, row.arm, at - self.clock())

    def _row_to_ask_on(self) -> LoopRow:
        """Return the loop of the call that needs a list, else the running one, else any that is open."""
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
            pools = Pools(self.stack, self._upstream, self._backends.values())
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
            for closed in [known for known in self._loops if known.is_closed()]:
                row = self._loops.pop(closed)
                self._dropped.extend(call for call in self._calls.values() if call.row is row)
                self._take_back(row, list(row.asking))
            overdue = self.clock() - OVERDUE_S
            for row in list(self._loops.values()) if len(self._loops) > 1 else ():
                self._take_back(row, [name for name, asked in row.asking.items() if asked.since < overdue])
            while self._dropped:
                call = self._dropped.popleft()
                if not call.over:
                    reason = Reason.LOOP_CLOSED if call.loop.is_closed() else Reason.CALLER_LEFT
                    self._take(
                        lambda at, id_=call.request_id, why=reason: Cancelled(
                            at=at, request_id=id_, reason=why
                        )
                    )

    def _take_back(self, row: LoopRow, backends: Sequence[str]) -> None:
        """Have somebody else ask what this loop does not come to hear."""
        for backend in backends:
            del row.asking[backend]
            self._take(lambda at, name=backend: ModelsListed(at=at, backend=name, answered=False))


async def _closed(row: LoopRow) -> None:
    """Close what a loop has open, on that loop, unless it stops first."""
    here = asyncio.get_running_loop()
    if row.loop is here:
        await row.aclose()
        return
    done = asyncio.Event()

    def tell(closing: asyncio.Task[None] | None = None) -> None:
        if closing is not None and not closing.cancelled():
            closing.exception()  # nothing can be done about it, and it is not to be logged as forgotten
        with suppress(RuntimeError):  # nobody waits here any more
            here.call_soon_threadsafe(done.set)

    def close() -> None:
        if row.stop():
            row.loop.create_task(row.aclose()).add_done_callback(tell)
        else:
            tell()

    with suppress(RuntimeError):  # it has closed, and all it had open with it
        row.loop.call_soon_threadsafe(close)
    while row.loop.is_running() and not done.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), STOPPED_S)
