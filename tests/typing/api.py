# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportPrivateUsage=true
"""The public face as its users write it. Never run: a type checker reads it.

What must be accepted stands here plainly. What must be refused carries `# type: ignore`, and a checker that
reports needless ones turns each into a proof that it is refused.
"""

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, assert_type

from openai import AsyncOpenAI

from agentsched import (
    AgentschedError,
    Backend,
    BackendError,
    BackendLoad,
    BackendOverloaded,
    CallLimitReached,
    Expired,
    Explanation,
    Fleet,
    Job,
    Policy,
    Rejected,
    Scheduler,
    Snapshot,
    UnknownModel,
    UsageError,
    step,
)

# -- backends ----------------------------------------------------------------------------------------------

a = Backend("http://gpu-a:8000/v1")
b = Backend("http://gpu-b:8000/v1", api_key="key", models={"qwen3": "Qwen/Qwen3-32B-AWQ"}, name="b")
c = Backend("http://gpu-c:8000/v1", models=["qwen3"], max_concurrency=8, rpm=600, tpm=100_000, priority=True)
d = Backend("http://gpu-d:8000/v1", models=(name for name in ("x", "y")))

assert_type(b.name, str)
assert_type(c.rpm, int | None)

Backend()  # type: ignore
Backend("http://gpu-a:8000/v1", "key")  # type: ignore
Backend("http://gpu-a:8000/v1", max_parallel=3)  # type: ignore
Backend("http://gpu-a:8000/v1", rpm="many")  # type: ignore
Backend("http://gpu-a:8000/v1", priority=5)  # type: ignore
a.rpm = 3  # type: ignore

# -- schedulers --------------------------------------------------------------------------------------------

sched = Scheduler([a, b])
Scheduler((backend for backend in [a, b]), policy=Policy.default(), max_queued=10, journal=Path("run.jsonl"))
Scheduler([a], clock=lambda: 0.0, max_body_bytes=1_000_000, journal="run.jsonl")

assert_type(sched.fleet, Fleet)
assert_type(sched.fleet.names, tuple[str, ...])
assert_type(sched.fleet.add(c), None)
assert_type(sched.fleet.remove("b"), None)
assert_type(sched.fleet.replace(c), None)

sched.fleet.add("http://gpu-c:8000/v1")  # type: ignore
sched.fleet.remove(c)  # type: ignore
sched.fleet.names = ()  # type: ignore

Scheduler([a], policy="fcfs")  # type: ignore
Scheduler([a], max_queue=10)  # type: ignore
Scheduler(a)  # type: ignore

client = sched.openai()
assert_type(client, AsyncOpenAI)
assert_type(sched.client_kwargs(), dict[str, Any])

# -- policies ----------------------------------------------------------------------------------------------


def shortest_first(job: Job) -> float:
    return job.output_tokens


def least_busy(job: Job, load: BackendLoad) -> float:
    return load.running + job.input_tokens * load.prefill_s


mine = Policy(rank=shortest_first, cost=least_busy)
Scheduler([a], policy=mine)
assert_type(Policy.fcfs(), Policy)

Policy(rank=least_busy)  # type: ignore
Policy(cost=lambda job: 0.0)  # type: ignore
Policy(shortest_first)  # type: ignore
mine.rank = shortest_first  # type: ignore

# -- queries -----------------------------------------------------------------------------------------------


@sched.workflow
async def plain(question: str) -> int:
    return len(question)


@sched.workflow(slo_s=30, tenant="acme", priority=2, max_calls=10)
async def answer(question: str, *, best_of: int = 1) -> str:
    reply = await client.chat.completions.create(
        model="qwen3", messages=[{"role": "user", "content": question}]
    )
    return (reply.choices[0].message.content or "") * best_of


@sched.workflow("named", timeout_s=5.0)
def in_a_thread(question: str) -> list[str]:
    return [question]


@sched.workflow
async def stream(question: str) -> AsyncIterator[str]:
    yield question


async def decorated_functions_keep_their_types() -> None:
    assert_type(await plain("q"), int)
    assert_type(await answer("q", best_of=2), str)
    assert_type(in_a_thread("q"), list[str])
    async for piece in stream("q"):
        assert_type(piece, str)
    await answer(7)  # type: ignore
    await answer("q", worst_of=2)  # type: ignore


sched.workflow(slo=30)  # type: ignore


async def blocks() -> None:
    async with sched.query("report", slo_s=30, timeout_s=60, tenant="acme", priority=1, max_calls=5) as query:
        assert_type(query.id, str | None)
        assert_type(query.workflow, str)
    async with sched.query("report", deadline=datetime(2100, 1, 1, tzinfo=UTC)):
        pass
    with sched.query("report"):
        pass
    sched.query()  # type: ignore
    sched.query("report", slo="30 s")  # type: ignore
    sched.query("report", deadline=30.0)  # type: ignore


# -- steps -------------------------------------------------------------------------------------------------


@step
async def draft(question: str) -> str:
    return question


@step("judge")
def judge(text: str) -> float:
    return float(len(text))


@step(name="split")
def split(text: str) -> Iterator[str]:
    yield from text.split()


async def steps() -> None:
    assert_type(await draft("q"), str)
    assert_type(judge("q"), float)
    assert_type(next(split("q")), str)
    with step("rerank"):
        pass
    async with step("rerank"):
        pass
    step("rerank", retries=3)  # type: ignore
    judge(3)  # type: ignore


# -- questions and errors ----------------------------------------------------------------------------------


async def questions() -> None:
    snapshot = sched.snapshot()
    assert_type(snapshot, Snapshot)
    assert_type(snapshot.queued, int)
    for call in snapshot.waiting:
        assert_type(call.why, str)
        assert_type(call.waited_s, float)
        assert_type(call.home, str | None)
    for backend in snapshot.backends:
        assert_type(backend.max_concurrency, int | None)
        assert_type(backend.tokens_committed, int)
        assert_type(backend.token_budget, int | None)
        assert_type(backend.kv_usage, float | None)
        assert_type(backend.draining, bool)
    explanation = sched.explain("as-1")
    assert_type(explanation, Explanation)
    assert_type(explanation.backend, str | None)
    assert_type(explanation.queue_s, float)
    assert_type(explanation.p90_s, float | None)
    assert_type(explanation.cached_tokens, int | None)


async def errors() -> None:
    try:
        await answer("q")
    except BackendOverloaded as error:
        assert_type(error.retry_after_s, float | None)
    except BackendError as error:
        assert_type(error.backend, str)
        assert_type(error.attempts, int)
        assert_type(error.partial_text, str)
    except (CallLimitReached, Rejected, Expired, UnknownModel) as error:
        assert_type(error.sent, bool)
        assert_type(error.request_id, str | None)
    except UsageError as error:
        as_value_error: ValueError = error
        print(as_value_error)
    except AgentschedError as error:
        as_runtime_error: RuntimeError = error
        print(as_runtime_error)


async def the_end() -> None:
    await sched.aclose()
    async with Scheduler([a]) as short_lived:
        assert_type(short_lived, Scheduler)
