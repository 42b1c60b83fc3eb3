"""A climb of the ladder: what it finds out of engines whose truth is known, within its bounds, and what it cannot."""

import asyncio
from typing import Any

import pytest

from agentsched import Backend
from agentsched.errors import AgentschedError, BackendError
from agentsched.predict import Measured
from agentsched.runtime.climb import measure
from agentsched.runtime.ladder import LENGTHS, calls_of, ladder, prompt
from agentsched.sim import engines, gpus
from agentsched.sim.spec import BackendSpec
from agentsched.sim.speed import Speed
from agentsched.testing import ErrorReply, FakeBackend, FakeFleet, Reply, VirtualClock, faults

SPECS = {
    "flat": BackendSpec(speed=Speed(step_s=0.02, prefill_s=1e-4, batch_slope=0.0)),
    "vllm": BackendSpec(speed=Speed(step_s=0.02, prefill_s=1e-4)),
    "proportional": BackendSpec(speed=Speed(step_s=0.01, prefill_s=1e-3, batch_slope=1.0)),
    "A100": gpus.backend("A100"),
    "L40S": gpus.backend("L40S"),
    "llama.cpp small": engines.backend("llama.cpp small"),
}


def climbed(fake: FakeBackend, *, api_key: str | None = None, **options: Any) -> tuple[Measured, float, int]:
    """Return what was measured, how long it took, and how many calls were told of."""
    clock, told = VirtualClock(), list[int]()
    backend = Backend(fake.base_url, name=fake.name, api_key=api_key)
    upstream = FakeFleet([fake]).transport()
    found = clock.run(
        measure(backend, upstream=upstream, clock=clock, seed=1, on_calls=told.append, **options)
    )
    return found, clock(), sum(told)


@pytest.mark.parametrize("name", SPECS)
def test_what_is_learned_is_within_fifteen_percent_of_the_truth(name: str) -> None:
    """With 60 s of model time; steps with eight calls too, whatever their shape."""
    spec = SPECS[name]
    found, took_s, _ = climbed(FakeBackend(spec=spec))
    assert found.learned.prefill is not None
    assert found.learned.decode is not None
    _, prefill_s = found.learned.prefill.coefficients
    decode_s, batch_s, _, context_s = found.learned.decode.coefficients
    assert prefill_s == pytest.approx(spec.speed.prefill_s, rel=0.15)
    assert decode_s + 200 * context_s == pytest.approx(spec.speed.step_s, rel=0.15)
    assert decode_s + 7 * batch_s + 8 * 200 * context_s == pytest.approx(spec.speed.step(8), rel=0.15)
    assert found.learned.kv_tokens == spec.kv_blocks * spec.block_tokens
    assert took_s < 62.0


def test_it_says_how_it_was_measured() -> None:
    found, took_s, told = climbed(FakeBackend(spec=SPECS["vllm"]))
    assert (found.source, found.name, found.base_url, found.at) == (
        "calibration",
        "fake",
        "http://fake.test/v1",
        None,
    )
    assert found.calls == told == calls_of(None, 1_000) == 105
    assert found.seconds == pytest.approx(took_s, abs=0.1)
    assert found.ladder == tuple((rung.prompt, rung.calls) for rung in ladder(None))


def test_prompts_are_distinct_from_their_beginning_and_plain_fields_are_all_that_is_sent() -> None:
    fake = FakeBackend(spec=SPECS["vllm"])
    climbed(fake)
    assert all(row.cached_tokens == 0 for row in fake.calls)
    texts = [row.body["messages"][0]["content"] for row in fake.calls]
    assert len({text[:16] for text in texts}) == len(texts) == 106
    sent = {name for row in fake.calls for name in row.body}
    assert sent == {"model", "messages", "max_tokens", "stream", "stream_options"}


@pytest.mark.parametrize("calls", [5, 12, 40])
def test_no_more_calls_are_made_than_allowed_and_one_before_them(calls: int) -> None:
    fake = FakeBackend(spec=SPECS["vllm"])
    found, _, told = climbed(fake, max_calls=calls)
    assert (found.calls, told, len(fake.calls)) == (calls, calls, calls + 1)


