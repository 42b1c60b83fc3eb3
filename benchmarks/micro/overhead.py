"""What scheduling adds to one call of `openai.AsyncOpenAI`.

One operation is one chat completion with a 10 KB prompt over an upstream in memory, answered in 16 events,
through a plain client and through a scheduled one in turn. The gate: at the median, at most 0.3 ms or 35 % of
plain, whichever is larger; several rounds are run, and the middle one counts. Run it with
`python -m benchmarks.micro.overhead`.
"""

import asyncio
import statistics
import sys
import time
from itertools import cycle
from typing import Any

from openai import AsyncOpenAI

from agentsched import Backend, Scheduler
from benchmarks.micro.memory import MemoryUpstream, http

ROUNDS = 5
CALLS = 600
WARM_UP = 200
EVENTS = 16
MORE_EVENTS = 80
PROMPTS: list[Any] = [[{"role": "user", "content": "all work and no play " * (470 + n)}] for n in range(40)]
FLOOR_MS = 0.3
SHARE = 0.35


async def call_ms(client: AsyncOpenAI, messages: Any, *, stream: bool) -> float:
    """Return the milliseconds of one operation."""
    start = time.perf_counter()
    if stream:
        async for _ in await client.chat.completions.create(model="m", messages=messages, stream=True):
            pass
    else:
        await client.chat.completions.create(model="m", messages=messages)
    took = time.perf_counter() - start
    for _ in range(5):
        await asyncio.sleep(0)  # what the call leaves to be done is not the next one's cost
    return took * 1e3


async def compare(events: int, *, stream: bool, calls: int = CALLS) -> tuple[float, float, float]:
    """Return the median of plain, of scheduled and of their difference in pairs, in milliseconds."""
    upstream = MemoryUpstream(events)
    plain = AsyncOpenAI(
        api_key="none",
        base_url="http://a.invalid/v1",
        http_client=http.AsyncClient(transport=upstream),
        max_retries=0,
    )
    fleet = [Backend(f"http://{name}.invalid/v1", models=["m"], max_concurrency=8) for name in "abcd"]
    async with Scheduler(fleet, upstream=upstream) as scheduler:
        scheduled = scheduler.openai()
        pairs = [
            (await call_ms(plain, prompt, stream=stream), await call_ms(scheduled, prompt, stream=stream))
            for prompt, _ in zip(cycle(PROMPTS), range(calls + WARM_UP), strict=False)
        ]
    counted = pairs[WARM_UP:]
    return (
        statistics.median(p for p, _ in counted),
        statistics.median(s for _, s in counted),
        statistics.median(s - p for p, s in counted),
    )


async def main() -> int:
    failed = False
    for stream in (False, True):
        rounds = [await compare(EVENTS, stream=stream) for _ in range(ROUNDS)]
        rounds.sort(key=lambda one: one[2] / one[0])
        plain, scheduled, added = rounds[ROUNDS // 2]
        least, most = (one[2] / one[0] for one in (rounds[0], rounds[-1]))
        allowed = max(FLOOR_MS, SHARE * plain)
        _, _, added_more = await compare(MORE_EVENTS, stream=stream)
        slope_us = (added_more - added) / (MORE_EVENTS - EVENTS) * 1e3
        good = added <= allowed
        failed = failed or not good
        print(
            f"{'streamed' if stream else 'whole':8}  plain {plain:.3f} ms  scheduled {scheduled:.3f} ms  "
            f"added {added:.3f} ms ({added / plain:+.1%}; {least:+.1%} to {most:+.1%}), allowed {allowed:.3f} ms  "
            f"further event {slope_us:+.1f} us  {'ok' if good else 'MISSED'}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
