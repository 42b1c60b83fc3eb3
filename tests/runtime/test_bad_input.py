"""Every mistake is one typed error at the earliest point, and nothing is sent."""

import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from math import inf, nan
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest

from agentsched import Backend, Policy, Scheduler, SchedulerClosed, UnknownModel, UsageError, step
from agentsched.engine.events import Submitted
from agentsched.testing import FakeFleet
from tests.doubles import ASK, MODEL, Rig

HERE = Backend("http://a:1/v1", models=[MODEL])


@pytest.fixture
def scheduler() -> Scheduler:
    return Rig().scheduler


# -- the fleet ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        ([], "at least one Backend"),
        ((), "at least one Backend"),
        (iter(()), "at least one Backend"),
        ("http://a:1/v1", "a list of Backend, not str"),
        (HERE, "a list of Backend, not Backend"),
        (None, "a list of Backend, not NoneType"),
        (7, "a list of Backend, not int"),
        (["http://a:1/v1"], "Backend(...) values; found str"),
        ([HERE, None], "found NoneType"),
        ([HERE, HERE], "two backends have the base_url 'http://a:1/v1'"),
        ([HERE, Backend("http://a:1/v1/")], "two backends have the base_url 'http://a:1/v1'"),
        ([HERE, Backend("http://A:1/v1", name="b")], "two backends have the base_url"),
    ],
)
def test_fleets_that_cannot_work(backends: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Scheduler(backends)
    assert message in str(caught.value)
    assert not caught.value.sent


@pytest.mark.parametrize(
    "url",
    [
        "",
        "gpu-a:8000/v1",
        "ftp://a/v1",
        "http://",
        "http:///v1",
        "http://a:port/v1",
        "http://a:99999/v1",
        "http://a:0/v1",
        "http://a b/v1",
        "http://a/v1\n",
        "http://[::1/v1",
        "http://user:pass@a/v1",
        "http://a/v1?x=1",
        "http://a/v1#x",
        None,
        7,
        b"http://a/v1",
    ],
)
def test_malformed_urls(url: Any) -> None:
    if isinstance(url, str) and url.endswith("\n"):
        assert Backend(url).base_url == "http://a/v1"  # what stands around an URL is no part of it
        return
    with pytest.raises(UsageError, match="Backend: "):
        Backend(url)


def test_a_generator_of_backends_is_as_good_as_a_list() -> None:
    assert "a:1" in repr(Scheduler(backend for backend in [HERE]))


# -- options of the scheduler -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_queued": -1}, "max_queued must be a whole number of at least 0"),
        ({"max_queued": True}, "max_queued must be a whole number"),
        ({"max_queued": 1.5}, "max_queued must be a whole number"),
        ({"max_queued": None}, "max_queued must be a whole number"),
        ({"max_body_bytes": 0}, "max_body_bytes must be a whole number of at least 1"),
        ({"policy": "fcfs"}, "policy must be a Policy"),
        ({"policy": Policy}, "policy must be a Policy"),
        ({"upstream": "http://proxy"}, "upstream must be an async transport"),
        ({"journal": "/nonexistent/dir/journal"}, "journal: cannot write '/nonexistent/dir/journal'"),
        ({"clock": 5}, "clock must be a function that returns seconds"),
        ({"size": 3}, "Scheduler: unknown option size; the options are policy, upstream, clock"),
        ({"reuse": True, "batch": 3}, "unknown option batch, reuse"),
    ],
)
def test_options_of_the_scheduler(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Scheduler([HERE], **options)
    assert message in str(caught.value)


def test_an_unknown_option_is_a_type_error_too() -> None:
    with pytest.raises(TypeError):
        Scheduler([HERE], nonsense=1)  # type: ignore[call-arg]


def test_a_scheduler_that_cannot_be_leaves_no_open_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        Scheduler([HERE, HERE], journal=tmp_path / "journal")  # an open file would be a ResourceWarning


# -- options of queries -------------------------------------------------------------------------------

TIMES: list[Any] = [-1, 0, 0.0, -0.5, nan, inf, -inf, True, False, "3", [], 10**400]


@pytest.mark.parametrize("seconds", TIMES, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", ["slo_s", "timeout_s"])
def test_times_that_are_none(scheduler: Scheduler, name: str, seconds: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a positive finite number of seconds"):
        scheduler.query("q", **{name: seconds})
    with pytest.raises(UsageError, match=f"{name} must be a positive finite number of seconds"):
        scheduler.workflow("q", **{name: seconds})(print)


@pytest.mark.parametrize("seconds", [1, 0.001, 1e9, 1e308])
def test_times_that_are_times(scheduler: Scheduler, seconds: Any) -> None:
    with scheduler.query("q", slo_s=seconds, timeout_s=seconds):
        pass


@pytest.mark.parametrize(
    ("deadline", "message"),
    [
        (datetime(2100, 1, 1), "no time zone"),
        (datetime(2020, 1, 1, tzinfo=UTC), "has passed"),
        (datetime.min.replace(tzinfo=UTC), "has passed"),
        (datetime.now(UTC) - timedelta(seconds=1), "has passed"),
        (60, "must be an aware datetime"),
        ("2100-01-01", "must be an aware datetime"),
        (timedelta(seconds=5), "must be an aware datetime"),
        (True, "must be an aware datetime"),
    ],
)
def test_deadlines(scheduler: Scheduler, deadline: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scheduler.query("q", deadline=deadline)


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=-12)), timezone(timedelta(hours=14))])
def test_deadlines_of_any_zone(scheduler: Scheduler, zone: timezone) -> None:
    with scheduler.query("q", deadline=datetime.max.replace(tzinfo=zone)):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"priority": True}, "priority must be a whole number"),
        ({"priority": None}, "priority must be a whole number"),
        ({"priority": 10**20}, "priority must be a whole number .* at most"),
        ({"priority": -(10**20)}, "priority must be a whole number"),
        ({"max_calls": 0}, "max_calls must be a whole number of at least 1"),
        ({"max_calls": -3}, "max_calls"),
        ({"max_calls": True}, "max_calls"),
        ({"tenant": ""}, "tenant must be a non-empty printable string"),
        ({"tenant": "a\nb"}, "tenant"),
        ({"tenant": 7}, "tenant"),
        ({"reuse": "calls"}, "unknown option reuse; the options are "),
        ({"slo": 3}, r"unknown option slo \(did you mean slo_s\?\); the options are slo_s"),
    ],
)
def test_options_of_queries(scheduler: Scheduler, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scheduler.query("q", **options)
    with pytest.raises(UsageError, match=message):
        scheduler.workflow("q", **options)(print)


@pytest.mark.parametrize("name", ["", None, 7, "a\nb", "\x00"])
def test_names_of_queries(scheduler: Scheduler, name: Any) -> None:
    with pytest.raises(UsageError, match="query: workflow must be a non-empty printable string"):
        scheduler.query(name)


@pytest.mark.parametrize("name", ["", 7, "a\nb"])
def test_names_of_workflows(scheduler: Scheduler, name: Any) -> None:
    with pytest.raises(UsageError, match="workflow: name must be a non-empty printable string"):
        scheduler.workflow(name)


@pytest.mark.parametrize("target", [7, "f", None, [print]])
def test_what_is_no_function_is_not_decorated(scheduler: Scheduler, target: Any) -> None:
    with pytest.raises(UsageError, match="workflow decorates functions, not "):
        scheduler.workflow("q")(target)
    with pytest.raises(UsageError, match="step decorates functions, not "):
        step("s")(target)


def test_a_workflow_has_no_deadline_of_its_own(scheduler: Scheduler) -> None:
    with pytest.raises(UsageError, match="unknown option deadline"):
        scheduler.workflow("q", deadline=datetime.now(UTC))  # type: ignore[call-overload]


# -- options of steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reuse": "calls"}, "step: unknown option reuse; the options are name"),
        ({"batch": 3}, "step: unknown option batch"),
        ({"slo_share": 1}, "step: unknown option slo_share"),
    ],
)
def test_options_of_steps(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        step(**options)
    with pytest.raises(UsageError, match=message):
        step("draft", **options)


@pytest.mark.parametrize("name", ["", 7, "a\nb", ["draft"]])
def test_names_of_steps(name: Any) -> None:
    with pytest.raises(UsageError, match="step: name must be a non-empty printable string"):
        step(name)
    with pytest.raises(UsageError, match="step: name must be a non-empty printable string"):
        step(print, name=name)  # type: ignore[call-overload]


def test_a_step_has_one_name() -> None:
    with pytest.raises(UsageError, match="two names, 'a' and 'b'"):
        step("a", name="b")


def test_a_block_needs_a_name() -> None:
    with pytest.raises(UsageError, match="around a block needs a name"), step():
        pass


# -- calls --------------------------------------------------------------------------------------------


def test_an_unknown_model_lists_what_is_served(stack: ModuleType) -> None:
    rig = Rig(stack=stack)

    async def main() -> None:
        with pytest.raises(UnknownModel, match="no backend serves 'gpt-9'; served are: fake-model") as caught:
            await rig.say(model="gpt-9")
        assert isinstance(caught.value, openai.OpenAIError)
        assert (caught.value.sent, caught.value.fault) == (False, "caller")
        assert caught.value.request_id is not None
        assert rig.scheduler.explain(caught.value.request_id).outcome == "rejected"

    rig.run(main)
    assert rig.received == []


def test_of_very_many_models_some_are_listed() -> None:
    models = [f"model-{number:04}" for number in range(500)]
    rig = Rig()
    backend = Backend("http://fake-1.test/v1", models=models)
    client = Scheduler([backend], upstream=rig.fleet.transport(), clock=rig.clock).openai()

    async def main() -> None:
        with pytest.raises(UnknownModel) as caught:
            await client.chat.completions.create(**{**ASK, "model": "nope"})
        assert "model-0000" in str(caught.value)
        assert "and 450 more" in str(caught.value)

    rig.run(main)


BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"model":null}',
    b'{"model":7}',
    b'{"model":""}',
    b"\xff",
    json.dumps(ASK).encode("utf-16"),
]


