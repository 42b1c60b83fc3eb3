"""One try at one backend, as a task on the caller's event loop."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentsched.engine.events import Failed, Finished, Progressed
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Reason, Signals, Usage
from agentsched.model.failure import LEAST_KEPT
from agentsched.runtime.call import Call
from agentsched.runtime.loops import LoopRow
from agentsched.transport.exchange import Ended, Exchange
from agentsched.transport.head import Head
from agentsched.transport.partial import Partial, Way, rest_of
from agentsched.transport.refusal import Broken

if TYPE_CHECKING:
    from agentsched.runtime.driver import Driver

READER_S = 60.0
"""A reader that takes nothing for this long while its spool is full has gone."""


_UNABLE = (FailureKind.INVALID, FailureKind.UNABLE)
"""How a backend fails that does not go on with an answer: it refuses to, or does not stream."""

_UNREACHED = (FailureKind.REFUSED, FailureKind.BROKEN, FailureKind.UNSENDABLE)
"""How a question fails at a backend that the call would not reach either."""


class Attempt:
    """Runs an exchange and reports to the engine. It is the exchange's sink.

    Once the driver does not know it any more, its call may have another one, so that nothing of it may reach the call.

    Attributes:
        backend: where it runs.
    """

    def __init__(self, driver: "Driver", attempt_id: int, call: Call, backend: Backend) -> None:
        self._driver = driver
        self._id = attempt_id
        self._call = call
        self.backend = backend
        self._task: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None
        self._ended: Ended | None = None
        self._aborted = False
        self._begun = False
        self._finished = False
        self._stalled = False

    def start(self) -> None:
        """Begin; call it on the caller's loop."""
        row = self._call.row
        if not self._aborted:
            work = self._run(row)
            try:  # not context=: a task factory may not know it
                self._task = self._call.context.copy().run(row.loop.create_task, work)
            except Exception as error:
                work.close()
                detail = f"the loop's task factory failed: {error!r}"
                self._failed(Ended(Failure(kind=FailureKind.REFUSED, detail=detail)))
            else:
                row.spawn(self._task, self.backend.name)

    def abort(self) -> None:
        """Stop and close the connection; call it on the caller's loop."""
        self._aborted = True
        call = self._call
        call.last = Ended(Failure(kind=FailureKind.REMOVED), None, self._text)
        # what came of a stream since it was stopped from another thread may not have been seen: it is no beginning
        call.partial = self.partial if call.delivered or not call.incoming.stream else None
        if self._task is not None:
            self._task.cancel()

    @property
    def partial(self) -> Partial | None:
        """What has come of the answer, if another backend may go on from there."""
        if self._ended is not None:
            return self._ended.partial
        return self._exchange.partial if self._exchange is not None else self._call.partial

    @property
    def lost(self) -> bool:
        """Whether its caller has seen what nobody can go on with; of one that has yet to ask that is not known."""
        return self._call.delivered and self._exchange is not None and self.partial is None

    @property
    def _text(self) -> str:
        """What has come, whether or not another backend may go on from there."""
        if self._ended is not None:
            return self._ended.partial_text
        if self._exchange is not None:
            return self._exchange.partial_text
        return self._call.partial.text if self._call.partial is not None else ""

    def late(self) -> None:
        """The rest of an answer that has its finish reason does not come."""
        if not self.full and self._exchange is not None:  # while it is full, it waits for its reader
            self._exchange.stop()

    async def _run(self, row: LoopRow) -> None:
        call = self._call
        try:
            begun = await self._begun_elsewhere(row)
            ended = await self._try(row, begun)
            if begun is not None and ended is not None and ended.failure.kind in _UNABLE:
                ended = await self._unable(row, ended)
        except asyncio.CancelledError:
            if self._aborted or self._finished:
                raise
            if cancelled():
                failure = Failure(kind=FailureKind.OWNER_GONE, delivered=call.delivered)
                self._failed(Ended(failure, None, self._text))
                raise
            detail = "the transport gave up by itself (CancelledError)"
            self._failed(self._broken_off(FailureKind.BROKEN, detail))
            return
        except Broken as error:
            self._failed(self._broken_off(error.kind, error.detail))
            return
        except UsageError as error:
            self._failed(self._broken_off(FailureKind.UNSENDABLE, str(error)))
            return
        except GeneratorExit:
            raise  # its loop was closed under it
        except BaseException as error:
            if not self._finished:
                self._failed(self._broken_off(FailureKind.PROTOCOL, repr(error)))
            raise
        finally:
            row.ending.pop(self, None)
            # in a circle with them, prompt and answer would wait for the collector
            self._exchange = self._task = None
        if ended is not None and not self._finished:
            self._failed(ended)

    async def _try(self, row: LoopRow, begun: tuple[Partial, Way] | None) -> Ended | None:
        """Ask for the answer, or for the rest of it; return how that failed."""
        driver, call, backend = self._driver, self._call, self.backend
        transport = await row.transport(backend)
        incoming = call.incoming
        if begun is not None:
            incoming = rest_of(incoming, *begun, window=driver.abilities.window(backend))
        outgoing = driver.addressing.address(incoming, backend, call.priority, rest=begun is not None)
        limits = backend.limits if backend.limits is not None else driver.limits
        self._exchange = Exchange(
            driver.stack, transport, call.incoming, outgoing, self, limits=limits, begun=begun
        )
        return await self._exchange.run()

    async def _begun_elsewhere(self, row: LoopRow) -> tuple[Partial, Way] | None:
        """Return what there is of the answer, and how this backend goes on with it; None if it is to begin.

        Raises:
            Broken: if it has to go on, and cannot.
        """
        call = self._call
        partial, call.partial = call.partial, None
        if partial is None:
            if call.delivered:  # it was stopped from another thread, and went on until it heard of that
                raise Broken(FailureKind.UNABLE, "nobody can go on with what the caller has seen")
            return None
        if not partial.text or (partial.tokens < LEAST_KEPT and not call.delivered):
            return (partial, Way.ANEW) if call.delivered else None
        call.partial = partial
        exact = self._driver.addressing.exact(self.backend.name)
        try:
            way = await self._driver.abilities.way(row, self.backend, call.incoming, partial, exact=exact)
        except Broken as error:
            if call.delivered or error.kind in _UNREACHED:
                raise
            way = None  # what it makes of the question does not tell what it makes of the call
        if way is not None:
            return partial, way
        if call.delivered:
            raise Broken(FailureKind.UNABLE, "it cannot go on with the answer of another backend")
        call.partial = None
        return None

    async def _unable(self, row: LoopRow, ended: Ended) -> Ended | None:
        """Begin anew, if the caller has seen nothing, where a backend did not go on as it should have been able to."""
        self._driver.abilities.forget(self.backend.name)
        self._exchange = None
        if self._call.delivered:
            self._call.partial = ended.partial
            return self._broken_off(FailureKind.UNABLE, ended.failure.detail)
        self._call.partial = None
        return await self._try(row, None)

    def _broken_off(self, kind: FailureKind, detail: str) -> Ended:
        """Return the failure of an attempt that ended before its exchange did; what there is is kept."""
        partial = self.partial
        kept = partial.tokens if partial is not None else None
        failure = Failure(kind=kind, delivered=self._call.delivered, kept_tokens=kept, detail=detail)
        return Ended(failure, None, self._text, partial)

    def _failed(self, ended: Ended) -> None:
        call, failure, driver = self._call, ended.failure, self._driver
        with driver.lock:
            if not driver.knows(self._id):
                self._ended = ended  # it was stopped from another thread, and is yet to hear of that
                return
            if failure.kind is not FailureKind.UNABLE or call.last is None:
                call.last = ended
            call.partial = ended.partial
            driver.addressing.forget(self.backend.name)
            call.sent = call.sent or failure.sent
            if failure.kind is not FailureKind.OWNER_GONE:
                driver.complaints.note(self.backend.name, failure)
            driver.report(self._id, lambda at: Failed(at=at, attempt_id=self._id, failure=failure))

    # -- what the exchange reports --------------------------------------------------------------------

    @property
    def delivered(self) -> bool:
        return self._call.delivered

    def begin(self, head: Head, answer: Mapping[str, Any] | None = None) -> None:
        with (
            self._driver.lock
        ):  # from another thread it may be stopped and begun anew elsewhere, unless this is seen
            known = self._driver.knows(self._id)
            if known:
                self._driver.addressing.learn(self.backend.name, head, answer)
                self._call.begin(head, self.backend.name)
            # one that goes on with what was seen does so until it hears that it was stopped: what comes is kept
            self._begun = known or (self._call.delivered and not self._aborted)

    def tells(self, event: Mapping[str, Any]) -> None:
        self._driver.addressing.learn(self.backend.name, None, event)

    def put(self, chunk: bytes) -> None:
        if self._begun:
            self._call.spool.put(chunk)

    @property
    def full(self) -> bool:
        return self._call.spool.full

    async def room(self) -> None:
        spool = self._call.spool
        while spool.full:
            self._stalled = True
            taken = spool.taken
            try:
                async with asyncio.timeout(READER_S):
                    await spool.room()
            except TimeoutError:
                if spool.taken == taken:
                    self._driver.cancel(self._call, Reason.READER_STALLED)
                    return

    def ending(self) -> None:
        self._call.row.end_soon(self)

    def progressed(self, tokens: int, connect_s: float) -> None:
        self._driver.feed(
            lambda at: Progressed(at=at, attempt_id=self._id, output_tokens=tokens, connect_s=connect_s)
        )

    def signalled(self, signals: Signals) -> None:
        with self._driver.lock:
            self._driver.gauges.overhear(self.backend, signals)

    def priority_refused(self, why: str) -> None:
        driver, name = self._driver, self.backend.name
        with driver.lock:
            if driver.knows(self._id) and driver.addressing.priorities.refuse(name):
                driver.complaints.takes_no_priority(name, why)

    def finished(self, usage: Usage, *, kept_tokens: int = 0) -> None:
        self._finished = True
        self._call.row.ending.pop(self, None)
        self._driver.complaints.note(self.backend.name, None)
        learn = not self._stalled
        try:
            self._driver.report(
                self._id,
                lambda at: Finished(
                    at=at, attempt_id=self._id, usage=usage, learn=learn, kept_tokens=kept_tokens
                ),
            )
        finally:
            if self._begun:
                self._call.spool.close()


def cancelled() -> bool:
    """Whether somebody cancels the running task, or a cancellation comes from within."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
