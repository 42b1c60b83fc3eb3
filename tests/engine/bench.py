"""An engine on the test bench: events in by short names, commands out, invariants checked after each."""

from collections.abc import Mapping
from typing import Any

from agentsched.engine import Engine
from agentsched.engine.commands import Command, Resolve
from agentsched.engine.events import (
    BackendJoined,
    BackendLeft,
    Cancelled,
    Closed,
    Event,
    Failed,
    Finished,
    ModelsListed,
    Progressed,
    QueryClosed,
    QueryOpened,
    Signalled,
    Submitted,
    Woke,
)
from agentsched.model import Backend, Failure, FailureKind, Outcome, Query, Reason, Request, Signals, Usage
from agentsched.policy import Policy

MODEL = "m"


def fleet(**limits: Mapping[str, Any]) -> list[Backend]:
    """Return backends that serve `MODEL`, by name: `fleet(a={"rpm": 3}, b={})`."""
    facts: dict[str, dict[str, Any]] = {name: {"models": [MODEL], **more} for name, more in limits.items()}
    return [Backend(f"http://{name}/v1", name=name, **more) for name, more in facts.items()]


class Bench:
    """Drives one engine. Every method is one event; each returns the commands it led to."""

    def __init__(self, *backends: Backend, policy: Policy | None = None, **options: Any) -> None:
        self.engine = Engine(backends, policy=policy or Policy.fcfs(), **options)

    def feed(self, event: Event) -> list[Command]:
        commands = self.engine.handle(event)
        self.engine.check()
        return commands

    def submit(
        self, request_id: str, at: float = 0.0, *, model: str | None = MODEL, **facts: Any
    ) -> list[Command]:
        facts.setdefault("input_tokens", 10)
        return self.feed(Submitted(at=at, request=Request(id=request_id, model=model, **facts)))

    def cancel(self, request_id: str, at: float = 0.0, **facts: Any) -> list[Command]:
        return self.feed(Cancelled(at=at, request_id=request_id, **facts))

    def progress(self, attempt_id: int, at: float, output_tokens: int, **facts: Any) -> list[Command]:
        return self.feed(Progressed(at=at, attempt_id=attempt_id, output_tokens=output_tokens, **facts))

    def finish(self, attempt_id: int, at: float = 0.0, *, learn: bool = True, **usage: Any) -> list[Command]:
        return self.feed(Finished(at=at, attempt_id=attempt_id, usage=Usage(**usage), learn=learn))

    def signal(self, backend: str, at: float, signals: Signals | None) -> list[Command]:
        return self.feed(Signalled(at=at, backend=backend, signals=signals))

    def fail(
        self, attempt_id: int, at: float = 0.0, kind: FailureKind = FailureKind.ERROR, **facts: Any
    ) -> list[Command]:
        return self.feed(Failed(at=at, attempt_id=attempt_id, failure=Failure(kind=kind, **facts)))

    def listed(self, backend: str, at: float, *models: str) -> list[Command]:
        return self.feed(ModelsListed(at=at, backend=backend, models=models))

    def not_listed(self, backend: str, at: float) -> list[Command]:
        return self.feed(ModelsListed(at=at, backend=backend, models=None))

    def join(self, backend: Backend, at: float = 0.0) -> list[Command]:
        return self.feed(BackendJoined(at=at, backend=backend))

    def leave(self, backend: str, at: float = 0.0, *, drain: bool = False, **facts: Any) -> list[Command]:
        return self.feed(BackendLeft(at=at, backend=backend, drain=drain, **facts))

    def open(self, query_id: str, at: float = 0.0, **facts: Any) -> list[Command]:
        return self.feed(QueryOpened(at=at, query=Query(id=query_id, workflow="w", **facts)))

    def close_query(self, query_id: str, at: float = 0.0) -> list[Command]:
        return self.feed(QueryClosed(at=at, query_id=query_id))

    def wake(self, at: float) -> list[Command]:
        return self.feed(Woke(at=at))

    def close(self, at: float = 0.0) -> list[Command]:
        return self.feed(Closed(at=at))

    def told(self, request_id: str) -> list[str]:
        """Return the story of a request, without times and facts."""
        return [entry.what for entry in self.engine.story(request_id)]


def completed(request_id: str, backend: str, attempts: int = 1) -> Resolve:
    return Resolve(request_id=request_id, outcome=Outcome.COMPLETED, backend=backend, attempts=attempts)


def expired(request_id: str, backend: str | None = None, attempts: int = 0) -> Resolve:
    return Resolve(request_id=request_id, outcome=Outcome.EXPIRED, backend=backend, attempts=attempts)


def rejected(request_id: str, reason: Reason) -> Resolve:
    return Resolve(request_id=request_id, outcome=Outcome.REJECTED, reason=reason)


def cancelled(request_id: str, backend: str | None = None, attempts: int = 0, **facts: Any) -> Resolve:
    facts.setdefault("reason", Reason.CALLER_LEFT)
    return Resolve(
        request_id=request_id, outcome=Outcome.CANCELLED, backend=backend, attempts=attempts, **facts
    )


def failed(request_id: str, kind: FailureKind, backend: str, attempts: int = 1, **facts: Any) -> Resolve:
    return Resolve(
        request_id=request_id,
        outcome=Outcome.FAILED,
        failure=Failure(kind=kind, **facts),
        backend=backend,
        attempts=attempts,
    )
