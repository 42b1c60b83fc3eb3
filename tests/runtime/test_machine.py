"""Any sequence of calls, leavings and faults through the real runtime: every call ends once, nothing is left.

Each example is a script; it runs in virtual time over a fake fleet, and after each step the engine's
invariants are checked.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import AgentschedError, Backend, Scheduler
from agentsched.engine.events import Event, Submitted
from agentsched.testing import FakeFleet, VirtualClock, faults
from agentsched.testing.faults import Fault
from tests.doubles import ASK, MODEL, assert_quiet, collected, settled

which = st.integers(0, 1_000)
"""Picks one of however many there are."""

FAULTS: list[Fault] = [
    faults.Refuse(),
    faults.Status(code=500),
    faults.Status(code=429, retry_after_s=1),
    faults.Status(code=400),
    faults.Status(code=404, message="no such model"),
    faults.Hang(),
    faults.SlowStart(delay_s=3),
    faults.Stall(after_events=2),
    faults.Stall(after_events=2, for_s=2),
    faults.Cut(),
    faults.Cut(after_events=3),
    faults.Cut(after_events=3, reset=False),
    faults.ErrorEvent(),
    faults.ErrorEvent(after_events=3),
    faults.Garbage(),
    faults.Garbage(after_events=3),
    faults.EarlyEnd(after_events=3),
]


@dataclass(frozen=True)
class Call:
    """Submit calls at once, alone or in one of three queries."""

    count: int
    tokens: int
    stream: bool
    query: int | None
    use: str
    """What its caller does with a stream: read it, read a part, keep it unread, drop it, fail inside."""


@dataclass(frozen=True)
class Cancel:
    """Cancel some caller's task."""

    who: int


@dataclass(frozen=True)
class Let:
    """Let some time pass, in which things happen."""

    seconds: float


@dataclass(frozen=True)
class Open:
    """Open one of three queries anew."""

    number: int
    timeout_s: float | None
    max_calls: int | None
    priority: int


@dataclass(frozen=True)
class Close:
    """Close one of three queries, whatever still runs in it."""

    number: int


@dataclass(frozen=True)
class Break:
    """Let a fault hit a backend's calls from now on."""

    backend: int
    fault: Fault


@dataclass(frozen=True)
class Heal:
    """Forget all faults."""


@dataclass(frozen=True)
class Release:
    """Let go of all streams that were kept unread."""


@dataclass(frozen=True)
class End:
    """Close the scheduler."""


queries = st.none() | st.integers(0, 2)

calls = st.builds(
    Call,
    count=st.sampled_from([1, 1, 2, 5]),
    tokens=st.sampled_from([1, 5, 40, 400]),
    stream=st.booleans(),
    query=queries,
    use=st.sampled_from(["read", "read", "part", "keep", "drop", "fail"]),
)

lets = st.builds(Let, st.sampled_from([0.0, 0.0, 0.006, 0.05, 0.05, 0.5, 3.0, 31.0]))

opens = st.builds(
    Open,
    number=st.integers(0, 2),
    timeout_s=st.sampled_from([None, None, 0.02, 1.0, 10.0]),
    max_calls=st.sampled_from([None, None, 1, 3]),
    priority=st.integers(-1, 1),
)

others = st.one_of(
    lets,
    st.builds(Cancel, which),
    opens,
    st.builds(Close, st.integers(0, 2)),
    st.builds(Break, which, st.sampled_from(FAULTS)),
    st.just(Heal()),
    st.just(Release()),
)

scripts = st.lists(st.tuples(calls, others, lets), min_size=2, max_size=14).map(
    lambda rounds: [step for each in rounds for step in each]
)