@pytest.mark.parametrize("content", BODIES, ids=repr)
def test_bodies_that_are_none(stack: ModuleType, content: bytes) -> None:
    rig = Rig(stack=stack)

    async def main() -> None:
        async with rig.scheduler.http_async_client() as http:
            for path in ("/chat/completions", "/completions"):
                with pytest.raises(UsageError, match="body") as caught:
                    await http.post(path, content=content)
                assert isinstance(caught.value, openai.OpenAIError)
                assert not caught.value.sent

    rig.run(main)
    assert rig.received == []


def test_a_body_too_large(stack: ModuleType) -> None:
    rig = Rig(stack=stack, max_body_bytes=1_000)

    async def main() -> None:
        await rig.say()
        with pytest.raises(UsageError, match="the scheduler takes at most 1000"):
            await rig.say(user="x" * 1_000)

    rig.run(main)
    assert len(rig.received) == 1


def test_a_header_that_http_does_not_allow() -> None:
    """Over real sockets, where it shows: nothing is sent, and the header is not repeated."""
    fleet = FakeFleet.fast(2)

    async def main() -> None:
        async with fleet.serve():
            backends = [Backend(url, models=[MODEL]) for url in fleet.base_urls]
            async with Scheduler(backends) as scheduler:
                with pytest.raises(UsageError, match="header") as caught:
                    await scheduler.openai().chat.completions.create(
                        **ASK, extra_headers={"x-mine": "sw\nordfish"}
                    )
                assert isinstance(caught.value, openai.OpenAIError)
                assert not caught.value.sent
                assert "ordfish" not in str(caught.value)

    asyncio.run(main())
    assert fleet.calls == []


