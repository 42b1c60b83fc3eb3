"""Cases of limits, queueing, priority and fairness: what went wrong in other tools is right here."""

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

from agentsched import Backend, CallLimitReached, Scheduler, step
from agentsched.testing import BackendSpec, FakeBackend, FakeFleet, faults
from agentsched.testing.fleet import FAST
from tests.doubles import Rig, begun, outcome


def test_case_01_eleven_calls_at_once_under_a_limit_of_one() -> None:
    """1: all are served, one after another, with no error."""
    rig = Rig(1, limit=1)

    async def main() -> None:
        answers = await asyncio.gather(*(rig.say(20) for _ in range(11)))
        assert [answer.usage.completion_tokens for answer in answers] == [20] * 11

    rig.run(main)
    assert rig["fake-1"].log.peak_in_flight == 1
    assert rig["fake-1"].log.received == 11
    assert rig.clock() == pytest.approx(11 * 0.1, abs=0.4)


def test_case_02_high_priority_goes_next() -> None:
    """2: eight low calls, then three high ones: after the running call the three go first."""
    rig = Rig(1, limit=1)
    order: list[str] = []

    async def call(name: str, priority: int) -> None:
        with rig.scheduler.query("q", priority=priority):
            await rig.say(20)
        order.append(name)

    async def main() -> None:
        low = [asyncio.ensure_future(call(f"low-{n}", 0)) for n in range(8)]
        await begun()
        high = [asyncio.ensure_future(call(f"high-{n}", 10)) for n in range(3)]
        await asyncio.gather(*low, *high)

    rig.run(main)
    assert order == ["low-0", "high-0", "high-1", "high-2", *(f"low-{n}" for n in range(1, 8))]


def test_case_05_no_priority_given_is_the_default() -> None:
    """5: a call without a priority is an ordinary one, not an error."""
    rig = Rig(1, limit=1)
    order: list[int] = []

    async def call(priority: int | None) -> None:
        if priority is None:
            await rig.say()
        else:
            with rig.scheduler.query("q", priority=priority):
                await rig.say()
        order.append(priority or 0)

    async def main() -> None:
        running = rig.begun(20)
        await begun()
        await asyncio.gather(*(call(priority) for priority in (-1, None, 1)), running)

    rig.run(main)
    assert order == [1, 0, -1]


class State(TypedDict):
    """What the graphs below carry."""

    answers: Annotated[list[str], lambda one, two: one + two]


def fan_out(rig: Rig, width: int, node: Any) -> Any:
    """A graph whose `width` nodes run at the same time."""
    graph: Any = StateGraph(State)
    for number in range(width):
        graph.add_node(f"node_{number}", node)
        graph.add_edge(START, f"node_{number}")
        graph.add_edge(f"node_{number}", END)
    return graph.compile()


@pytest.mark.parametrize("limit", [3, 9])
def test_case_07_nested_graphs_share_the_limit(limit: int) -> None:
    """7: three graphs that each run a graph of three: a limit of 3 is 3, not 9."""
    rig = Rig(1, limit=limit)

    async def ask(state: State) -> Any:
        answer = await rig.say(20)
        return {"answers": [answer.choices[0].message.content]}

    inner = fan_out(rig, 3, ask)

    async def call_inner(state: State) -> Any:
        return {"answers": (await inner.ainvoke({"answers": []}))["answers"]}

    outer = fan_out(rig, 3, call_inner)

    async def main() -> None:
        async with rig.scheduler.query("nested"):
            assert len((await outer.ainvoke({"answers": []}))["answers"]) == 9

    rig.run(main)
    assert rig["fake-1"].log.peak_in_flight == limit


def test_case_08_one_limit_per_backend_whatever_the_node() -> None:
    """8: many nodes, two backends: each backend's limit holds for all of them together."""
    rig = Rig(2, limit=2)

    async def node(number: int) -> None:
        with step(f"node-{number}"):
            await asyncio.gather(*(rig.say(10) for _ in range(4)))

    async def main() -> None:
        await asyncio.gather(*map(node, range(6)))

    rig.run(main)
    assert [fake.log.peak_in_flight for fake in rig.fleet] == [2, 2]
    assert sum(fake.log.received for fake in rig.fleet) == 24


def test_case_10_a_burst_of_one_turn_is_bounded_and_leaves_room_for_others() -> None:
    """10: 792 calls of one model turn; another user's call is not behind all of them if it is more urgent."""
    rig = Rig(1, limit=8)
    done: list[str] = []

    async def call(name: str) -> None:
        await rig.say(2)
        done.append(name)

    async def urgent() -> None:
        with rig.scheduler.query("other", priority=1):
            await call("other")

    async def main() -> None:
        burst = [asyncio.ensure_future(call("tool")) for _ in range(792)]
        await begun()
        other = asyncio.ensure_future(urgent())
        await asyncio.gather(other, *burst)

    rig.run(main)
    assert rig["fake-1"].log.peak_in_flight == 8
    assert len(done) == 793
    assert done.index("other") <= 16


