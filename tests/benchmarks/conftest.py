"""What the bench keeps ready goes when its tests are over: every collection of a later test would look through it."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def nothing_is_kept() -> Iterator[None]:
    yield
    for name, module in list(sys.modules.items()):
        if name.startswith("benchmarks."):
            for kept in vars(module).values():
                if hasattr(kept, "cache_clear"):
                    kept.cache_clear()
