"""Both HTTP stacks, one after the other."""

from types import ModuleType

import pytest

from tests.doubles import STACKS


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> ModuleType:
    return STACKS[request.param]
