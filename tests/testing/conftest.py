"""Fixtures for the tests of the doubles."""

from typing import Any

import httpx
import httpx2
import pytest

from agentsched.testing import FakeBackend, FakeFleet, VirtualClock


@pytest.fixture(params=[httpx, httpx2], ids=["httpx", "httpx2"])
def http(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def fleet() -> FakeFleet:
    return FakeFleet.fast(2)


@pytest.fixture
def fake(fleet: FakeFleet) -> FakeBackend:
    return fleet["fake-1"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()
