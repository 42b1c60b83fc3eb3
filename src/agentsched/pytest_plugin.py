"""Fixtures for tests of agents: a virtual clock, a fake fleet, and a scheduler on both.

They are loaded by pytest wherever agentsched is installed, so nothing is imported before a fixture is asked
for. An `async def` test marked `agentsched_virtual` runs on the virtual clock, whatever asyncio plugin is
there; its async fixtures, if it has any, still run on that plugin's loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from agentsched import Scheduler
    from agentsched.testing import FakeFleet, VirtualClock

MARK = "agentsched_virtual"


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", f"{MARK}: run this async test in virtual time, on `agentsched_clock`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give marked tests their clock, and let them be found as tests that can run."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None:
            item.fixturenames.append("agentsched_clock")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked coroutine test on the clock."""
    if pyfuncitem.get_closest_marker(MARK) is None:
        return None
    test = inspect.unwrap(pyfuncitem.obj)
    if not inspect.iscoroutinefunction(test):
        return None
    clock = cast("VirtualClock", pyfuncitem.funcargs["agentsched_clock"])
    names = inspect.signature(test).parameters
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in names if name in pyfuncitem.funcargs
    }
    clock.run(test(**arguments))
    return True


@pytest.fixture
def agentsched_clock(request: pytest.FixtureRequest) -> VirtualClock:
    """Return a clock that jumps: `agentsched_clock.run(main())` takes hours in milliseconds.

    Coroutine tests need the mark `agentsched_virtual`: on any other loop this clock would stand still.
    """
    from agentsched.testing import VirtualClock

    node = request.node
    if inspect.iscoroutinefunction(getattr(node, "obj", None)) and node.get_closest_marker(MARK) is None:
        raise pytest.UsageError(
            f"{node.name} runs on a real event loop, where virtual time stands still: mark it with "
            f"@pytest.mark.{MARK}, or make it a plain test that calls agentsched_clock.run(...)"
        )
    return VirtualClock()


@pytest.fixture
def agentsched_fleet() -> FakeFleet:
    """Return two quick fake backends, `fake-1` and `fake-2`, that serve `fake-model` with 16 seats each.

    Override this fixture to test against other backends.
    """
    from agentsched.testing import FakeFleet

    return FakeFleet.fast(2)


@pytest.fixture
def agentsched_scheduler(agentsched_clock: VirtualClock, agentsched_fleet: FakeFleet) -> Iterator[Scheduler]:
    """Return a scheduler over the fake fleet, in virtual time; it is closed in the end."""
    from agentsched import Backend, Scheduler

    backends = [
        Backend(fake.base_url, api_key=fake.api_key, models=fake.models, name=fake.name)
        for fake in agentsched_fleet
    ]
    scheduler = Scheduler(backends, upstream=agentsched_fleet.transport(), clock=agentsched_clock)
    yield scheduler
    agentsched_clock.run(scheduler.aclose())