@dataclass
class Play:
    """One example as it runs."""

    clock: VirtualClock
    fleet: FakeFleet
    scheduler: Scheduler
    submitted: Counter[str] = field(default_factory=Counter)
    resolved: Counter[str] = field(default_factory=Counter)
    tasks: list[asyncio.Task[str]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    queries: dict[int, Any] = field(default_factory=dict)
    spools: list[Any] = field(default_factory=list)

    def watch(self) -> None:
        """Count what the engine is told and what it says."""
        driver = self.scheduler._driver
        handle, submit = driver.engine.handle, driver.submit

        def watched(event: Event) -> Any:
            if isinstance(event, Submitted):
                self.submitted[event.request.id] += 1
            commands = handle(event)
            driver.engine.check()
            self.resolved.update(c.request_id for c in commands if type(c).__name__ == "Resolve")
            return commands

        def watched_submit(*args: Any) -> Any:
            call = submit(*args)
            self.spools.append((call.spool, call.head))
            return call

        driver.engine.handle = watched  # type: ignore[method-assign]
        driver.submit = watched_submit  # type: ignore[method-assign]

    async def call(self, client: openai.AsyncOpenAI, call: Call) -> str:
        try:
            return await self._call(client, call)
        except asyncio.CancelledError:
            return "cancelled"
        except (AgentschedError, openai.APIStatusError) as error:
            return type(error).__name__
        except LookupError:
            return "its own error"

    async def _call(self, client: openai.AsyncOpenAI, call: Call) -> str:
        headers = {"x-fake-output-tokens": str(call.tokens)}
        asked: Any = {**ASK, "extra_headers": headers, "timeout": 8.0, "stream": call.stream}
        answer = await client.chat.completions.create(**asked)
        if not call.stream:
            assert answer.usage.completion_tokens == call.tokens
            return "answered"
        if call.use == "keep":
            self.kept.append(answer)
            return "kept"
        if call.use == "drop":
            return "dropped"
        chunks, text = 0, ""
        async for chunk in answer:
            chunks += 1
            text += chunk.choices[0].delta.content or ""
            if call.use == "part" and chunks == 2:
                return "left"
            if call.use == "fail" and chunks == 2:
                raise LookupError("the caller's own")
        assert len(text) == 4 * call.tokens  # a token of the fake has four letters
        return "read"

    async def step(self, client: openai.AsyncOpenAI, step: Any) -> None:
        match step:
            case Call():
                query = self.queries.get(step.query if step.query is not None else -1)
                for _ in range(step.count):
                    with query.active() if query is not None else nullcontext():
                        self.tasks.append(asyncio.ensure_future(self.call(client, step)))
            case Cancel():
                if self.tasks:
                    self.tasks[step.who % len(self.tasks)].cancel()
            case Let():
                await asyncio.sleep(step.seconds)
            case Open():
                self.close(step.number)
                query = self.scheduler.query(
                    "q", timeout_s=step.timeout_s, max_calls=step.max_calls, priority=step.priority
                )
                query.open()
                self.queries[step.number] = query
            case Close():
                self.close(step.number)
            case Break():
                backends = list(self.fleet)
                backends[step.backend % len(backends)].fail(step.fault)
            case Heal():
                self.fleet.heal()
            case Release():
                self.kept.clear()

    def close(self, number: int) -> None:
        query = self.queries.pop(number, None)
        if query is not None:
            query.close()

    async def run(self, script: list[Any], world: "World") -> None:
        self.watch()
        client = self.scheduler.openai()
        client._platform = "Linux"  # it would be looked up in a thread
        for step in script:
            await self.step(client, step)
            await settled(3)
        if world.end:
            await self.scheduler.aclose()
        for number in range(3):
            self.close(number)
        # a fault that never ends is ended by the caller's 8 s; each backend may take that long, one after another
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=3_600)
        assert all(task.done() for task in self.tasks)
        for task in self.tasks:
            if not task.cancelled():  # before it began
                task.result()
        if world.patient:
            await asyncio.sleep(3_600)  # kept streams are complete, or their readers given up
        else:
            self.kept.clear()
            await collected()
        await self.ended()

    async def ended(self) -> None:
        engine = self.scheduler._driver.engine
        assert not engine.attempts
        assert not engine.requests
        assert not engine.queries
        assert self.submitted == self.resolved, "every call ended, and once"
        assert all(count == 1 for count in self.submitted.values())
        assert all(backend.log.in_flight == 0 for backend in self.fleet), "closed at once"
        self.kept.clear()
        await collected()
        await assert_quiet(self.scheduler)
        for spool, head in self.spools:
            assert head.done()
            assert not spool.full
            assert spool._closed or head.cancelled() or head.exception() is not None


@dataclass(frozen=True)
class World:
    """What a script plays in."""

    limits: list[int | None]
    rpm: int | None
    max_queued: int
    listed: bool
    end: bool
    """Whether the scheduler is closed while calls are under way."""
    patient: bool
    """Whether streams that nobody reads are given the time to end by themselves."""


worlds = st.builds(
    World,
    limits=st.lists(st.sampled_from([None, 1, 1, 2]), min_size=1, max_size=3),
    rpm=st.sampled_from([None, None, None, 5]),
    max_queued=st.sampled_from([1_000, 1_000, 2, 0]),
    listed=st.booleans(),
    end=st.sampled_from([False, False, False, True]),
    patient=st.booleans(),
)


@pytest.fixture(scope="module")
def quick_collections() -> Iterator[None]:
    """Leave what was there before out of collections, of which there is one per example."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@given(script=scripts, world=worlds)
@settings(max_examples=settings().max_examples // 2)
@pytest.mark.usefixtures("quick_collections")
def test_any_script(script: list[Any], world: World) -> None:
    clock, fleet = VirtualClock(), FakeFleet.fast(len(world.limits), seats=100)
    backends = [
        Backend(
            fake.base_url,
            name=fake.name,
            models=None if world.listed else [MODEL],
            max_concurrency=limit,
            rpm=world.rpm,
        )
        for fake, limit in zip(fleet, world.limits, strict=True)
    ]
    scheduler = Scheduler(backends, upstream=fleet.transport(), clock=clock, max_queued=world.max_queued)
    clock.run(Play(clock, fleet, scheduler).run(script, world))
