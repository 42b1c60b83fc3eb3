"""Measures a backend with calls of its own, made through a scheduler, so that what learns is what will use it."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from agentsched.errors import AgentschedError, BackendError
from agentsched.model import Backend, FailureKind
from agentsched.predict import Measured, Profile
from agentsched.runtime.ladder import Rung, ladder, prompt
from agentsched.runtime.pools import Pools
from agentsched.runtime.scheduler import Scheduler
from agentsched.transport.jsontext import loads
from agentsched.transport.listing import Card, list_cards
from agentsched.transport.refusal import Broken
from agentsched.transport.stack import checked_stack
from agentsched.transport.upstream import Upstream

ASK = "Go on with this text, as long as you can:"
FIRST = Rung(256, 1, 4)
"""The call that shows whether it works at all; engines get ready for their first one, so it is not learned from."""


async def measure(
    backend: Backend,
    *,
    model: str | None = None,
    max_seconds: float = 60.0,
    max_calls: int = 150,
    on_calls: Callable[[int], None] | None = None,
    upstream: Any | None = None,
    clock: Callable[[], float] = time.monotonic,
    seed: int | None = None,
) -> Measured:
    """Return what a backend shows under a ladder of calls, see `ladder`.

    Args:
        model: served there; the first that it lists if None.
        max_seconds: after which no call is waited for.
        max_calls: most that are made, and one before them that is not counted.
        on_calls: told how many more of the calls have ended, or are left out for want of time.
        upstream, clock: see `Scheduler`.
        seed: of the prompts; None for new ones.

    Raises:
        BackendError: if it cannot be measured: it does not answer, or refuses, or no call ends in time.
    """
    ends_at = clock() + max_seconds
    card = await _card(backend, model, upstream)
    served = Backend(
        backend.base_url,
        api_key=backend.api_key,
        models=[card.name],
        name=backend.name,
        metrics=backend.metrics,
    )
    climb = _Climb(served, card, upstream, clock, random.Random(seed))  # noqa: S311 - words, not secrets
    return await climb.measured(ends_at, max_calls, on_calls if on_calls is not None else lambda _: None)


async def _card(backend: Backend, model: str | None, upstream: Any | None) -> Card:
    """Return the model to ask for."""
    reached = None if upstream is None else Upstream(upstream)
    stack = checked_stack(None) if reached is None else reached.stack
    pools = Pools(stack, reached)
    try:
        cards = await list_cards(stack, pools.to(backend), backend)
    except Broken as error:
        if model is not None:
            return Card(model, None)
        hint = "; name one that it serves" if error.kind in (FailureKind.ERROR, FailureKind.PROTOCOL) else ""
        raise _broken(backend, f"does not list its models: {error.detail}{hint}") from None
    finally:
        await pools.aclose()
    found = [card for card in cards if model in (None, card.name)]
    if not found:
        names = ", ".join(card.name for card in cards[:10])
        raise _broken(backend, f"does not list the model {model!r}; it lists {names}")
    return found[0]


class _Climb:
    def __init__(
        self,
        backend: Backend,
        card: Card,
        upstream: Any | None,
        clock: Callable[[], float],
        dice: random.Random,
    ) -> None:
        self._backend = backend
        self._card = card
        self._upstream = upstream
        self._clock = clock
        self._dice = dice
        self._rungs: list[Rung] = []
        self._ended = 0

    async def measured(self, ends_at: float, max_calls: int, on_calls: Callable[[int], None]) -> Measured:
        """Make the calls, and return what was learned."""
        begun_at = self._clock()
        before = await self._first(ends_at)
        async with self._scheduler(before) as scheduler:
            stopped = await self._up(scheduler, ends_at, max_calls, on_calls)
            found = scheduler.fleet.profile().backends
        if not found or found[0].learned.decode is None or found[0].learned.prefill is None:
            why = stopped or "too few calls ended in time"
            raise _broken(self._backend, f"cannot be measured: {why}")
        return replace(
            found[0],
            source="calibration",
            calls=self._ended,
            seconds=self._clock() - begun_at,
            ladder=tuple((rung.prompt, rung.calls) for rung in self._rungs),
        )

    async def _first(self, ends_at: float) -> Profile:
        """See whether it answers at all, and return how its prompts are counted."""
        async with self._scheduler(None) as scheduler:
            try:
                async with asyncio.timeout(ends_at - self._clock()):
                    await self._call(scheduler.http_async_client(), FIRST, asyncio.Event())
            except TimeoutError:
                raise _broken(self._backend, "did not answer a first call in time") from None
            return Profile(prompts=scheduler.fleet.profile().prompts)

    async def _up(
        self, scheduler: Scheduler, ends_at: float, max_calls: int, on_calls: Callable[[int], None]
    ) -> str | None:
        """Climb as far as time and calls allow; return why a call failed, if one did."""
        client = scheduler.http_async_client()
        left, widest, why = max_calls, 2**53, None
        for rung in ladder(self._card.max_tokens):
            calls = min(rung.calls, left)
            left -= calls
            if not calls:
                break
            if rung.calls > widest or self._clock() + self._expected_s(scheduler, rung) > ends_at:
                on_calls(calls)
                continue
            try:
                async with asyncio.timeout(max(ends_at - self._clock(), 0.0)):
                    failed = await self._all(client, Rung(rung.prompt, calls, rung.answer), on_calls)
            except TimeoutError:
                break
            if failed is not None:
                why, widest = failed, rung.calls - 1
        return why

    def _expected_s(self, scheduler: Scheduler, rung: Rung) -> float:
        """Return the seconds that a rung should take; 0 while nothing is known."""
        view = scheduler.snapshot().backends[0]
        if view.prefill_s_per_token is None or view.decode_s_per_token is None:
            return 0.0
        return rung.calls * rung.prompt * view.prefill_s_per_token + rung.answer * view.decode_s_per_token

    async def _all(self, client: Any, rung: Rung, on_calls: Callable[[int], None]) -> str | None:
        """Make the calls of a rung, each once the one before is being answered; return why one failed, if one did.

        Prompts that arrive together are read together, and none of them shows how long its own takes.
        """
        failures: list[str] = []

        async def one(begun: asyncio.Event) -> None:
            try:
                await self._call(client, rung, begun)
                self._ended += 1
            except AgentschedError as error:
                failures.append(str(error))
            finally:
                begun.set()
                on_calls(1)

        async with asyncio.TaskGroup() as group:
            for _ in range(rung.calls):
                begun = asyncio.Event()
                group.create_task(one(begun))
                await begun.wait()
        self._rungs.append(rung)
        return failures[0] if failures else None

    async def _call(self, client: Any, rung: Rung, begun: asyncio.Event) -> None:
        content = f"{prompt(rung.prompt, self._dice)}\n\n{ASK}"
        body = {
            "model": self._card.name,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": rung.answer,
            "stream": True,
        }
        async with client.stream("POST", "/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                why = _message(await answer.aread())
                raise _broken(self._backend, f"answers HTTP {answer.status_code}: {why}")
            async for _ in answer.aiter_bytes():
                begun.set()

    def _scheduler(self, profile: Profile | None) -> Scheduler:
        return Scheduler([self._backend], upstream=self._upstream, clock=self._clock, profile=profile)


def _message(content: bytes) -> str:
    """Return the beginning of what an error says, on one line."""
    try:
        found = cast("dict[str, Any]", loads(content))
        message: object = found.get("error", found)
        if isinstance(message, dict):
            message = cast("dict[str, Any]", message).get("message", found)
    except (ValueError, AttributeError):
        message = content.decode("utf-8", "replace")
    return " ".join(str(message)[:200].split())


def _broken(backend: Backend, why: str) -> BackendError:
    return BackendError(f"{backend.name} {why}", backend=backend.name)
