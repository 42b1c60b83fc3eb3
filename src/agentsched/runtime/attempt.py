"""One try at one backend, as a task on the caller's event loop."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentsched.engine.events import Failed, Finished, Progressed
from agentsched.errors import UsageError
from agentsched.model import Backend, Failure, FailureKind, Reason, Signals, Usage
from agentsched.runtime.call import Call
from agentsched.runtime.loops import LoopRow
from agentsched.transport.exchange import Ended, Exchange
from agentsched.transport.head import Head

if TYPE_CHECKING:
    from agentsched.runtime.driver import Driver

READER_S = 60.0
"""A reader that takes nothing for this long while its spool is full has gone."""


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
        text = self._exchange.partial_text if self._exchange is not None else ""
        self._call.last = Ended(Failure(kind=FailureKind.REMOVED), None, text)
        if self._task is not None:
            self._task.cancel()

    def late(self) -> None:
        """The rest of an answer that has its finish reason does not come."""
        if not self.full and self._exchange is not None:  # while it is full, it waits for its reader
            self._exchange.stop()

    async def _run(self, row: LoopRow) -> None:
        call, backend = self._call, self.backend
        try:
            transport = await row.transport(backend)
            driver = self._driver
            outgoing = driver.addressing.address(call.incoming, backend, call.priority)
            limits = backend.limits if backend.limits is not None else driver.limits
            self._exchange = Exchange(driver.stack, transport, call.incoming, outgoing, self, limits=limits)
            ended = await self._exchange.run()
        except asyncio.CancelledError:
            if self._aborted or self._finished:
                raise
            if cancelled():
                self._failed(Ended(Failure(kind=FailureKind.OWNER_GONE, delivered=call.delivered)))
                raise
            detail = "the transport gave up by itself (CancelledError)"
            failure = Failure(kind=FailureKind.BROKEN, delivered=call.delivered, detail=detail)
            self._failed(Ended(failure))
            return
        except UsageError as error:
            self._failed(Ended(Failure(kind=FailureKind.UNSENDABLE, detail=str(error))))
            return
        except GeneratorExit:
            raise  # its loop was closed under it
        except BaseException as error:
            if not self._finished:
                failure = Failure(kind=FailureKind.PROTOCOL, delivered=call.delivered, detail=repr(error))
                self._failed(Ended(failure))
            raise
        finally:
            row.ending.pop(self, None)
            # in a circle with them, prompt and answer would wait for the collector
            self._exchange = self._task = None
        if ended is not None and not self._finished:
            self._failed(ended)

    def _failed(self, ended: Ended) -> None:
        call, failure, driver = self._call, ended.failure, self._driver
        with driver.lock:
            if not driver.knows(self._id):
                return
            call.last = ended
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
            self._begun = self._driver.knows(self._id)
            if self._begun:
                self._driver.addressing.learn(self.backend.name, head, answer)
                self._call.begin(head, self.backend.name)

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
        self._driver.overhear(self.backend, signals)

    def priority_refused(self, why: str) -> None:
        driver, name = self._driver, self.backend.name
        with driver.lock:
            if driver.knows(self._id) and driver.addressing.priorities.refuse(name):
                driver.complaints.takes_no_priority(name, why)

    def finished(self, usage: Usage) -> None:
        self._finished = True
        self._call.row.ending.pop(self, None)
        self._driver.complaints.note(self.backend.name, None)
        learn = not self._stalled
        try:
            self._driver.report(
                self._id, lambda at: Finished(at=at, attempt_id=self._id, usage=usage, learn=learn)
            )
        finally:
            if self._begun:
                self._call.spool.close()


def cancelled() -> bool:
    """Whether somebody cancels the running task, or a cancellation comes from within."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
