"""What the bench keeps ready goes when its tests are over: every collection of a later test would look through it."""

import sys
from collections.abc import Iterator

import pytest

from agentsched.sim.player import Player


@pytest.fixture(scope="package", autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("benchmarks."):
            for kept in vars(module).values():
                if hasattr(kept, "cache_clear"):
                    kept.cache_clear()


@pytest.fixture
def players(monkeypatch: pytest.MonkeyPatch) -> list[Player]:
    """The players that were made."""
    made: list[Player] = []
    first = Player.__init__

    def noted(self: Player, *given: object, **options: object) -> None:
        made.append(self)
        first(self, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Player, "__init__", noted)
    return made
