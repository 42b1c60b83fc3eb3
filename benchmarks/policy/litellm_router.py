"""The real LiteLLM Router as a contender: `Router.acompletion` over the fake fleet, in virtual time.

The package, its decisions and its clients are the published ones. What is changed while it plays: clocks show
virtual time, requests go to the fake fleet instead of sockets, and what only bookkeeping needs is left out.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import importlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from operator import itemgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx

from agentsched.model import Outcome
from agentsched.sim.plan import Node, Plan, check_plan
from agentsched.sim.player import CallRow, Run, query_of
from agentsched.sim.prompt import Piece, tokens_of
from agentsched.sim.spec import BackendSpec
from agentsched.testing import FakeBackend, FakeFleet, Reply, VirtualClock
from agentsched.testing.responder import FakeRequest
from agentsched.testing.tokens import CELL

STRATEGIES = ("simple-shuffle", "least-busy", "latency-based-routing")
NUMBER_HEADER = "x-call-number"
"""Tells the fake backends which call a request is."""
EPOCH_S = 1_767_225_600.0
"""Unix time at which virtual time begins, 2026-01-01: a clock near zero is taken for one that is not set."""
TIMEOUT_S = 1e7
"""Of a request, and so of none."""
KEPT_REQUESTS = 100
"""Requests that a fake backend remembers; a prompt has tens of kilobytes."""
MARKS_TOKENS = 3
"""What the chat template adds to the text of a message, of which the first is in a plan's pieces."""
LATE = ("litellm.router_rust.core", "fastapi")
"""What the package imports with its first Router and, if there, its first error: too late, see `_imported`."""
PRICE = 1e-6
"""Of a call, of no account to these strategies: it is looked up twice per call, at length where it is zero."""


def play(
    strategy: str,
    fleet: Mapping[str, BackendSpec],
    arrivals: Sequence[tuple[float, Plan]],
    *,
    seed: int,
    until_done: int | None = None,
) -> tuple[list[Run], list[CallRow], list[FakeBackend]]:
    """Play plans as `agentsched.sim.player.Player` does, with a Router in front of the fleet.

    Args:
        strategy: one of `STRATEGIES`.
        arrivals: plans and when they arrive, in seconds.
        seed: of the Router's dice.
        until_done: stop when that many queries, the first to arrive, have ended; without it, when all have.

    Returns:
        What happened, as a player has it, and the engines. A call starts when it gets to a backend.
    """
    for _, plan in arrivals:
        check_plan(plan)
    models = sorted({node.model for _, plan in arrivals for node in plan.nodes})
    clock, calls = VirtualClock(), list[CallRow]()

    def answer(request: FakeRequest) -> Reply:
        call = calls[int(request.headers[NUMBER_HEADER])]
        call.started_at, call.backend = clock(), request.backend
        call.attempts += 1
        return Reply("word" * call.node.output_tokens)

    backends = [
        FakeBackend(name, models=models, spec=spec, responder=answer, log_limit=KEPT_REQUESTS)
        for name, spec in fleet.items()
    ]
    last = len(arrivals) if until_done is None else min(until_done, len(arrivals))
    with _litellm_at(clock, FakeFleet(backends), seed) as litellm:
        router = litellm.Router(
            _deployments(backends, models),
            routing_strategy=strategy,
            num_retries=0,
            disable_cooldowns=True,
            timeout=TIMEOUT_S,
        )
        app = _App(router, clock, calls, last)
        clock.run(app.play(arrivals))
        router.retire()
    return app.runs, calls, backends


