"""What people ask a running scheduler: where the time of a call went, what is held, and why."""

import asyncio
from typing import Any

import pytest

from agentsched import Backend, Explanation, Scheduler, UsageError, step
from agentsched.engine.story import Entry
from agentsched.runtime.explain import explain
from agentsched.testing import FakeBackend, FakeFleet, faults
from tests.doubles import MODEL, Rig, begun, outcome

APPROX = 0.02
"""Seconds of entering an engine and of reading a prompt."""


# -- one call's story ---------------------------------------------------------------------------------


def test_case_104_queue_connect_first_token_and_decode_are_told_apart() -> None:
    """104: 8 s in the queue and 2 s at the model are not 10 s of model time."""
    rig = Rig(1, limit=1)

    async def main() -> None:
        first, second = rig.begun(1_600), rig.begun(400)
        await first
        answer = await second
        story = rig.scheduler.explain(answer._request_id)
        assert story.queue_s == pytest.approx(8.0, abs=APPROX)
        assert story.connect_s == 0.0
        assert story.first_token_s == pytest.approx(0.0, abs=APPROX)
        assert story.first_token_s > 0
        assert story.decode_s == pytest.approx(2.0, abs=APPROX)
        assert story.first_token_s + story.decode_s + story.queue_s == pytest.approx(rig.clock(), abs=0.2)
        assert (story.outcome, story.backend, story.attempts) == ("completed", "fake-1", 1)

    rig.run(main)


def test_a_slow_first_token_is_no_decoding() -> None:
    rig = Rig(1)
    rig["fake-1"].fail(faults.SlowStart(delay_s=3.0))

    async def main() -> None:
        story = rig.scheduler.explain((await rig.say(1))._request_id)
        assert story.queue_s == 0.0
        assert story.first_token_s == pytest.approx(3.0, abs=APPROX)
        assert story.decode_s == pytest.approx(0.0, abs=APPROX)

    rig.run(main)


def test_a_live_call_has_no_end_yet() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        tasks = [rig.begun(400), rig.begun(400)]
        await asyncio.sleep(1.0)
        running, waiting = (rig.scheduler.explain(id_) for id_ in rig.scheduler._driver._calls)
        assert (running.outcome, running.decode_s, running.backend) == (None, None, "fake-1")
        assert running.first_token_s == pytest.approx(0.0, abs=APPROX)
        assert (waiting.outcome, waiting.backend, waiting.attempts) == (None, None, 0)
        assert waiting.queue_s == pytest.approx(1.0)
        assert (waiting.first_token_s, waiting.decode_s) == (None, None)
        assert "live" in str(waiting)
        await asyncio.gather(*tasks)

    rig.run(main)


def test_expectations_and_the_prices_of_all_backends_are_shown() -> None:
    rig = Rig(2)

    async def main() -> None:
        story = rig.scheduler.explain((await rig.say(7, max_tokens=100))._request_id)
        assert story.expected_output_tokens == 100.0
        assert story.expected_cost_s.keys() == {"fake-1", "fake-2"}
        assert story.expected_cost_s["fake-1"] == min(story.expected_cost_s.values())
        lines = str(story).splitlines()
        assert lines[0].startswith(
            f"{story.request_id}: completed at fake-1; queue 0.000 s, connect 0.000 s, first token "
        )
        assert len(lines) == len(story.entries) + 1
        assert "started (backend=fake-1" in str(story)

    rig.run(main)


def test_a_story_tells_how_long_it_should_take() -> None:
    """Not before the backend's speed is known, and with a bound only after twenty answers."""
    rig = Rig(1)

    async def told() -> Explanation:
        messages = [{"role": "user", "content": "z" * 400}]  # too short to be remembered as read
        return rig.scheduler.explain((await rig.say(100, messages=messages, max_tokens=100))._request_id)

    async def main() -> None:
        first = await told()
        assert (first.expected_s, first.p90_s, first.cached_tokens) == (None, None, None)
        second = await told()
        assert second.expected_s == pytest.approx(0.5, rel=0.1)
        assert second.p90_s is None
        for _ in range(20):
            last = await told()
        assert last.p90_s == pytest.approx(0.5, rel=0.1)
        assert "expected_s=0.5" in str(last)

    rig.run(main)


def test_a_call_that_never_started_has_no_expectations() -> None:
    story = story_of((0.0, "queued", {}), (9.0, "expired", {}))
    assert (story.expected_s, story.p90_s, story.cached_tokens) == (None, None, None)
    assert story.expected_cost_s == {}


