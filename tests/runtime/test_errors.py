"""What is raised inside an SDK's call arrives once, unwrapped, as our class and as the SDK's."""

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

import openai
import pytest

from agentsched import (
    AgentschedError,
    Backend,
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    CallLimitReached,
    Expired,
    QueueFull,
    Rejected,
    Scheduler,
    SchedulerClosed,
)
from agentsched.testing import FakeFleet, VirtualClock, faults
from tests.doubles import ASK, MODEL, Rig, begun, outcome, upstream, whole

Raise = Callable[[Rig], Awaitable[Any]]


async def queue_full(rig: Rig) -> Any:
    tasks = [rig.begun(400), rig.begun()]
    await begun()
    found = await outcome(rig.say())
    await asyncio.gather(*tasks)
    return found


async def call_limit(rig: Rig) -> Any:
    with rig.scheduler.query("q", max_calls=1):
        await rig.say()
        return await outcome(rig.say())


async def expired_in_queue(rig: Rig) -> Any:
    task = rig.begun(1_000)
    await begun()
    with rig.scheduler.query("q", timeout_s=2):
        found = await outcome(rig.say())
    await task
    return found


async def expired_running(rig: Rig) -> Any:
    with rig.scheduler.query("q", timeout_s=2):
        return await outcome(rig.say(1_000))


async def closed_in_queue(rig: Rig) -> Any:
    first, second = rig.begun(1_000), rig.begun()
    await begun()
    await rig.scheduler.aclose()
    await outcome(first)
    return await outcome(second)


async def closed_running(rig: Rig) -> Any:
    task = rig.begun(1_000)
    await asyncio.sleep(1)
    await rig.scheduler.aclose()
    return await outcome(task)


async def refused(rig: Rig) -> Any:
    rig.fleet.fail(faults.Refuse())
    return await outcome(rig.say())


async def reset(rig: Rig) -> Any:
    rig.fleet.fail(faults.Cut())
    return await outcome(rig.say())


async def garbage(rig: Rig) -> Any:
    rig.fleet.fail(faults.Garbage())
    return await outcome(rig.say())


async def timed_out(rig: Rig) -> Any:
    rig.fleet.fail(faults.Hang())
    return await outcome(rig.client.with_options(timeout=3).chat.completions.create(**ASK))


