"""What a snapshot says of backends, and of each call that waits: where it would go, and what keeps it."""

import asyncio
from itertools import count
from typing import Any

import pytest

from agentsched import BackendLoad, Job, Policy
from agentsched.engine.events import Signalled
from agentsched.engine.queue import FRONT
from agentsched.model import Signals
from agentsched.runtime.snapshot import Waiting
from tests.doubles import Rig, begun

FREE = 10**6
"""A budget that holds nothing back."""

NUMBERS = count()


def waiting(rig: Rig) -> list[Waiting]:
    return list(rig.scheduler.snapshot().waiting)


def reasons(rig: Rig) -> list[tuple[str | None, str]]:
    return [(call.home, call.why) for call in waiting(rig)]


def budget(rig: Rig, tokens: float, *names: str) -> None:
    for name in names or ("fake-1",):
        rig.scheduler._driver.engine.backends[name].budget.tokens = tokens


def asked(rig: Rig, prompt: int, answer: int = 100) -> asyncio.Task[Any]:
    """Begin a call that is expected to hold so many tokens; no two begin alike."""
    content = f"{next(NUMBERS):<4}" + "x" * 4 * (prompt - 1)
    return rig.begun(answer, messages=[{"role": "user", "content": content}], max_tokens=answer)


async def ended(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.gather(*tasks)


def prefers_the_first(job: Job, load: BackendLoad) -> float:
    return 1.0 if load.name == "fake-1" else 100.0


# -- reasons to wait ----------------------------------------------------------------------------------


def test_no_slot() -> None:
    rig = Rig(2, limit=1)

    async def main() -> None:
        tasks = [rig.begun(400) for _ in range(4)]
        await begun()
        assert [why for _, why in reasons(rig)] == ["no slot at fake-1, fake-2"] * 2
        assert all(home in ("fake-1", "fake-2") for home, _ in reasons(rig))
        assert str(waiting(rig)[0]).endswith("0.00 s: no slot at fake-1, fake-2")
        await ended(*tasks)

    rig.run(main)


def test_no_budget() -> None:
    rig = Rig(1)
    budget(rig, 500)

    async def main() -> None:
        tasks = [asked(rig, 200) for _ in range(2)]
        await begun()
        assert reasons(rig) == [("fake-1", "no budget at fake-1")]
        await ended(*tasks)

    rig.run(main)


def test_without_release_control_there_is_no_budget() -> None:
    rig = Rig(1, limit=2, policy=Policy(release_control=False))
    budget(rig, 500)

    async def main() -> None:
        tasks = [asked(rig, 200) for _ in range(3)]
        await begun()
        assert reasons(rig) == [("fake-1", "no slot at fake-1")]
        await ended(*tasks)

    rig.run(main)


def test_each_backend_may_lack_something_else() -> None:
    rig = Rig(3, limit=2, limits={"rpm": 1})

    async def main() -> None:
        rows = rig.scheduler._driver.engine.backends
        tasks = [asked(rig, 200) for _ in range(3)]
        await begun()
        rows["fake-1"].has_slot = False  # as if its limit were 1
        budget(rig, 500, "fake-2")
        tasks.append(asked(rig, 300))
        await begun()
        assert [why for _, why in reasons(rig)] == [
            "no slot at fake-1; no budget at fake-2; rate limit of fake-3"
        ]
        rows["fake-1"].has_slot = True
        budget(rig, FREE, "fake-2")
        await ended(*tasks)

    rig.run(main)


def test_a_better_backend_is_worth_the_wait() -> None:
    rig = Rig(2, limit=1, policy=Policy(cost=prefers_the_first))

    async def main() -> None:
        tasks = [rig.begun(400) for _ in range(2)]
        await begun()
        assert reasons(rig) == [("fake-1", "waits for fake-1, which is worth it")]
        await ended(*tasks)
        assert rig.scheduler.snapshot().backends[1].started == 0

    rig.run(main)


def test_what_is_kept_for_calls_before() -> None:
    """The first of those that wait is too large for what is left; the second is not, but it does not go first."""
    rig = Rig(1)
    budget(rig, 1_000)

    async def main() -> None:
        tasks = [asked(rig, 600), asked(rig, 900), asked(rig, 10)]
        await begun()
        assert reasons(rig) == [
            ("fake-1", "no budget at fake-1"),
            ("fake-1", "fake-1 is kept for calls before it"),
        ]
        await ended(*tasks)

    rig.run(main)


def test_what_lacks_something_and_what_is_kept() -> None:
    """The first of those that wait does so by choice, and nobody else has the backend that it waits for."""
    rig = Rig(2, policy=Policy(cost=prefers_the_first))
    budget(rig, 1_000)

    async def main() -> None:
        tasks = [asked(rig, 600), asked(rig, 900)]
        await begun()
        assert reasons(rig) == [("fake-1", "waits for fake-1, which is worth it")]
        rig.scheduler._driver.engine.backends["fake-2"].has_slot = False
        tasks.append(asked(rig, 10))
        await begun()
        assert reasons(rig)[1] == ("fake-1", "no slot at fake-2; fake-1 is kept for calls before it")
        rig.scheduler._driver.engine.backends["fake-2"].has_slot = True
        await ended(*tasks)

    rig.run(main)


def test_who_stands_too_far_behind_to_be_looked_at() -> None:
    rig = Rig(3, policy=Policy(cost=prefers_the_first))
    budget(rig, 1_000, "fake-1", "fake-2")

    async def main() -> None:
        tasks = [asked(rig, 600)]
        tasks += [asked(rig, 900) for _ in range(FRONT + 2)]
        await begun()
        kept = "fake-2, fake-3 are kept for calls before it"
        worth = "waits for fake-1, which is worth it"
        seen = [why.removeprefix("no budget at fake-1; ") for _, why in reasons(rig)]
        assert seen == [worth] * FRONT + [kept] * 2
        await ended(*tasks)

    rig.run(main)


def test_where_nobody_overtakes_the_rest_waits_for_the_first() -> None:
    rig = Rig(1, limits={"tpm": 1_000}, policy=Policy(release_control=False, patience=0))

    async def main() -> None:
        tasks = [asked(rig, 600), asked(rig, 900), asked(rig, 10)]
        await begun()
        assert [why for _, why in reasons(rig)] == [
            "rate limit of fake-1",
            "fake-1 is kept for calls before it",
        ]
        await ended(*tasks)

    rig.run(main)


def test_room_that_came_a_moment_ago() -> None:
    rig = Rig(1, limit=1)

    async def main() -> None:
        tasks = [rig.begun(400) for _ in range(2)]
        await begun()
        rig.scheduler._driver.engine.backends["fake-1"].has_slot = True
        assert [why for _, why in reasons(rig)] == ["is looked at next"]
        rig.scheduler._driver.engine.backends["fake-1"].has_slot = False
        await ended(*tasks)

    rig.run(main)


# -- backends -----------------------------------------------------------------------------------------


def test_what_an_idle_backend_shows() -> None:
    (view,) = Rig(1).scheduler.snapshot().backends
    assert (view.tokens_committed, view.token_budget, view.unread_tokens) == (0, None, 0)
    assert (view.kv_usage, view.heard_s) == (None, None)
    assert str(view) == "fake-1 (fake-model): 0 running, 0 started"


def test_what_is_committed_and_how_much_may_be() -> None:
    rig = Rig(1)

    async def main() -> None:
        tasks = [asked(rig, 1_000, 200)]
        while not rig.scheduler.snapshot().running:
            await asyncio.sleep(0)
        (view,) = rig.scheduler.snapshot().backends
        assert (view.tokens_committed, view.unread_tokens, view.token_budget) == (1_200, 1_000, None)
        assert "1 running, 1 started, 1200 tokens committed, 1000 to read" in str(view)
        await asyncio.sleep(0.5)
        budget(rig, 5_000.4)
        (view,) = rig.scheduler.snapshot().backends
        assert (view.unread_tokens, view.token_budget) == (0, 5_000)
        assert str(view).endswith("1 started, 1200 of 5000 tokens committed")
        await ended(*tasks)
        assert rig.scheduler.snapshot().backends[0].tokens_committed == 0

    rig.run(main)


@pytest.mark.parametrize("usage", [0.5, None])
def test_what_the_engine_says(usage: float | None) -> None:
    rig = Rig(1)
    signals = Signals(running=3, waiting=0, kv_usage=usage, kv_tokens=10_000)

    async def main() -> None:
        rig.scheduler._driver.feed(lambda at: Signalled(at=at, backend="fake-1", signals=signals))
        await asyncio.sleep(2.0)
        (view,) = rig.scheduler.snapshot().backends
        assert (view.kv_usage, view.heard_s, view.token_budget) == (usage, pytest.approx(2.0), 9_000)
        assert ("KV memory 50% full 2 s ago" in str(view)) == (usage is not None)

    rig.run(main)
