"""What the engine learns of engines whose truth is known: calibrated times, speeds that change, shares that follow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from agentsched import Backend, Policy
from agentsched.engine.commands import Resolve, Start
from agentsched.model import Request
from agentsched.sim import engines, gpus
from agentsched.sim.loop import Loop
from agentsched.sim.plan import Node
from agentsched.sim.server import BatchServer
from agentsched.sim.spec import BackendSpec

SHAPES = {
    "cards": [gpus.backend(gpu) for gpu in ("A100", "A6000", "L40S")],
    "flat in the batch": [engines.backend(name) for name in ("vllm small", "vllm medium")],
    "proportional to the batch": [engines.backend(name) for name in ("llama.cpp small", "llama.cpp medium")],
}
STEPS = {"short": (400, 30), "long": (1_500, 200)}
"""Prompt tokens and mean answer tokens of two steps."""


class World:
    """Calls that arrive at random at a fleet of engines, and what was expected of each when it started."""

    def __init__(
        self, specs: Sequence[BackendSpec], seed: int, gap_s: float, policy: Policy | None = None
    ) -> None:
        self.rng = Random(seed)
        self.gap_s = gap_s
        self.servers = {f"b{number}": BatchServer(spec) for number, spec in enumerate(specs)}
        fleet = [
            (Backend(f"http://{name}/v1", name=name, models=["m"]), s) for name, s in self.servers.items()
        ]
        self.loop = Loop(fleet, policy=policy or Policy.fcfs(), on_start=self.started, on_end=self.ended)
        self.left = 0
        self.made = 0
        self.where: list[str] = []
        self.within_p90: list[bool] = []
        self.bounds: dict[str, tuple[float, float]] = {}

    def play(self, calls: int) -> None:
        """Let so many further calls arrive, and end."""
        self.left = calls
        self.loop.at(self.loop.now, self.arrive)
        self.loop.run()
        assert not self.loop.engine.requests
        self.loop.engine.check()

    def arrive(self, now: float) -> None:
        self.made += 1
        step = self.rng.choice(list(STEPS))
        prompt, answer = STEPS[step]
        tokens = max(1, round(answer * self.rng.uniform(0.5, 1.5)))
        node = Node(step=step, input_tokens=prompt, output_tokens=tokens)
        request = Request(id=str(self.made), model="m", input_tokens=prompt, workflow="w", step=step)
        self.loop.submit(request, node)
        self.left -= 1
        if self.left:
            self.loop.at(now + self.rng.expovariate(1.0 / self.gap_s), self.arrive)

    def started(self, now: float, start: Start) -> None:
        attempt = self.loop.engine.attempts[start.attempt_id]
        factor = attempt.backend.calibration.factor(0.9)
        if factor is not None and attempt.expected_s:
            self.bounds[start.request_id] = now, attempt.expected_s * factor
        self.where.append(start.backend)

    def ended(self, now: float, end: Resolve) -> None:
        bound = self.bounds.pop(end.request_id, None)
        if bound is not None:
            self.within_p90.append(now - bound[0] <= bound[1])


def gap_of(specs: Sequence[BackendSpec], load: float) -> float:
    """Return seconds between calls such that each engine, at a batch of four, is busy for such a share."""
    alone = [sum(spec.alone_s(prompt, answer) for prompt, answer in STEPS.values()) / 2 for spec in specs]
    slower = [1.0 + 3 * spec.speed.batch_slope for spec in specs]
    rate = sum(4 / (s * slow) for s, slow in zip(alone, slower, strict=True))
    return 1.0 / (load * rate)


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("shape", SHAPES)
def test_nine_in_ten_answers_take_no_longer_than_the_p90_said_at_their_start(shape: str, load: float) -> None:
    kept: list[bool] = []
    for seed in range(3):
        world = World(SHAPES[shape], seed, gap_of(SHAPES[shape], load))
        world.play(1_000)
        kept += world.within_p90[200:]
    assert len(kept) > 2_000
    assert 0.85 <= sum(kept) / len(kept) <= 0.95


@pytest.mark.parametrize("gap_s", [0.3, 0.6, 1.2])
def test_shares_follow_within_fifty_calls_when_the_fast_backend_slows_by_half(gap_s: float) -> None:
    """Case 94: an H100 beside an A6000; equal weights would make the slow one the tail."""
    specs = [gpus.backend("H100"), gpus.backend("A6000")]
    world = World(specs, 1, gap_s)
    world.play(300)
    before = Counter(world.where[-150:])["b0"] / 150
    slow(world.servers["b0"], 2.0)
    world.play(50)
    world.where.clear()
    world.play(150)
    after = Counter(world.where)["b0"] / 150
    fresh = World([slowed(specs[0], 2.0), specs[1]], 1, gap_s)
    fresh.play(300)
    wanted = Counter(fresh.where[-150:])["b0"] / 150
    assert before > 0.75
    assert abs(after - wanted) < 0.12


def slowed(spec: BackendSpec, factor: float) -> BackendSpec:
    speed = spec.speed
    return replace(
        spec, speed=replace(speed, step_s=speed.step_s * factor, prefill_s=speed.prefill_s * factor)
    )


def slow(server: BatchServer, factor: float) -> None:
    """Put a slower engine in the place of one at which nothing runs."""
    assert server.next_at() is None
    now = server.model.now
    server.model = type(server.model)(slowed(server.model.spec, factor))
    server.model.advance(now)


def test_a_backend_that_gets_the_long_answers_is_not_taken_for_slow() -> None:
    """Case 95: two equal engines, of which one gets all that is long; per token they are the same."""
    spec = gpus.backend("A100")
    apart = Policy(cost=lambda job, load: float((job.step == "long") != (load.name == "b0")), patience=0)
    world = World([spec, spec], 3, 1.5, policy=apart)
    world.play(400)
    stays = [row.stay_s or 0.0 for row in world.loop.engine.backends.values()]
    assert stays[0] > 3 * stays[1]
    first, second = (row.speed.pace for row in world.loop.engine.backends.values())
    assert first is not None
    assert second is not None
    assert first.decode_s == pytest.approx(spec.speed.step_s, rel=0.1)
    assert second.decode_s == pytest.approx(spec.speed.step_s, rel=0.1)