CASES: dict[str, tuple[Raise, type[AgentschedError], str, bool, str]] = {
    "queue full": (queue_full, QueueFull, "scheduler", False, "max_queued"),
    "call limit": (call_limit, CallLimitReached, "caller", False, "max_calls"),
    "expired in queue": (expired_in_queue, Expired, "caller", False, "while queued"),
    "expired running": (expired_running, Expired, "caller", True, "while running at fake-1"),
    "closed in queue": (closed_in_queue, SchedulerClosed, "caller", False, "closed"),
    "closed running": (closed_running, SchedulerClosed, "caller", True, "closed"),
    "refused": (refused, BackendUnavailable, "backend", False, "fake-1: could not connect"),
    "reset": (reset, BackendUnavailable, "backend", True, "fake-1: connection broke"),
    "garbage": (garbage, BackendProtocolError, "backend", True, "fake-1: not an answer"),
    "timed out": (timed_out, BackendTimeout, "backend", True, "fake-1: no answer in time"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("max_retries", [0, 2])
def test_errors(stack: ModuleType, case: str, max_retries: int) -> None:
    make, kind, fault, sent, says = CASES[case]
    rig = Rig(1, limit=1, stack=stack, max_queued=1)
    rig.client = rig.client.with_options(max_retries=max_retries)
    submitted: list[str] = []
    new_id = rig.scheduler._ids.new
    rig.scheduler._ids.new = lambda: submitted.append(new_id()) or submitted[-1]  # type: ignore[method-assign]

    async def main() -> None:
        error = await make(rig)
        assert type(error).__name__ == kind.__name__
        assert isinstance(error, kind)
        assert isinstance(error, openai.OpenAIError)
        assert isinstance(error, RuntimeError)
        assert not isinstance(error, openai.APIError), "it would be retried or mistaken for an answer"
        assert (error.fault, error.sent) == (fault, sent)
        assert says in str(error)
        assert error.__cause__ is None, "it is not the wrapping of another"
        assert error.request_id in submitted
        assert rig.scheduler.explain(error.request_id).outcome in (
            "failed",
            "expired",
            "rejected",
            "cancelled",
        )
        if isinstance(error, BackendError):
            assert (error.backend, error.attempts, error.partial_text) == ("fake-1", 1, "")
        if isinstance(error, Rejected):
            assert error.request_id is not None

    rig.run(main)
    expected = {"queue full": 3, "call limit": 3, "expired in queue": 2, "closed in queue": 2}
    ids = len(submitted) - ("limit" in case or "expired" in case)  # a query takes an id too
    assert ids == expected.get(case, 1) - (case == "call limit"), "nothing is tried again"


# -- what backends answer -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (409, openai.ConflictError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_backends_error_is_the_sdks_own(
    stack: ModuleType, status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    rig = Rig(1, stack=stack)
    rig["fake-1"].fail(faults.Status(code=status, retry_after_s=2, message="said so"))

    async def main() -> None:
        with pytest.raises(kind, match="said so") as caught:
            await rig.say(stream=stream)
        response = caught.value.response
        assert response.status_code == status
        assert response.headers["retry-after"] == "2"
        assert response.headers["x-agentsched-backend"] == "fake-1"
        assert caught.value.request_id == response.headers["x-request-id"]
        assert rig.scheduler.explain(str(caught.value.request_id)).outcome == "failed"

    rig.run(main)
    assert len(rig.received) == 1
    assert rig.clock() < 1


def test_the_sdk_retries_if_it_is_told_to() -> None:
    rig = Rig(1)
    rig["fake-1"].fail(faults.Status(code=429, retry_after_s=2), times=2)

    async def main() -> None:
        assert isinstance(await outcome(rig.say()), openai.RateLimitError), "it is told not to"
        rig.client = rig.client.with_options(max_retries=2)
        answer = await rig.say()
        assert answer.choices[0].finish_reason == "stop"

    rig.run(main)
    assert len(rig.received) == 3
    assert 2 <= rig.clock() < 3


def scripted(stack: ModuleType, *answers: Any) -> tuple[VirtualClock, openai.AsyncOpenAI, Any]:
    clock, transport = VirtualClock(), upstream(stack, *answers)
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=transport, clock=clock)
    return clock, scheduler.openai().with_options(max_retries=2), transport.seen


@pytest.mark.parametrize(
    ("status", "should_retry", "tries"), [(500, "false", 1), (500, None, 3), (400, "true", 3), (400, None, 1)]
)
@pytest.mark.parametrize("own", [False, True], ids=["ours", "the app's own client"])
def test_whether_the_backend_wants_to_be_tried_again_is_for_it_to_say(
    stack: ModuleType, status: int, should_retry: str | None, tries: int, own: bool
) -> None:
    headers = [("x-should-retry", should_retry)] if should_retry is not None else []
    refusal = whole({"error": {"message": "no"}}, status=status, headers=headers)
    transport, clock = upstream(stack, refusal), VirtualClock()
    scheduler = Scheduler([Backend("http://b:1/v1", models=[MODEL])], upstream=transport, clock=clock)
    client = scheduler.openai().with_options(max_retries=2)
    if own:
        http = scheduler.http_async_client()
        client = openai.AsyncOpenAI(api_key="app", base_url="http://app.invalid/v1", http_client=http)
    submitted: list[str] = []
    new_id = scheduler._ids.new
    scheduler._ids.new = lambda: submitted.append(new_id()) or submitted[-1]  # type: ignore[method-assign]

    async def main() -> None:
        with pytest.raises(openai.APIStatusError, match="no"):
            await client.chat.completions.create(**ASK)

    clock.run(main())
    assert len(transport.seen.requests) == tries
    assert [scheduler.explain(one).sdk_retry for one in submitted] == list(range(tries))
    retried = [str(scheduler.explain(one)).splitlines()[1] for one in submitted]
    assert ["sdk_retry" in line for line in retried] == [n > 0 for n in range(tries)]


def test_the_backends_own_request_id_is_kept_apart(stack: ModuleType) -> None:
    headers = [("x-request-id", "theirs"), ("connection", "close"), ("x-a", "b")]
    clock, client, _ = scripted(stack, whole({"choices": []}, headers=headers))

    async def main() -> None:
        raw = await client.chat.completions.with_raw_response.create(**ASK)
        assert raw.headers["x-backend-request-id"] == "theirs"
        assert raw.headers["x-request-id"].startswith("as-")
        assert raw.headers["x-a"] == "b"
        assert "connection" not in raw.headers

    clock.run(main())


def test_an_encoded_body_is_passed_on_with_its_encoding(stack: ModuleType) -> None:
    import gzip

    answer = whole(gzip.compress(b'{"object":"list","data":[]}'), headers=[("content-encoding", "gzip")])
    clock, client, seen = scripted(stack, answer)

    async def main() -> None:
        assert (await client.files.list()).data == []

    clock.run(main())
    assert seen.requests[0].headers["accept-encoding"] == "identity"


def test_an_error_in_a_stream_of_status_200_is_an_error_of_that_code(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)
    rig["fake-1"].fail(faults.ErrorEvent(code=429, message="queue full"))

    async def main() -> None:
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError, match="queue full"):
                await rig.say(stream=stream)

    rig.run(main)