@pytest.mark.parametrize("seconds", [3.0, 10.0])
def test_time_is_kept_and_what_was_learned_until_then_counts(seconds: float) -> None:
    fake = FakeBackend(spec=SPECS["proportional"])
    found, took_s, _ = climbed(fake, max_seconds=seconds)
    assert 2 <= found.calls < 60
    assert took_s < seconds + 0.5
    assert fake.log.in_flight == 0


def test_a_model_of_few_tokens_gets_short_prompts() -> None:
    spec = BackendSpec(speed=SPECS["vllm"].speed, max_model_len=512)
    fake = FakeBackend(spec=spec)
    found, _, _ = climbed(fake)
    assert found.calls == calls_of(512, 1_000)
    assert max(tokens for tokens, _ in found.ladder) < 512
    assert all(row.status == 200 for row in fake.calls)


def test_a_server_that_takes_few_calls_at_a_time_is_measured_as_far_as_it_goes() -> None:
    spec = BackendSpec(speed=SPECS["vllm"].speed, max_queued=5)
    found, _, told = climbed(FakeBackend(spec=spec))
    assert 30 < found.calls < 60
    assert told == 105
    assert found.learned.decode is not None


def failed(fake: FakeBackend, **options: Any) -> str:
    with pytest.raises(AgentschedError) as error:
        climbed(fake, **options)
    assert isinstance(error.value, BackendError)
    return str(error.value)


def test_what_cannot_be_measured_is_one_clear_error() -> None:
    fake = FakeBackend()
    fake.fail(faults.Refuse())
    assert failed(fake).startswith("fake does not list its models: ConnectError")
    assert failed(fake, model="m").startswith("fake: could not connect: ConnectError")
    fake = FakeBackend(api_key="right")
    assert failed(fake, api_key="wrong").endswith("models: GET http://fake.test/v1/models answers HTTP 401")
    assert failed(fake, model="fake-model").startswith("fake answers HTTP 401: ")
    assert (
        failed(fake, api_key="right", model="no") == "fake does not list the model 'no'; it lists fake-model"
    )
    none = "fake does not list its models: it lists no model; name one that it serves"
    assert failed(FakeBackend(models=[])) == none
    fake = FakeBackend()
    fake.fail(faults.Hang())
    assert failed(fake, max_seconds=5.0) == "fake did not answer a first call in time"


def test_what_the_server_says_against_the_calls_is_told() -> None:
    def no(_: Any) -> Reply:
        raise ErrorReply(400, "no chat template")

    assert failed(FakeBackend(responder=no)) == "fake answers HTTP 400: no chat template"
    fake = FakeBackend()
    fake.fail(faults.Status(code=500, message="broken"), between=(0.05, 1e9))
    assert "cannot be measured" in failed(fake)


def test_a_key_is_sent_and_a_page_that_does_not_exist_is_no_matter() -> None:
    fake = FakeBackend(api_key="right")
    fake.fail_page("/metrics", faults.Status(code=404))
    found, _, _ = climbed(fake, api_key="right", max_calls=20)
    assert found.learned.kv_tokens is None


def test_an_interruption_leaves_nothing_open() -> None:
    fake, clock = FakeBackend(spec=SPECS["vllm"]), VirtualClock()
    upstream = FakeFleet([fake]).transport()

    async def main() -> None:
        task = asyncio.ensure_future(measure(Backend(fake.base_url), upstream=upstream, clock=clock))
        await asyncio.sleep(5.0)
        assert fake.log.in_flight > 0
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1.0)
        assert fake.log.in_flight == 0

    clock.run(main())


def test_a_ladder_has_every_width_and_length_and_prompts_are_as_long_as_asked_for() -> None:
    import random

    rungs = list(ladder(None))
    assert {rung.calls for rung in rungs} == {1, 2, 4, 8, 16}
    assert set(LENGTHS) <= {rung.prompt for rung in rungs}
    dice = random.Random(1)
    for tokens in (1, 64, 1_000):
        assert len(prompt(tokens, dice)) == max(4 * tokens, 16)