def test_case_11_delegations_never_make_more_calls_than_their_limit() -> None:
    """11: eight delegations of two calls each share a limit of nine: nine are sent, the others are told."""
    rig = Rig(4)

    async def delegate(number: int) -> list[Any]:
        async with rig.scheduler.query(f"delegate-{number}"):
            return [await outcome(rig.say(5)) for _ in range(2)]

    async def main() -> None:
        async with rig.scheduler.query("lead", max_calls=9):
            found = [one for pair in await asyncio.gather(*map(delegate, range(8))) for one in pair]
        refused = [one for one in found if isinstance(one, CallLimitReached)]
        assert len(refused) == 16 - 9
        assert not any(error.sent for error in refused)

    rig.run(main)
    assert len(rig.received) == 9


def test_case_11_the_limit_outlives_the_block() -> None:
    """11: what the block leaves running makes no more calls than the block itself could."""
    rig = Rig(1)
    gone = asyncio.Event()

    async def left_behind() -> list[Any]:
        await gone.wait()
        return [await outcome(rig.say(5)) for _ in range(4)]

    async def main() -> None:
        async with rig.scheduler.query("lead", max_calls=3):
            await rig.say(5)
            task = asyncio.create_task(left_behind())
        gone.set()
        found = await task
        assert [isinstance(one, CallLimitReached) for one in found] == [False, False, True, True]

    rig.run(main)
    assert len(rig.received) == 3


# -- 20: what was not used is given back --------------------------------------------------------------


def started_at(rig: Rig) -> list[float]:
    return [round(row.at, 1) for row in rig.received]


def test_case_20_calls_that_left_the_queue_used_no_requests_per_minute() -> None:
    """20: two calls a minute; ten are cancelled in the queue: they have taken nobody's place."""
    rig = Rig(1, limit=1, limits={"rpm": 2})

    async def main() -> None:
        running = rig.begun(200)
        await begun()
        waiting = [rig.begun() for _ in range(10)]
        await asyncio.sleep(0.5)
        for task in waiting:
            task.cancel()
        await running
        await rig.say()
        assert rig.clock() < 2
        await rig.say()
        assert rig.clock() == pytest.approx(60, abs=0.5)

    rig.run(main)
    assert started_at(rig) == [0.0, 1.0, 60.0]


def test_case_20_calls_rejected_or_expired_in_the_queue_used_none_either() -> None:
    """20: the same for calls that were turned away or whose time was up."""
    rig = Rig(1, limit=1, limits={"rpm": 2}, max_queued=1)

    async def main() -> None:
        running = rig.begun(200)
        await begun()
        with rig.scheduler.query("q", timeout_s=0.5):
            expired = rig.begun()
            await begun()
            rejected = [await outcome(rig.say()) for _ in range(3)]
        assert {type(error).__name__ for error in rejected} == {"QueueFull"}
        assert type(await outcome(expired)).__name__ == "Expired"
        await running
        await rig.say()
        assert rig.clock() < 2

    rig.run(main)


def test_case_20_an_attempt_that_was_never_sent_is_refunded() -> None:
    """20: a backend that refuses connections is not charged for them."""
    rig = Rig(1, limits={"rpm": 2, "tpm": 1_000})
    rig["fake-1"].fail(faults.Refuse(), nth=[1, 2, 3])

    async def main() -> None:
        for _ in range(3):
            assert not (await outcome(rig.say())).sent
        await rig.say()
        await rig.say()
        assert rig.clock() < 1
        await rig.say()
        assert rig.clock() == pytest.approx(60, abs=0.5)

    rig.run(main)


def test_case_20_tokens_per_minute_are_settled_when_the_real_count_is_known() -> None:
    """20: a call that was expected to write 900 tokens and wrote 2 leaves the rest to others."""
    rig = Rig(1, limits={"tpm": 1_000})

    async def main() -> None:
        for _ in range(5):
            await rig.say(2, max_tokens=900)
        assert rig.clock() < 1

    rig.run(main)


def test_case_20_tokens_per_minute_hold() -> None:
    """20: no window of 60 s starts more tokens than allowed, where calls write what they were expected to."""
    rig = Rig(1, limits={"tpm": 1_000})

    async def main() -> None:
        await asyncio.gather(*(rig.say(100, max_tokens=100) for _ in range(25)))

    rig.run(main)
    starts = [(row.at, row.prompt_tokens + row.output_tokens) for row in rig.received]
    for at, _ in starts:
        assert sum(tokens for when, tokens in starts if at <= when < at + 60) <= 1_000
    assert len(starts) == 25
    assert rig.clock() == pytest.approx(120, abs=1)