def test_expectations_are_of_the_last_start() -> None:
    facts = {"expected_s": 1.0, "p90_s": 2.0, "cached_tokens": 128}
    story = story_of((0.0, "started", START | facts), (1.0, "attempt failed", {}), (1.0, "queued", {}))
    assert (story.expected_s, story.p90_s, story.cached_tokens) == (1.0, 2.0, 128)
    story = story_of((0.0, "started", START | facts), (1.0, "attempt failed", {}), (1.0, "started", START))
    assert (story.expected_s, story.p90_s, story.cached_tokens) == (None, None, None)


def test_failed_attempts_are_part_of_the_story() -> None:
    rig = Rig(2)
    rig["fake-1"].fail(faults.Status(code=500))

    async def main() -> None:
        story = rig.scheduler.explain((await rig.say())._request_id)
        assert (story.attempts, story.backend) == (2, "fake-2")
        (failed,) = [entry for entry in story.entries if entry.what == "attempt failed"]
        assert failed.facts["backend"] == "fake-1"
        assert failed.facts["status"] == 500

    rig.run(main)


def test_no_secret_is_in_a_story() -> None:
    rig = Rig(1)

    async def main() -> None:
        messages: Any = [{"role": "user", "content": "my password is swordfish"}]
        answer = await rig.say(messages=messages, user="swordfish", extra_headers={"x-secret": "swordfish"})
        shown = str(rig.scheduler.explain(answer._request_id)) + repr(rig.scheduler.snapshot())
        assert "swordfish" not in shown
        assert answer.choices[0].message.content not in shown

    rig.run(main)


def test_an_unknown_id_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match="no call has the id 'nonsense'"):
        Rig().scheduler.explain("nonsense")


def test_stories_are_kept_for_a_thousand_calls() -> None:
    rig = Rig(1)

    async def main() -> None:
        first = await rig.say(1)
        for _ in range(10):
            await asyncio.gather(*(rig.say(1) for _ in range(100)))
        with pytest.raises(UsageError, match="too long ago"):
            rig.scheduler.explain(first._request_id)

    rig.run(main)


def story_of(*entries: tuple[float, str, dict[str, Any]], now: float = 100.0) -> Explanation:
    told = [Entry(0.0, "submitted", {"expected_output_tokens": 5.0})]
    told += [Entry(at, what, facts) for at, what, facts in entries]
    return explain("r1", told, now)


START = {"backend": "a", "expected_cost_s": {}}


def test_connecting_counts_for_the_attempt_that_did_it() -> None:
    story = story_of(
        (0.0, "queued", {}),
        (1.0, "started", START),
        (6.0, "connected", {"connect_s": 5.0}),
        (7.0, "attempt failed", {}),
        (7.0, "queued", {}),
        (8.0, "started", START),
        (8.5, "connected", {"connect_s": 0.5}),
        (10.0, "first token", {"connect_s": 0.5}),
        (12.0, "completed", {}),
    )
    assert story.queue_s == 2.0
    assert story.connect_s == 5.5
    assert story.first_token_s == 1.5
    assert story.decode_s == 2.0


def test_waiting_after_a_failure_is_no_decoding() -> None:
    story = story_of(
        (0.0, "queued", {}),
        (0.0, "started", START),
        (1.0, "first token", {"connect_s": 0.0}),
        (2.0, "attempt failed", {}),
        (2.0, "queued", {}),
        (9.0, "expired", {}),
    )
    assert story.queue_s == 7.0
    assert (story.first_token_s, story.decode_s) == (None, None)


# -- everything at once -------------------------------------------------------------------------------


def test_an_idle_snapshot() -> None:
    snapshot = Rig(2, limit=3).scheduler.snapshot()
    assert (snapshot.queued, snapshot.running, snapshot.queries) == (0, 0, 0)
    assert [(view.name, view.running, view.max_concurrency) for view in snapshot.backends] == [
        ("fake-1", 0, 3),
        ("fake-2", 0, 3),
    ]
    assert snapshot.backends[0].decode_s_per_token is None


