"""A backend as the loop sees it: attempts go in, the engine's events come out, in virtual time."""

import heapq
from collections.abc import Callable
from typing import Protocol

from agentsched.engine.events import Failed, Finished, Progressed
from agentsched.model import Failure, FailureKind, Signals, Usage
from agentsched.sim.backend import BackendModel
from agentsched.sim.calls import Call, Kind, Refusal
from agentsched.sim.plan import Node
from agentsched.sim.spec import BackendSpec

REPORT_TOKENS = 200
"""Output tokens between two reports of progress, as over the wire."""

News = Progressed | Finished | Failed


class Server(Protocol):
    """Takes attempts. Everything depends on the times of `start` and `abort` alone."""

    def start(self, now: float, attempt_id: int, node: Node) -> None:
        """Take an attempt."""
        ...

    def abort(self, now: float, attempt_id: int) -> int:
        """Drop one of which nothing more is to be heard; return how many tokens it had written."""
        ...

    def next_at(self) -> float | None:
        """Return when there is news if nothing else happens; None for never."""
        ...

    def advance(self, now: float) -> list[News]:
        """Return what happened up to now, in order."""
        ...

    def signals(self) -> Signals | None:
        """Return what it says of its load; None if nothing."""
        ...


class BatchServer:
    """An engine that batches continuously: see `BackendModel`."""

    def __init__(self, spec: BackendSpec) -> None:
        self.model = BackendModel(spec)
        self._inputs: dict[int | str, int] = {}
        self._refused: list[News] = []

    def start(self, now: float, attempt_id: int, node: Node, *, report_every: int = REPORT_TOKENS) -> None:
        call = Call(
            call_id=attempt_id,
            prompt_tokens=node.input_tokens,
            output_tokens=node.output_tokens,
            prompt_blocks=node.prompt_blocks,
            output_blocks=node.output_blocks,
            report_every=report_every,
        )
        refusal = self.model.submit(now, call)
        if refusal is None:
            self._inputs[attempt_id] = node.input_tokens
        else:
            kind = FailureKind.OVERLOADED if refusal is Refusal.QUEUE_FULL else FailureKind.INVALID
            self._refused.append(Failed(at=now, attempt_id=attempt_id, failure=Failure(kind=kind)))

    def abort(self, now: float, attempt_id: int) -> int:
        if self._inputs.pop(attempt_id, None) is None:
            return 0
        return self.model.abort(now, attempt_id) or 0

    def next_at(self) -> float | None:
        return self.model.now if self._refused else self.model.next_at()

    def advance(self, now: float) -> list[News]:
        news, self._refused = self._refused, []
        for output in self.model.advance(now):
            attempt_id = output.call_id
            if not isinstance(attempt_id, int) or attempt_id not in self._inputs:
                continue
            if output.kind is Kind.FINISHED:
                usage = Usage(self._inputs.pop(attempt_id), output.tokens, output.cached_tokens)
                news.append(Finished(output.at, attempt_id, usage))
            elif output.kind is Kind.FIRST_TOKEN or output.kind is Kind.PROGRESS:
                news.append(Progressed(output.at, attempt_id, output.tokens))
        return news

    def signals(self) -> Signals | None:
        gauges, spec = self.model.gauges(), self.model.spec
        return Signals(
            running=gauges.running,
            waiting=gauges.waiting,
            kv_usage=gauges.kv_usage,
            kv_tokens=spec.kv_blocks * spec.block_tokens,
        )


class FailingServer:
    """A server some of whose attempts fail at once.

    Args:
        inner: serves the others.
        failure_of: from the number of an attempt here, counted from 1, to how it fails; None if it does not.
    """

    def __init__(self, inner: Server, failure_of: Callable[[int], FailureKind | None]) -> None:
        self._inner = inner
        self._failure_of = failure_of
        self._started = 0
        self._failed: list[Failed] = []

    def start(self, now: float, attempt_id: int, node: Node) -> None:
        self._started += 1
        kind = self._failure_of(self._started)
        if kind is None:
            self._inner.start(now, attempt_id, node)
        else:
            self._failed.append(Failed(at=now, attempt_id=attempt_id, failure=Failure(kind=kind)))

    def abort(self, now: float, attempt_id: int) -> int:
        self._failed = [failed for failed in self._failed if failed.attempt_id != attempt_id]
        return self._inner.abort(now, attempt_id)

    def next_at(self) -> float | None:
        return self._failed[0].at if self._failed else self._inner.next_at()

    def advance(self, now: float) -> list[News]:
        failed, self._failed = self._failed, []
        return [*failed, *self._inner.advance(now)]

    def signals(self) -> Signals | None:
        return self._inner.signals()


class BreakingServer(BatchServer):
    """An engine some of whose answers break off.

    Args:
        kept_of: from the number of an attempt here, counted from 1, to the tokens of its answer that come, fewer than
            `REPORT_TOKENS`; it breaks off when the next one would. None if it does not.
    """

    def __init__(self, spec: BackendSpec, kept_of: Callable[[int], int | None]) -> None:
        super().__init__(spec)
        self._kept_of = kept_of
        self._started = 0
        self._breaking: dict[int, int] = {}

    def start(self, now: float, attempt_id: int, node: Node, *, report_every: int = REPORT_TOKENS) -> None:
        self._started += 1
        kept = self._kept_of(self._started)
        if kept is not None and kept < node.output_tokens:
            self._breaking[attempt_id], report_every = kept, kept + 1
        super().start(now, attempt_id, node, report_every=report_every)

    def abort(self, now: float, attempt_id: int) -> int:
        self._breaking.pop(attempt_id, None)
        return super().abort(now, attempt_id)

    def advance(self, now: float) -> list[News]:
        return [self._broken(now, news) for news in super().advance(now)]

    def _broken(self, now: float, news: News) -> News:
        kept = self._breaking.get(news.attempt_id)
        if kept is None or (isinstance(news, Progressed) and news.output_tokens <= kept):
            return news
        self.abort(now, news.attempt_id)
        failure = Failure(kind=FailureKind.BROKEN, kept_tokens=kept)
        return Failed(at=news.at, attempt_id=news.attempt_id, failure=failure)


class TimedServer:
    """A server that takes any number of attempts, each for the time that it is told: queueing theory's."""

    def __init__(self, service_s: Callable[[Node], float] | None = None) -> None:
        self._service_s = service_s if service_s is not None else _own_service_s
        self._due: list[tuple[float, int]] = []
        self._nodes: dict[int, Node] = {}

    def start(self, now: float, attempt_id: int, node: Node) -> None:
        heapq.heappush(self._due, (now + self._service_s(node), attempt_id))
        self._nodes[attempt_id] = node

    def abort(self, now: float, attempt_id: int) -> int:
        self._nodes.pop(attempt_id, None)  # it may have ended: its news is on the way
        return 0

    def next_at(self) -> float | None:
        return self._due[0][0] if self._due else None

    def advance(self, now: float) -> list[News]:
        news: list[News] = []
        due = self._due
        while due and due[0][0] <= now:
            at, attempt_id = heapq.heappop(due)
            node = self._nodes.pop(attempt_id, None)
            if node is not None:
                usage = Usage(node.input_tokens, node.output_tokens)
                news.append(Finished(at, attempt_id, usage, learn=False))
        return news

    def signals(self) -> Signals | None:
        return None


def _own_service_s(node: Node) -> float:
    assert node.service_s is not None, "a timed server is told how long a node takes"
    return node.service_s
