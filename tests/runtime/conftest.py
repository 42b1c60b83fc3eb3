"""Both HTTP stacks, one after the other, on the app's side and on the backends'."""

from types import ModuleType

import pytest

from agentsched.transport import stack as stacks
from tests.doubles import STACKS


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stack; clients that a scheduler makes are of it too, whatever openai is installed."""
    found = STACKS[request.param]
    monkeypatch.setattr(stacks, "default_stack", lambda: found)
    return found
