"""A scheduler over a scripted model, for clients of both kinds and on both stacks."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from agentsched import Backend, Scheduler
from tests.clients.model import MODEL, answer
from tests.doubles import STACKS, upstream


class Scheduled:
    """A scheduler, and what its backend sees."""

    def __init__(self, stack: ModuleType) -> None:
        transport = upstream(stack, answer)
        self.seen = transport.seen
        backends = [Backend(f"http://gpu-{i}.invalid/v1", models=[MODEL], max_concurrency=2) for i in (1, 2)]
        self.scheduler = Scheduler(backends, upstream=transport)

    @property
    def bodies(self) -> list[Any]:
        return self.seen.bodies


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> ModuleType:
    """The HTTP stack of the clients."""
    return STACKS[request.param]


@pytest.fixture
def scheduled(stack: ModuleType) -> Iterator[Scheduled]:
    """A scheduler, at whose end nothing may be left."""
    made = Scheduled(stack)
    yield made
    assert made.seen.open == 0
    assert not made.scheduler.snapshot().running
    made.scheduler.close()