# -- what was sent, and how far it came ---------------------------------------------------------------


def test_two_backends_that_refuse_have_received_nothing(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    rig.fleet.fail(faults.Refuse())

    async def main() -> None:
        with pytest.raises(BackendUnavailable, match="tried 2 times") as caught:
            await rig.say()
        assert not caught.value.sent
        assert caught.value.attempts == 2

    rig.run(main)


def test_one_that_broke_and_one_that_refused_have_received_something(stack: ModuleType) -> None:
    rig = Rig(2, stack=stack)
    rig["fake-1"].fail(faults.Cut())
    rig["fake-2"].fail(faults.Refuse())

    async def main() -> None:
        with pytest.raises(BackendUnavailable) as caught:
            await rig.say()
        assert caught.value.sent
        assert caught.value.backend == "fake-2"

    rig.run(main)


def test_expired_while_waiting_for_a_second_try(stack: ModuleType) -> None:
    rig = Rig(2, limit=1, stack=stack)
    rig["fake-1"].fail(faults.Refuse(), nth=1)

    async def main() -> None:
        task = asyncio.ensure_future(rig.say(2_000))  # fails over to fake-2 and stays there
        await begun()
        rig["fake-1"].fail(faults.Refuse())
        with rig.scheduler.query("q", timeout_s=3), pytest.raises(Expired, match="while queued") as caught:
            await rig.say()
        assert not caught.value.sent
        await task

    rig.run(main)


def test_overloaded_says_when_to_come_back_where_there_is_no_answer_to_show(stack: ModuleType) -> None:
    rig = Rig(1, stack=stack)
    rig["fake-1"].fail(faults.ErrorEvent(after_events=3, code=429, message="full"))

    async def main() -> None:
        stream = await rig.say(50, stream=True)
        with pytest.raises(BackendOverloaded, match="overloaded") as caught:
            [chunk async for chunk in stream]
        assert caught.value.retry_after_s is None
        assert caught.value.partial_text != ""

    rig.run(main)


def test_the_callers_timeouts_reach_the_backend(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)
    rig["fake-1"].fail(faults.SlowStart(delay_s=5), nth=[1, 2])

    async def main() -> None:
        patient = rig.client.with_options(timeout=10)
        hasty = rig.client.with_options(timeout=3)
        first = asyncio.ensure_future(patient.chat.completions.create(**ASK))
        await begun()
        with pytest.raises(BackendTimeout):  # 5 s in the queue do not count, 3 s of silence do
            await hasty.chat.completions.create(**ASK)
        assert rig.clock() == pytest.approx(8, abs=1.5)
        await first

    rig.run(main)


def test_a_fleet_without_the_path_is_no_reason_to_fail_others() -> None:
    fleet = FakeFleet.fast(1)
    rig = Rig(fleet=fleet)

    async def main() -> None:
        with pytest.raises(openai.NotFoundError):
            await rig.client.files.list()
        await rig.say()

    rig.run(main)
