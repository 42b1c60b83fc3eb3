"""The bench's small rows give exactly the figures that are recorded, and figures make sense together."""

from dataclasses import replace

import pytest
from benchmarks.policy import smoke
from benchmarks.policy.limit import Limit
from benchmarks.policy.pool import Figures
from benchmarks.policy.tuned import rate_of


@pytest.fixture(scope="module")
def played() -> dict[str, Figures]:
    return smoke.play()


def test_the_figures_are_those_recorded(played: dict[str, Figures]) -> None:
    """After a change that is meant to move them: `python -m benchmarks.policy smoke`, and look at the diff."""
    known = smoke.known()
    assert list(played) == list(known)
    for name, figures in played.items():
        assert figures == pytest.approx(known[name], rel=1e-9, nan_ok=True), name


def test_every_order_makes_a_difference(played: dict[str, Figures]) -> None:
    for order in ("EDF", "LLF", "QLM-like", "PLAS", "VTC-like", "Ayo-like"):
        names = [name for name in played if name.endswith(f": {order}")]
        fifo = [name.removesuffix(order) + "FIFO + limit" for name in names]
        assert [played[name] for name in names] != [played[name] for name in fifo], order


def test_nobody_beats_the_bounds(played: dict[str, Figures]) -> None:
    for row in smoke.ROWS:
        limit = Limit(row=row, seed=smoke.SEED, rate=rate_of(row))
        bound, fused = limit.bounds().mean_s, replace(limit, fused=True).bounds().mean_s
        assert 0 < fused <= bound
        for name, figures in played.items():
            if name.startswith(f"{row.name}: "):
                assert figures["mean_s"] >= (fused if name.endswith("fusing") else bound), name


def test_knowing_everything_helps(played: dict[str, Figures]) -> None:
    for row in smoke.ROWS:
        fair = [
            figures["mean_s"]
            for name, figures in played.items()
            if name.startswith(f"{row.name}: ") and "clairvoyant" not in name
        ]
        assert played[f"{row.name}: clairvoyant"]["mean_s"] < 1.02 * min(fair)
