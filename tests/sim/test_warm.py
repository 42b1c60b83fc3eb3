"""What a profile is worth to the first calls, and what a wrong one costs: exact, in virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from statistics import fmean

import pytest

from agentsched import Backend, Policy
from agentsched.engine.commands import Resolve, Start
from agentsched.model import Request
from agentsched.predict import Measured, Profile
from agentsched.predict.fit import Fitted
from agentsched.sim import gpus
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec

PAIR = {"fast": gpus.backend("H100"), "slow": gpus.backend("A6000")}
FOUR = {name.lower(): spec for name, spec in gpus.fleet("hetero1").items()}
STEPS = {"short": (400, 30), "long": (1_500, 200)}
"""Prompt tokens and mean answer tokens of two steps."""


class World:
    """Calls that arrive at random at a fleet.

    Attributes:
        latency_s: per call, in the order in which they were made.
        where: the backends they were started at.
    """

    def __init__(
        self, specs: Mapping[str, BackendSpec], seed: int, gap_s: float, profile: Profile | None
    ) -> None:
        self.rng, self.gap_s = Random(seed), gap_s
        fleet = [(backend(name), BatchServer(spec)) for name, spec in specs.items()]
        self.loop = Loop(
            fleet, policy=Policy.default(), on_start=self.started, on_end=self.ended, profile=profile
        )
        self.made: list[float] = []
        self.latency_s: list[float] = []
        self.where: list[str] = []

    def play(self, calls: int) -> None:
        self.latency_s = [0.0] * calls
        self.where = [""] * calls
        self.loop.at(0.0, self.arrive)
        self.loop.run()
        self.loop.engine.check()

    def arrive(self, now: float) -> None:
        number = len(self.made)
        self.made.append(now)
        step = self.rng.choice(list(STEPS))
        prompt, answer = STEPS[step]
        node = Node(
            step=step, input_tokens=prompt, output_tokens=max(1, round(answer * self.rng.uniform(0.5, 1.5)))
        )
        request = Request(id=str(number), model="m", input_tokens=prompt, workflow="w", step=step)
        self.loop.submit(request, node)
        if len(self.made) < len(self.latency_s):
            self.loop.at(now + self.rng.expovariate(1.0 / self.gap_s), self.arrive)

    def started(self, now: float, start: Start) -> None:
        self.where[int(start.request_id)] = start.backend

    def ended(self, now: float, end: Resolve) -> None:
        number = int(end.request_id)
        self.latency_s[number] = now - self.made[number]


def backend(name: str) -> Backend:
    return Backend(f"http://{name}/v1", name=name, models=["m"])


def learned(world: World) -> Profile:
    return Profile(
        backends=tuple(
            Measured(base_url=row.spec.base_url, name=name, learned=row.learned, source="run")
            for name, row in world.loop.engine.backends.items()
        )
    )


def off(profile: Profile, factor: float, names: Sequence[str]) -> Profile:
    """Return the profile of backends that take so many times as long."""

    def times(fitted: Fitted | None) -> Fitted | None:
        if fitted is None:
            return None
        gram = tuple(entry / factor**2 for entry in fitted.gram)
        return Fitted(tuple(factor * one for one in fitted.coefficients), gram, fitted.count)

    def wrong(one: Measured) -> Measured:
        return replace(
            one,
            learned=replace(
                one.learned, prefill=times(one.learned.prefill), decode=times(one.learned.decode)
            ),
        )

    return Profile(backends=tuple(wrong(one) if one.name in names else one for one in profile.backends))


@cache
def known(which: str, gap_s: float) -> Profile:
    """Return what another run, of other calls, has learned."""
    world = World(PAIR if which == "pair" else FOUR, 100, gap_s, None)
    world.play(600)
    return learned(world)


def played(which: str, gap_s: float, seed: int, calls: int, profile: Profile | None) -> list[float]:
    world = World(PAIR if which == "pair" else FOUR, seed, gap_s, profile)
    world.play(calls)
    return world.latency_s


SEEDS = range(4)


def mean_s(which: str, gap_s: float, profile: Profile | None, first: int, last: int) -> float:
    return fmean(fmean(played(which, gap_s, seed, last, profile)[first:]) for seed in SEEDS)


@pytest.mark.parametrize(("gap_s", "better"), [(6.0, 0.15), (0.8, 0.04), (0.3, 0.05)])
def test_the_first_fifty_calls_on_an_unequal_pair_are_placed_better(gap_s: float, better: float) -> None:
    """An H100 beside an A6000; the figures of the changelog are printed by pytest -s."""
    cold = mean_s("pair", gap_s, None, 0, 50)
    warm = mean_s("pair", gap_s, known("pair", gap_s), 0, 50)
    print(f"mean latency of the first 50 calls, one per {gap_s} s: {cold:.3f} s cold, {warm:.3f} s warm")
    assert warm < (1.0 - better) * cold


WRONG = {
    "all slow": (4.0, ("a100-1", "a100-2", "a6000", "l40s")),
    "all fast": (0.25, ("a100-1", "a100-2", "a6000", "l40s")),
    "a fast one slow": (4.0, ("a100-1",)),
    "a slow one fast": (0.25, ("l40s",)),
}


@pytest.mark.parametrize("gap_s", [0.8, 2.0])
@pytest.mark.parametrize("how", WRONG)
def test_speeds_that_are_four_times_off_are_overcome(how: str, gap_s: float) -> None:
    """Be it that nobody would go where it says that all is slow: one call in fifty goes and sees."""
    factor, names = WRONG[how]
    wrong = off(known("four", gap_s), factor, names)
    later = mean_s("four", gap_s, wrong, 150, 400)
    cold = mean_s("four", gap_s, None, 150, 400)
    print(f"{how}, one call per {gap_s} s: {later:.3f} s, cold {cold:.3f} s")
    assert later < 1.02 * cold


def test_a_backend_that_joins_begins_warm_where_it_is_known() -> None:
    profile = known("pair", 0.8)
    world = World({"slow": PAIR["slow"]}, 1, 0.8, profile)
    world.loop.at(1.0, lambda _: world.loop.join(backend("fast"), BatchServer(PAIR["fast"])))
    world.loop.at(1.0, lambda _: world.loop.join(backend("new"), BatchServer(PAIR["slow"])))
    world.play(20)
    rows = world.loop.engine.backends
    assert rows["fast"].learned.decode is not None
    assert world.where[4:].count("fast") > 10
    fresh = World({"slow": PAIR["slow"]}, 1, 0.8, profile)
    fresh.loop.join(backend("fast"), BatchServer(PAIR["fast"]))
    fresh.loop.join(backend("new"), BatchServer(PAIR["slow"]))
    rows = fresh.loop.engine.backends
    assert rows["fast"].speed.pace is not None
    assert rows["new"].speed.pace is None
