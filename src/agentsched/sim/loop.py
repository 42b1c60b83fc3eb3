"""The virtual shell: the production engine driven by a heap of events, without tasks and without a clock."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Any

from agentsched.engine import Engine, Journal
from agentsched.engine.commands import Abort, Forget, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Signalled,
    Submitted,
    Woke,
)
from agentsched.model import Backend, Request
from agentsched.model.failure import LEAST_KEPT
from agentsched.policy import Policy
from agentsched.predict import Profile
from agentsched.sim.plan import Node
from agentsched.sim.server import Server

MAX_QUEUED = 10**9
"""A simulated overload is to be seen, not turned away."""

Act = Callable[[float], None]


class Loop:
    """Runs an engine in virtual time.

    Args:
        fleet: the backends and what serves there.
        on_start: told of every attempt that starts: time, attempt, request, backend.
        on_end: told of every request that ended.
        profile: what an earlier run has learned.
        journal: told of all events and commands.
    """

    def __init__(
        self,
        fleet: Sequence[tuple[Backend, Server]],
        *,
        policy: Policy,
        max_queued: int = MAX_QUEUED,
        on_start: Callable[[float, Start], None] | None = None,
        on_end: Callable[[float, Resolve], None] | None = None,
        profile: Profile | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.engine = Engine(
            [backend for backend, _ in fleet],
            policy=policy,
            max_queued=max_queued,
            profile=profile,
            kept_stories=0,
            journal=journal,
        )
        self._journal = journal
        self.now = 0.0
        self._on_start = on_start
        self._on_end = on_end
        self._rows = {backend.name: _Row(server, backend, self._fetch) for backend, server in fleet}
        self._nodes: dict[str, Node] = {}
        self._running: dict[int, tuple[_Row, str]] = {}
        self._kept: dict[str, int] = {}
        self._heap: list[tuple[float, int, Act]] = []
        self._pushed = 0
        self._inbox: deque[Event] = deque()
        self._deciding = False
        self._stopped = False
        self._acts: Mapping[type[Any], Callable[[Any], None]] = {
            Start: self._start,
            Resolve: self._resolve,
            Abort: self._abort,
            WakeAt: self._wake,
            ListModels: self._list_models,
            LookAt: self._look_at,
            Forget: self._forget,
        }

    def at(self, when: float, act: Act) -> None:
        """Have something done at a time; of equal times, what was asked for first comes first."""
        self._pushed += 1
        heappush(self._heap, (when, self._pushed, act))

    def submit(self, request: Request, node: Node) -> None:
        """Make a call now."""
        self._nodes[request.id] = node
        self.feed(Submitted(self.now, request))

    def cancel(self, request_id: str) -> None:
        """Leave a call now; nothing happens if it has ended."""
        if request_id in self._nodes:
            self.feed(Cancelled(at=self.now, request_id=request_id))

    def join(self, backend: Backend, server: Server) -> None:
        """Have a backend join the fleet now.

        Raises:
            UsageError: if another one has its name or address.
        """
        fleet = self.engine.fleet
        fleet.check_new(backend)
        self._rows[backend.name] = _Row(server, backend, self._fetch)
        self.feed(BackendJoined(at=self.now, backend=backend, learned=fleet.profile.of(backend)))

    def leave(self, name: str, *, drain: bool = True) -> None:
        """Have a backend leave the fleet now: once its calls have ended, or at once, so that they go on elsewhere.

        Raises:
            UsageError: if there is no such backend.
        """
        self.engine.fleet.of(name)
        self.feed(BackendLeft(at=self.now, backend=name, drain=drain))

    def run(self, until: float = inf) -> None:
        """Let everything happen that is due up to then, or until somebody says `stop`."""
        heap = self._heap
        self._stopped = False
        while heap and heap[0][0] <= until and not self._stopped:
            self.now, _, act = heappop(heap)
            act(self.now)
        if until < inf and not self._stopped:
            self.now = max(self.now, until)

    def stop(self) -> None:
        """Have `run` return once what happens now has happened."""
        self._stopped = True

    def feed(self, event: Event) -> None:
        """Let the engine handle an event, and do what it commands; what comes of that is handled next."""
        if self._deciding:
            self._inbox.append(event)
            return
        self._deciding = True
        acts, inbox = self._acts, self._inbox
        try:
            while True:
                commands = self.engine.handle(event)
                if self._journal is not None:
                    self._journal.decided(commands)
                for command in commands:
                    acts[type(command)](command)
                if not inbox:
                    break
                event = inbox.popleft()
        finally:
            self._deciding = False

    def _start(self, start: Start) -> None:
        row = self._rows[start.backend]
        self._running[start.attempt_id] = row, start.request_id
        if self._on_start is not None:
            self._on_start(self.now, start)
        row.server.start(self.now, start.attempt_id, self._nodes[start.request_id])
        self._arm(row)

    def _resolve(self, end: Resolve) -> None:
        del self._nodes[end.request_id]
        if self._kept:
            self._kept.pop(end.request_id, None)
        if self._on_end is not None:
            self._on_end(self.now, end)

    def _abort(self, abort: Abort) -> None:
        row, request_id = self._running.pop(abort.attempt_id)
        self._keep(request_id, row.server.abort(self.now, abort.attempt_id))
        self._arm(row)

    def _wake(self, wake: WakeAt) -> None:
        self.at(wake.at, self._woke)

    def _list_models(self, question: ListModels) -> None:
        models = tuple(self._rows[question.backend].backend.models or ()) or None
        self._inbox.append(ModelsListed(at=self.now, backend=question.backend, models=models))

    def _look_at(self, question: LookAt) -> None:
        signals = self._rows[question.backend].server.signals()
        self._inbox.append(Signalled(at=self.now, backend=question.backend, signals=signals))

    def _forget(self, _: Forget) -> None:
        """Do nothing: another one of that name may be in its row already."""

    def _keep(self, request_id: str, written: int) -> None:
        """Keep what was written of an answer, as the runtime does, if it is worth it."""
        node, kept = self._nodes.get(request_id), self._kept.get(request_id, 0) + written
        if node is not None and kept >= LEAST_KEPT:
            self._kept[request_id] = kept
            self._nodes[request_id] = node.rest(written)

    def _broken(self, news: Failed, request_id: str) -> Failed:
        """Keep what a broken answer had, and say how much there is with what was kept before."""
        written = news.failure.kept_tokens or 0
        whole = self._kept.get(request_id, 0) + written
        self._keep(request_id, written)
        return replace(news, failure=replace(news.failure, kept_tokens=whole))

    def _woke(self, now: float) -> None:
        self.feed(Woke(at=now))

    def _arm(self, row: "_Row") -> None:
        """See to it that a server's news is fetched when there is some."""
        due = row.server.next_at()
        if due != row.due:
            row.due = due
            if due is not None:
                self.at(due if due > self.now else self.now, row.fetch)  # noqa: FURB136 - each call comes by

    def _fetch(self, row: "_Row", now: float) -> None:
        if row.due is None or row.due > now:
            return  # what was to come has changed since
        row.due = None
        running = self._running
        for news in row.server.advance(now):
            found = running.get(news.attempt_id)
            if found is not None and found[0] is row:
                if type(news) is Finished:
                    del running[news.attempt_id]
                    if self._kept:
                        self.feed(replace(news, kept_tokens=self._kept.get(found[1], 0)))
                    else:
                        self.feed(news)
                elif type(news) is Failed:
                    del running[news.attempt_id]
                    self.feed(self._broken(news, found[1]) if news.failure.kept_tokens else news)
                else:
                    self.feed(news)
        self._arm(row)


class _Row:
    """A backend.

    Attributes:
        due: when its server's news is fetched next; None if it is not.
        fetch: fetches it.
    """

    __slots__ = ("backend", "due", "fetch", "server")

    def __init__(self, server: Server, backend: Backend, fetch: Callable[["_Row", float], None]) -> None:
        self.server = server
        self.backend = backend
        self.due: float | None = None
        self.fetch = partial(fetch, self)
