"""What all tests share: how Hypothesis searches, and that nothing is fetched from anywhere."""

import gc
import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

# The same examples on every run and every machine, so that a red test is red again.
# `--hypothesis-profile=search` looks for new ones, ten times as many.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("steady", max_examples=100, derandomize=True, database=None, **_COMMON)
settings.register_profile("search", max_examples=1_000, **_COMMON)
settings.load_profile("steady")


def pytest_collection_finish() -> None:
    """Take what was imported out of the collector's sight: tests collect often, and it is no garbage."""
    gc.collect()
    gc.freeze()