def _deployments(backends: Sequence[FakeBackend], models: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a Router is told of the fleet: every backend serves every model."""
    return [
        {
            "model_name": model,
            "litellm_params": {
                "model": f"openai/{model}",
                "api_base": backend.base_url,
                "api_key": "none",
            },
        }
        for backend in backends
        for model in models
    ]


class _Unanswered(Exception):
    """A call was not answered, so its query is given up."""


class _App:
    """Makes the calls of plans, each as soon as what it waits for is there."""

    def __init__(self, router: Any, clock: VirtualClock, calls: list[CallRow], last: int) -> None:
        self.runs: list[Run] = []
        self._router = router
        self._now = clock.time
        self._calls = calls
        self._last = self._missing = last
        self._done = asyncio.Event()

    async def play(self, arrivals: Sequence[tuple[float, Plan]]) -> None:
        """Let the queries arrive; return when those that are waited for have ended, and drop the others."""
        asyncio.get_running_loop().set_default_executor(_Inline())
        async with asyncio.TaskGroup() as group:
            arriving = group.create_task(self._arrive(arrivals))
            if self._missing:
                await self._done.wait()
            arriving.cancel()

    async def _arrive(self, arrivals: Sequence[tuple[float, Plan]]) -> None:
        async with asyncio.TaskGroup() as queries:
            for at, plan in sorted(arrivals, key=itemgetter(0)):
                await asyncio.sleep(max(at - self._now(), 0.0))
                run = Run(plan, query_of(plan, len(self.runs), at), at)
                self.runs.append(run)
                queries.create_task(self._run(run, len(self.runs) <= self._last))

    async def _run(self, run: Run, waited_for: bool) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for number, missing in enumerate(run.waits_for):
                    if not missing:
                        group.create_task(self._reach(group, run, number))
        except* _Unanswered:
            pass
        if not run.left:
            run.completed, run.ended_at = True, self._now()
        self._missing -= waited_for
        if not self._missing:
            self._done.set()

    async def _reach(self, group: asyncio.TaskGroup, run: Run, number: int) -> None:
        """Make a call whose turn it is, then those that waited for its answer alone."""
        if delay_s := run.plan.nodes[number].delay_s:
            await asyncio.sleep(delay_s)
        await self._call(run, number)
        run.left -= 1
        for later in run.followers[number]:
            run.waits_for[later] -= 1
            if not run.waits_for[later]:
                group.create_task(self._reach(group, run, later))

    async def _call(self, run: Run, number: int) -> None:
        call = CallRow(run, number, self._now())
        headers = {NUMBER_HEADER: str(len(self._calls))}
        self._calls.append(call)
        messages = [{"role": "user", "content": prompt(call.node, f"{run.query.id}.{number}")}]
        try:
            async with asyncio.timeout_at(run.query.deadline):
                await self._router.acompletion(call.node.model, messages, extra_headers=headers)
            call.outcome = Outcome.COMPLETED
        except asyncio.CancelledError:
            if run.given_up:
                call.outcome = Outcome.CANCELLED
            raise
        except TimeoutError:
            call.outcome = Outcome.EXPIRED
        except Exception:
            call.outcome = Outcome.FAILED
        finally:
            if call.outcome is not None:
                call.ended_at = self._now()
        if call.outcome is not Outcome.COMPLETED:
            if not run.given_up:
                run.given_up, run.ended_at = True, call.ended_at
            raise _Unanswered


# -- prompts -------------------------------------------------------------------------------------------------


def prompt(node: Node, name: str) -> str:
    """Return the text of a user message that makes a prompt of the node's length at a fake backend.

    Prompts begin alike as far as their pieces do; one without pieces is like no other's but for its `name`.
    """
    if node.input_tokens < MARKS_TOKENS:
        raise ValueError(f"a chat prompt has at least {MARKS_TOKENS} tokens, not {node.input_tokens}")
    tokens = node.input_tokens - MARKS_TOKENS
    pieces = node.pieces[1:] if node.pieces else (Piece(name, tokens),) if tokens else ()
    if tokens_of(pieces) != tokens:
        raise ValueError(f"the pieces of {node.step!r} do not make up its {node.input_tokens} tokens")
    return "".join(map(_text, pieces))


@lru_cache(maxsize=1024)
def _text(piece: Piece) -> str:
    """Say a piece's key over and over: text of four bytes a token, without a common beginning."""
    return (f"{piece.key:016x}" * (piece.tokens // CELL + 1))[: CELL * piece.tokens]


# -- what is changed while it plays --------------------------------------------------------------------------


@contextmanager
def _litellm_at(clock: VirtualClock, fleet: FakeFleet, seed: int) -> Iterator[Any]:
    """Give the package, with its time, its wire and its dice ours; all is as before afterwards."""
    litellm = _imported()
    session = httpx.AsyncClient(transport=fleet.transport("httpx"))
    dice = random.getstate()
    with ExitStack() as stack:
        for owner, name, ours in [*_clocks(clock), *_settings(litellm, session)]:
            stack.enter_context(patch.object(owner, name, ours))
        litellm.in_memory_llm_clients_cache.flush_cache()
        random.seed(seed)
        try:
            yield litellm
        finally:
            random.setstate(dice)
            litellm.in_memory_llm_clients_cache.flush_cache()


def _imported() -> Any:
    """Return the package, told not to fetch a price list, with what would keep our clocks if it came later."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    for name in LATE:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    return importlib.import_module("litellm")


def _clocks(clock: VirtualClock) -> Iterator[tuple[Any, str, Any]]:
    """Yield the clocks that the package reads.

    It keeps what it learns for an hour by `time.time`, and times calls by `datetime.now`.
    """

    def now() -> float:
        return EPOCH_S + clock()

    class Datetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Datetime:
            return cls.fromtimestamp(EPOCH_S + clock(), tz or dt.UTC).replace(tzinfo=tz)

    for name in ("time", "monotonic", "perf_counter"):
        yield time, name, now
    module = SimpleNamespace(**{**vars(dt), "datetime": Datetime})
    yield importlib.import_module("litellm.utils"), "datetime", module
    yield importlib.import_module("litellm.litellm_core_utils.litellm_logging"), "datetime", module
    yield importlib.import_module("litellm.litellm_core_utils.logging_utils"), "datetime", Datetime
    yield importlib.import_module("litellm.router_strategy.lowest_latency"), "datetime", Datetime


def _settings(litellm: Any, session: httpx.AsyncClient) -> Iterator[tuple[Any, str, Any]]:
    """Yield what keeps the package off the network, and off work that decides nothing."""
    yield litellm, "disable_aiohttp_transport", True
    yield litellm, "aclient_session", session
    yield litellm, "suppress_debug_info", True
    # Only limits on tokens per minute, of which there are none, look at the count.
    yield litellm, "disable_token_counter", True
    logging = importlib.import_module("litellm.litellm_core_utils.litellm_logging").Logging
    yield logging, "response_cost_calculator", lambda *_, **__: PRICE
    lists = ("callbacks", "input_callback", "success_callback", "failure_callback")
    for name in (*lists, "_async_success_callback", "_async_failure_callback"):
        yield litellm, name, []


class _Inline(ThreadPoolExecutor):
    """Works at once: handed to threads, as the package does, calls made at one time would overtake one another."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done