def test_case_22_ten_parallel_steps_take_as_long_as_one() -> None:
    """22: ten parallel steps of half a second under a limit of ten take half a second."""
    rig = Rig(1, limit=10)

    @rig.scheduler.workflow
    async def flow() -> None:
        @step
        async def one() -> None:
            await rig.say(20)

        await asyncio.gather(*(one() for _ in range(10)))

    async def main() -> None:
        await flow()
        alone = Rig(1)
        assert rig.clock() == pytest.approx(await timed(alone), abs=0.15)

    async def timed(alone: Rig) -> float:
        return (await asyncio.to_thread(run_alone, alone)) or 0.0

    def run_alone(alone: Rig) -> float:
        async def one() -> None:
            await alone.say(20)

        alone.clock.run(one())
        return alone.clock()

    rig.run(main)
    assert rig["fake-1"].log.peak_in_flight == 10


# -- 92: priorities of servers ------------------------------------------------------------------------


@pytest.mark.parametrize("scheduling", ["refuses", "ignores", "heeds"])
def test_case_92_a_priority_never_costs_a_call(scheduling: str) -> None:
    """92: the server runs in the order of arrival: no call fails, and one that refuses is asked only once."""
    order = "priority" if scheduling == "heeds" else "fcfs"
    spec = BackendSpec(speed=FAST, max_num_seqs=1, scheduling=order)
    fake = FakeBackend("fake-1", spec=spec, refuse_priority=scheduling == "refuses")
    rig = Rig(fleet=FakeFleet([fake]), limits={"priority": True, "metrics": False})
    done: list[str] = []

    async def call(name: str, priority: int) -> None:
        with rig.scheduler.query("q", priority=priority):
            await rig.say(20)
        done.append(name)

    async def main() -> None:
        await call("first", 9)
        low = [asyncio.ensure_future(call("low", -1)) for _ in range(6)]
        await begun()
        await asyncio.gather(*low, *(call("high", 9) for _ in range(3)))
        (shown,) = rig.scheduler.snapshot().backends
        assert shown.priority == ("refused" if scheduling == "refuses" else "on")
        assert shown.failed == 0

    rig.run(main)
    assert len(done) == 10
    later = done.index("high")
    assert later == (2 if scheduling == "heeds" else 7), "behind one that runs, or behind all"
    refused = [row.status == 400 for row in rig.received]
    assert sum(refused) == (scheduling == "refuses")


# -- 98: isolation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [faults.Hang(), faults.Stall(after_events=1)], ids=["hang", "stall"])
def test_case_98_a_backend_that_hangs_holds_up_its_own_calls_only(fault: faults.Fault) -> None:
    """98: one backend hangs; calls to the others go on as before."""
    fleet = FakeFleet.fast(3)
    fleet["fake-1"].models = ("slow-model",)
    rig = Rig(fleet=fleet, limit=4)
    fleet["fake-1"].fail(fault)

    async def main() -> None:
        hung = [rig.begun(model="slow-model") for _ in range(20)]
        await begun()
        answers = await asyncio.gather(*(rig.say(20) for _ in range(40)))
        assert len(answers) == 40
        assert rig.clock() == pytest.approx(40 / 8 * 0.1, abs=0.3)
        for task in hung:
            task.cancel()
        await asyncio.gather(*hung, return_exceptions=True)

    rig.run(main)


def test_case_98_over_one_pool_of_connections() -> None:
    """98: the same over real sockets, where a pool of connections could be what they share."""
    fleet = FakeFleet.fast(2)
    fleet["fake-1"].models = ("slow-model",)
    fleet["fake-1"].fail(faults.Hang())

    async def main() -> None:
        async with fleet.serve(time_scale=50):
            backends = [Backend(fake.base_url, models=fake.models, name=fake.name) for fake in fleet]
            async with Scheduler(backends) as scheduler:
                client = scheduler.openai()

                def call(model: str) -> Any:
                    messages: Any = [{"role": "user", "content": "x"}]
                    return client.chat.completions.create(model=model, messages=messages, max_tokens=5)

                hung = [asyncio.ensure_future(call("slow-model")) for _ in range(150)]
                while fleet["fake-1"].log.in_flight < 150:
                    await asyncio.sleep(0.005)
                async with asyncio.timeout(3):
                    await asyncio.gather(*(call("fake-model") for _ in range(30)))
                for task in hung:
                    task.cancel()
                await asyncio.gather(*hung, return_exceptions=True)

    asyncio.run(main())