def test_a_snapshot_says_what_each_backend_serves() -> None:
    """Else nobody sees why one of them gets no calls."""
    fleet = FakeFleet([FakeBackend("fake-1", models=("one",)), FakeBackend("fake-2", models=list("abcdefg"))])
    rig = Rig(fleet=fleet, listed=True)

    async def main() -> None:
        assert [view.models for view in rig.scheduler.snapshot().backends] == [None, None]
        assert "fake-1 (any model)" in str(rig.scheduler.snapshot())
        await rig.say(model="one")
        assert [view.models for view in rig.scheduler.snapshot().backends] == [("one",), tuple("abcdefg")]
        assert "fake-2 (a, b, c, d, e and 2 more): 0 running" in str(rig.scheduler.snapshot())

    rig.run(main)


def test_a_story_says_which_step_it_is_of() -> None:
    rig = Rig(1)

    async def main() -> None:
        async with rig.scheduler.query("debate"):
            with step("pros"):
                answer = await rig.say()
        assert "workflow=debate, step=pros" in str(rig.scheduler.explain(answer._request_id))

    rig.run(main)


def test_a_busy_snapshot_names_what_runs_and_what_waits_for_what() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        async with rig.scheduler.query("qa", tenant="acme", priority=0):
            with step("draft"):
                tasks = [rig.begun(400)]
            await asyncio.sleep(0)
            with step("check"):
                tasks.append(rig.begun())
            await asyncio.sleep(1.0)
            async with rig.scheduler.query("rush", priority=5):
                tasks.append(rig.begun())
                await asyncio.sleep(0.5)
                snapshot = rig.scheduler.snapshot()
        assert (snapshot.queued, snapshot.running, snapshot.queries) == (2, 1, 1)
        (running,) = snapshot.calls
        assert (running.workflow, running.step, running.tenant) == ("qa", "draft", "acme")
        assert (running.backend, running.model) == ("fake-1", MODEL)
        assert running.running_s == pytest.approx(1.5)
        assert running.output_tokens > 100
        assert [(w.step, w.priority) for w in snapshot.waiting] == [(None, 5), ("check", 0)]
        first = snapshot.waiting[0]
        assert first.waited_s == pytest.approx(0.5)
        assert first.backends == ("fake-1",)
        assert first.why == "no slot at fake-1"
        await asyncio.gather(*tasks)
        assert rig.scheduler.snapshot().backends[0].started == 3
        assert rig.scheduler.snapshot().backends[0].decode_s_per_token == pytest.approx(0.005, rel=0.2)

    rig.run(main)


def test_a_snapshot_shows_a_hundred_of_many_best_first() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        tasks = [rig.begun(1) for _ in range(250)]
        await begun()
        snapshot = rig.scheduler.snapshot()
        assert (snapshot.queued, len(snapshot.waiting)) == (249, 100)
        ids = [waiting.request_id for waiting in snapshot.waiting]
        assert ids == list(rig.scheduler._driver._calls)[1:101]
        await asyncio.gather(*tasks)

    rig.run(main)


def test_a_rate_limit_is_a_reason_to_wait() -> None:
    rig = Rig(1, limits={"rpm": 1})

    async def main() -> None:
        await rig.say()
        task = rig.begun()
        await begun()
        (waiting,) = rig.scheduler.snapshot().waiting
        assert waiting.why == "rate limit of fake-1"
        await task
        assert rig.clock() == pytest.approx(60.0, abs=0.1)

    rig.run(main)


def test_a_question_to_the_backends_is_a_reason_to_wait() -> None:
    rig = Rig(1, listed=True)

    async def main() -> None:
        task = rig.begun()
        for _ in range(3):
            await asyncio.sleep(0)
        seen = [w.why for w in rig.scheduler.snapshot().waiting]
        assert seen in ([], ["the backends are being asked what they serve"])
        await task

    rig.run(main)


def test_repr_counts() -> None:
    rig = Rig(2, limit=1)

    async def main() -> None:
        assert repr(rig.scheduler) == "<Scheduler 0 queued, 0 running: fake-1 0/1, fake-2 0/1>"
        tasks = [rig.begun() for _ in range(3)]
        await begun()
        assert repr(rig.scheduler) == "<Scheduler 1 queued, 2 running: fake-1 1/1, fake-2 1/1>"
        await asyncio.gather(*tasks)
        await rig.scheduler.aclose()
        assert repr(rig.scheduler).startswith("<Scheduler closed, 0 queued")
        assert isinstance(await outcome(rig.say()), Exception)

    rig.run(main)
    assert "http" not in repr(Scheduler([Backend("http://a:1/v1", api_key="secret")]))
