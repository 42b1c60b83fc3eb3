"""A random run of an engine: an app and backends made of dice, reacting to the commands as a shell would."""

from math import inf
from random import Random

from agentsched.engine import Engine
from agentsched.engine.commands import Abort, Command, ListModels, LookAt, Resolve, Start, WakeAt
from agentsched.engine.events import (
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
from agentsched.model import Failure, FailureKind, Query, Reason, Request, Signals, Usage
from tests.strategies import SERVED

Step = tuple[Event, list[Command]]

KINDS = list(FailureKind)


class Play:
    """One run."""

    def __init__(self, engine: Engine, rng: Random) -> None:
        self.engine = engine
        self.rng = rng
        self.now = 0.0
        self.steps: list[Step] = []
        self.live: list[str] = []
        self.running: dict[int, str] = {}
        self.asked: list[str] = []
        self.looked_at: list[str] = []
        self.armed = inf
        self.queries = 0

    def feed(self, event: Event) -> None:
        commands = self.engine.handle(event)
        self.engine.check()
        self.steps.append((event, commands))
        for command in commands:
            match command:
                case Start(attempt_id, request_id, _):
                    self.running[attempt_id] = request_id
                case Abort(attempt_id):
                    del self.running[attempt_id]
                case Resolve():
                    self.live.remove(command.request_id)
                case ListModels(backend):
                    self.asked.append(backend)
                case LookAt(backend):
                    self.looked_at.append(backend)
                case WakeAt(at):
                    self.armed = min(self.armed, at)

    def run(self, steps: int) -> list[Step]:
        """Return so many steps and the end: everything answered, closed, one call too late."""
        for _ in range(steps):
            self.now = min(self.now + self.rng.expovariate(2.0), max(self.armed, self.now))
            self.feed(self.next_event())
        self.feed(Closed(at=self.now))
        self.submit()
        return self.steps

    def next_event(self) -> Event:
        if self.armed <= self.now:
            self.armed = inf
            return Woke(at=self.now)
        if self.asked and self.rng.random() < 0.5:
            backend = self.asked.pop(self.rng.randrange(len(self.asked)))
            models = self.rng.choice([SERVED, SERVED[:1], (), None])
            return ModelsListed(at=self.now, backend=backend, models=models)
        if self.looked_at and self.rng.random() < 0.5:
            return Signalled(at=self.now, backend=self.looked_at.pop(), signals=self.signals())
        if self.running and self.rng.random() < 0.6:
            return self.of_an_attempt(self.rng.choice(list(self.running)))
        if self.live and self.rng.random() < 0.15:
            return Cancelled(at=self.now, request_id=self.rng.choice(self.live), reason=Reason.CALLER_LEFT)
        if self.rng.random() < 0.1:
            self.queries += 1
            query = Query(id=f"q{self.queries}", workflow="w", max_calls=self.rng.choice([None, 1, 3]))
            return QueryOpened(at=self.now, query=query)
        if self.rng.random() < 0.05:
            return QueryClosed(at=self.now, query_id=f"q{self.queries - 1}")
        return self.submitted()

    def of_an_attempt(self, attempt_id: int) -> Event:
        dice = self.rng.random()
        if dice < 0.4:
            tokens = self.rng.choice([0, 1, 1, 50])
            return Progressed(at=self.now, attempt_id=attempt_id, output_tokens=tokens, connect_s=0.001)
        del self.running[attempt_id]
        if dice < 0.8:
            usage = Usage(self.rng.choice([None, 20]), self.rng.randrange(1, 300), self.rng.choice([0, 10]))
            learn = self.rng.random() < 0.9
            return Finished(at=self.now, attempt_id=attempt_id, usage=usage, learn=learn)
        failure = Failure(
            kind=self.rng.choice(KINDS),
            status=self.rng.choice([None, 404, 503]),
            delivered=self.rng.random() < 0.2,
            detail="words of the backend",
        )
        return Failed(at=self.now, attempt_id=attempt_id, failure=failure)

    def signals(self) -> Signals | None:
        if self.rng.random() < 0.2:
            return None
        return Signals(
            running=self.rng.choice([None, self.rng.randrange(9)]),
            waiting=self.rng.choice([None, self.rng.randrange(3)]),
            kv_usage=self.rng.choice([None, self.rng.random()]),
            kv_tokens=self.rng.choice([None, 500, 2_000]),
        )

    def submitted(self) -> Event:
        request_id = f"r{sum(isinstance(event, Submitted) for event, _ in self.steps)}"
        self.live.append(request_id)
        request = Request(
            id=request_id,
            model=self.rng.choice([*SERVED, *SERVED, None, "absent"]),
            input_tokens=self.rng.randrange(200),
            max_tokens=self.rng.choice([None, 100]),
            query=self.rng.choice([None, f"q{self.queries}"]),
            step=self.rng.choice([None, "draft", "judge"]),
            priority=self.rng.choice([0, 0, 0, 1]),
            deadline=self.rng.choice([None, None, self.now + 0.1, self.now + 20.0]),
            marks=tuple(range(self.rng.randrange(4))),
        )
        return Submitted(at=self.now, request=request)

    def submit(self) -> None:
        self.feed(self.submitted())
