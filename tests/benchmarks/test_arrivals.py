"""Do queries arrive as often, and as irregularly, as is claimed?"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from random import Random
from statistics import mean, pstdev, pvariance

import pytest
from benchmarks.policy.arrivals import AZURE_ARRIVALS, azure, bursts, poisson, servegen

RATE = 2.0
PROCESSES: dict[str, Callable[[Random, float], Iterator[float]]] = {
    "poisson": poisson,
    "bursts": partial(bursts, cv=3.0),
    "azure conv": partial(azure, which="conv"),
    "azure code": partial(azure, which="code"),
    "servegen": servegen,
}


def times(name: str, count: int = 4_000, seed: int = 1, rate: float = RATE) -> list[float]:
    return list(islice(PROCESSES[name](Random(seed), rate), count))


def gap_cv(arrivals: list[float]) -> float:
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    return pstdev(gaps) / mean(gaps)


def dispersion(arrivals: list[float], window_s: float) -> float:
    """Return variance over mean of the counts per window: 1 for Poisson."""
    counts = [0] * int(arrivals[-1] / window_s)
    for at in arrivals:
        if at < len(counts) * window_s:
            counts[int(at / window_s)] += 1
    return pvariance(counts) / mean(counts)


@pytest.mark.parametrize("name", PROCESSES)
def test_times_never_go_back_and_depend_on_the_seed_alone(name: str) -> None:
    arrivals = times(name)
    assert all(0 <= earlier <= later for earlier, later in pairwise(arrivals))
    assert times(name, 50) == arrivals[:50]
    assert times(name, 50, seed=2) != arrivals[:50]


@pytest.mark.parametrize(
    ("name", "within"),
    [("poisson", 0.05), ("bursts", 0.15), ("azure conv", 0.02), ("azure code", 0.1), ("servegen", 0.2)],
)
@pytest.mark.parametrize("rate", [0.1, 5.0])
def test_the_rate_is_the_one_asked_for(name: str, within: float, rate: float) -> None:
    assert 4_000 / times(name, rate=rate)[-1] == pytest.approx(rate, rel=within)


@pytest.mark.parametrize("name", ["poisson", "bursts", "servegen"])
def test_no_crowd_arrives_at_the_beginning(name: str) -> None:
    """A renewal process that began with an arrival would have (cv^2 - 1) / 2 too many: 4 in 20 for bursts."""
    early = [sum(at < 10 for at in times(name, 200, seed)) for seed in range(150)]
    assert mean(early) == pytest.approx(10 * RATE, rel=0.12)


def test_poisson_is_poisson() -> None:
    assert gap_cv(times("poisson")) == pytest.approx(1.0, abs=0.05)
    assert dispersion(times("poisson"), 10.0) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_bursts_vary_as_asked(cv: float) -> None:
    arrivals = list(islice(bursts(Random(1), RATE, cv), 8_000))
    assert gap_cv(arrivals) == pytest.approx(cv, rel=0.1)
    assert dispersion(arrivals, 60.0) == pytest.approx(cv**2, rel=0.4)


@pytest.mark.parametrize("which", ["conv", "code"])
def test_a_row_of_an_azure_trace_has_the_rate_asked_for(which: str) -> None:
    for seed in range(5):
        arrivals = list(islice(azure(Random(seed), RATE, which), AZURE_ARRIVALS))
        assert AZURE_ARRIVALS / arrivals[-1] == pytest.approx(RATE, rel=1e-6)


def test_azure_repeats_its_window() -> None:
    arrivals = times("azure conv", 2 * AZURE_ARRIVALS)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert gaps[:50] == pytest.approx(gaps[AZURE_ARRIVALS : AZURE_ARRIVALS + 50])
    assert arrivals[AZURE_ARRIVALS - 1] == pytest.approx(AZURE_ARRIVALS / RATE)


def test_azure_is_as_bursty_as_measured() -> None:
    """Gaps of the whole traces vary by 1.08 (conversation) and 12.6 (code); windows of the latter by less."""
    chat = [gap_cv(times("azure conv", AZURE_ARRIVALS, seed)) for seed in range(20)]
    code = [gap_cv(times("azure code", AZURE_ARRIVALS, seed)) for seed in range(20)]
    assert mean(chat) == pytest.approx(1.08, rel=0.15)
    assert 4 < mean(code) < 13


def test_clients_of_servegen_burst_together() -> None:
    """Single clients' gaps vary by 3.5, weighted by rate; many at once come out smoother, but not Poisson."""
    spread = [dispersion(times("servegen", 3_000, seed), 10.0) for seed in range(5)]
    assert mean(spread) > 1.3
