"""The loop against closed forms of queueing theory: one server that serves one at a time."""

import random
from statistics import NormalDist, fmean, stdev

import pytest

from agentsched import Backend, Policy
from agentsched.sim.plan import Node, Plan
from agentsched.sim.player import Player
from agentsched.sim.server import TimedServer

RUNS = 12
ARRIVALS = 1_500
WARM_UP = 150
SURE = NormalDist().inv_cdf(1 - 0.001 / 2)
"""Half-width in standard errors: a right simulator fails one of these checks in a thousand; seeds are fixed."""


def waits(seed: int, *, load: float, service: str, urgent: float = 0.0) -> tuple[list[float], list[float]]:
    """Return the seconds that ordinary and urgent calls waited; the mean service takes one second."""
    dice = random.Random(f"{seed} {load} {service} {urgent}")
    draw = {
        "exponential": lambda: dice.expovariate(1.0),
        "constant": lambda: 1.0,
        "mixed": lambda: 4.0 if dice.random() < 0.2 else 0.25,
    }[service]
    player = Player(
        [(Backend("http://b:1/v1", models=["m"], max_concurrency=1), TimedServer())], policy=Policy.fcfs()
    )
    now = 0.0
    for _ in range(ARRIVALS):
        now += dice.expovariate(load)
        priority = 1 if dice.random() < urgent else 0
        player.arrive(now, Plan(nodes=[Node(service_s=draw())], priority=priority))
    player.run()
    assert all(run.completed for run in player.runs)
    kept = player.calls[WARM_UP:]
    waited = [[c.started_at - c.submitted_at for c in kept if c.run.plan.priority == p] for p in (0, 1)]
    return waited[0], waited[1]


def within(means: list[float], expected: float) -> bool:
    """Whether the mean of the runs' means is where it should be."""
    error = stdev(means) / len(means) ** 0.5
    return abs(fmean(means) - expected) < SURE * error


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_m_1(load: float) -> None:
    means = [fmean(waits(seed, load=load, service="exponential")[0]) for seed in range(RUNS)]
    assert within(means, load / (1 - load))


@pytest.mark.parametrize(("service", "second_moment"), [("constant", 1.0), ("mixed", 0.2 * 16 + 0.8 / 16)])
def test_m_g_1_pollaczek_khinchine(service: str, second_moment: float) -> None:
    load = 0.7
    means = [fmean(waits(seed, load=load, service=service)[0]) for seed in range(RUNS)]
    assert within(means, load * second_moment / (2 * (1 - load)))


def test_two_classes_the_urgent_first_without_preemption() -> None:
    """Cobham: W_k = W_0 / ((1 - s_{k-1}) (1 - s_k)), with s_k the load of the classes up to k."""
    load, urgent = 0.7, 0.4
    runs = [waits(seed, load=load, service="exponential", urgent=urgent) for seed in range(RUNS)]
    residual = load  # load * E[S^2] / 2, with E[S^2] = 2
    first = load * urgent
    assert within([fmean(quick) for _, quick in runs], residual / (1 - first))
    assert within([fmean(slow) for slow, _ in runs], residual / ((1 - first) * (1 - load)))


def test_a_wrong_expectation_is_noticed() -> None:
    means = [fmean(waits(seed, load=0.6, service="exponential")[0]) for seed in range(RUNS)]
    assert not within(means, 0.6 / 0.4 * 1.3)