def test_a_submission_that_is_cut_short_leaves_nothing(stack: ModuleType) -> None:
    rig = Rig(1, limit=1, stack=stack)
    engine = rig.scheduler._driver.engine
    handle = engine.handle

    def breaking(event: Any) -> Any:
        commands = handle(event)
        if isinstance(event, Submitted):
            engine.handle = handle  # type: ignore[method-assign]
            raise KeyError("out of memory, say")
        return commands

    async def main() -> None:
        engine.handle = breaking  # type: ignore[method-assign]
        with pytest.raises((KeyError, openai.APIConnectionError)):  # openai 2.x wraps what it does not know
            await rig.say()
        await rig.say()

    rig.run(main)
    assert len(rig.received) == 1


@pytest.mark.parametrize("rank", [lambda job: nan, lambda job: 1 / 0])
def test_a_policy_that_fails_loses_no_call(stack: ModuleType, rank: Any) -> None:
    rig = Rig(stack=stack, policy=Policy(rank=rank))

    async def main() -> None:
        with pytest.raises((UsageError, ZeroDivisionError)):
            await rig.say()

    rig.run(main)
    assert rig.received == []


# -- after the end ------------------------------------------------------------------------------------


def test_use_after_close(stack: ModuleType) -> None:
    for listed in (False, True):
        rig = Rig(stack=stack, listed=listed)

        async def main(rig: Rig = rig) -> None:
            await rig.scheduler.aclose()
            for use in (
                rig.say(),
                rig.say(stream=True),
                rig.client.models.list(),
                rig.client.embeddings.create(model=MODEL, input="x"),
            ):
                with pytest.raises(SchedulerClosed, match="the scheduler is closed") as caught:
                    await use
                assert isinstance(caught.value, openai.OpenAIError)
                assert (caught.value.sent, caught.value.fault) == (False, "caller")
            with rig.scheduler.query("q"):
                pass
            await rig.scheduler.aclose()

        rig.run(main)
        assert rig.received == []
        assert not rig.scheduler._driver._loops, "no row, no pool of a closed scheduler"
