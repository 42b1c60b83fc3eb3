"""The face of the library: backends in, ordinary clients out."""

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from agentsched.engine import Engine, Journal
from agentsched.engine.engine import MAX_QUEUED
from agentsched.errors import UsageError
from agentsched.model import Backend, Limits, Request
from agentsched.model.limits import checked_limits
from agentsched.model.options import refuse
from agentsched.policy import Policy
from agentsched.predict import Profile
from agentsched.runtime.driver import Driver
from agentsched.runtime.explain import Explanation, explain
from agentsched.runtime.fleet import Fleet
from agentsched.runtime.ids import RequestIds
from agentsched.runtime.inbound import Inbound, async_transport_type, sync_transport_type
from agentsched.runtime.iothread import IoThread
from agentsched.runtime.journalfile import JournalFile
from agentsched.runtime.loops import running_loop
from agentsched.runtime.options import label, whole
from agentsched.runtime.profilefile import checked_profile
from agentsched.runtime.query import QueryBlock
from agentsched.runtime.scope import current_scope, step_name
from agentsched.runtime.snapshot import Snapshot, snapshot
from agentsched.runtime.wrap import wrap
from agentsched.transport.incoming import Incoming
from agentsched.transport.stack import Stack, checked_stack
from agentsched.transport.upstream import Upstream

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

F = TypeVar("F", bound=Callable[..., Any])

BASE_URL = "http://agentsched.invalid/v1"
"""What clients believe to talk to; nothing is ever sent there (RFC 2606)."""

API_KEY = "agentsched"
"""What clients are given as a key; it stays in the process."""

READ_S, CONNECT_S = 600.0, 5.0
"""The openai SDK's own timeouts: between two reads and for connecting; time in the queue does not count."""

MAX_BODY_BYTES = 64 * 2**20
"""Room for a prompt with images; larger bodies are mistakes."""


class Scheduler:
    """Schedules the LLM calls of an app over a fleet of OpenAI-compatible servers.

    One object serves any number of event loops and threads, from construction on until `aclose`.

    Args:
        backends: the fleet; at least one, each address once.
        policy: the scheduling method; `Policy.default()` if None.
        upstream: an async client or transport of httpx or httpx2 through which backends are reached, for own TLS,
            headers or authentication, and for tests; its timeouts do not count, since the caller's do. One that
            keeps connections serves a single event loop: with several (sync clients have their own), give a
            function that makes one, such as ``lambda: httpx2.AsyncClient(...)``, called and closed per loop. None
            opens a pool per event loop, which heeds the environment's proxies.
        clock: monotonic seconds; for virtual time. `time.monotonic` if None.
        max_queued: most calls that wait; one more raises `QueueFull`.
        max_body_bytes: largest request body taken.
        limits: how long attempts may take; each backend may have its own. None sets no bounds but those of the
            caller's client.
        journal: file to record all events and decisions to, for `agentsched replay` and `agentsched simulate`; it
            holds no bodies, keys or URLs; of prompts it holds salted hashes.
        profile: what `agentsched profile` has measured, the name of its file: backends of these addresses begin with
            those speeds, steps with those lengths. What calls show outweighs it within some dozens of them; what is
            not in it begins with nothing, also where it joins later.

    Raises:
        UsageError: for a fleet, policy, transport, profile or bound that cannot work, or an unknown option.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        *,
        policy: Policy | None = None,
        upstream: Any | None = None,
        clock: Callable[[], float] | None = None,
        max_queued: int = MAX_QUEUED,
        max_body_bytes: int = MAX_BODY_BYTES,
        limits: Limits | None = None,
        journal: str | Path | None = None,
        profile: str | Path | Profile | None = None,
        **unknown: Never,
    ) -> None:
        refuse(unknown, Scheduler, "Scheduler")
        fleet = _checked_fleet(backends)
        if policy is not None and not isinstance(policy, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"policy must be a Policy such as Policy.default(), not {policy!r}")
        whole(max_queued, "max_queued", least=0)
        whole(max_body_bytes, "max_body_bytes", least=1)
        if clock is not None and not callable(clock):
            raise UsageError(
                f"clock must be a function that returns seconds, such as a VirtualClock, not {clock!r}"
            )
        checked_limits(limits, "Scheduler")
        reached = None if upstream is None else Upstream(upstream)
        stack = checked_stack(None) if reached is None else reached.stack
        policy = policy if policy is not None else Policy.default()
        begun = checked_profile(profile)
        engine = Engine(fleet, policy=policy, max_queued=max_queued, profile=begun)
        self._journal = None if journal is None else JournalFile(journal)
        self._driver = Driver(
            engine,
            clock=clock if clock is not None else time.monotonic,
            stack=stack,
            upstream=reached,
            limits=limits,
            journal=self._journal
            and Journal(self._journal.write, fleet, policy=policy, max_queued=max_queued, profile=begun),
        )
        self._io = IoThread()
        self._inbound = Inbound(self._driver, self._request, max_body_bytes, self._io)
        weakref.finalize(self._inbound, self._io.forsake).atexit = False  # clients may outlive us, not it
        self._ids = RequestIds()

    def __repr__(self) -> str:
        engine = self._driver.engine
        fleet = ", ".join(
            f"{row.name} {len(row.running)}/{row.spec.max_concurrency or '∞'}"
            for row in engine.backends.values()
        )
        state = "closed, " if engine.closed else ""
        return f"<Scheduler {state}{len(engine.queue)} queued, {len(engine.attempts)} running: {fleet}>"

    @property
    def fleet(self) -> Fleet:
        """The backends; they may be added, drained, replaced and removed while calls run."""
        return self._driver.fleet

    # -- clients --------------------------------------------------------------------------------------

    def openai(self) -> "AsyncOpenAI":
        """Return a plain `openai.AsyncOpenAI` whose calls are scheduled; `with_options` sets its timeouts.

        It does not retry by itself (`max_retries=0`): the scheduler fails over.
        """
        from openai import AsyncOpenAI

        http = self.http_async_client()
        return AsyncOpenAI(api_key=API_KEY, base_url=BASE_URL, max_retries=0, http_client=http)

    def openai_sync(self) -> "OpenAI":
        """Return a plain `openai.OpenAI` whose calls are scheduled, for sync code in any thread.

        Its calls share the limits and the order of the async ones. A sync call inside a running event loop blocks
        that loop; where it would have to wait for the loop's own calls it raises a `UsageError`.
        """
        from openai import OpenAI

        return OpenAI(api_key=API_KEY, base_url=BASE_URL, max_retries=0, http_client=self.http_client())

    def http_async_client(self, stack: Stack | None = None) -> Any:
        """Return an `AsyncClient` whose calls are scheduled.

        Closing it leaves the scheduler and its other clients alone.

        Args:
            stack: the module `httpx` or `httpx2`; the one that the installed openai uses if None.

        Raises:
            UsageError: if it is neither.
        """
        stack = checked_stack(stack)
        return stack.AsyncClient(transport=self.async_transport(stack), **_client_options(stack))

    def http_client(self, stack: Stack | None = None) -> Any:
        """Return a `Client` whose calls are scheduled, for sync code. See `http_async_client`."""
        stack = checked_stack(stack)
        return stack.Client(transport=self.transport(stack), **_client_options(stack))

    def async_transport(self, stack: Stack | None = None) -> Any:
        """Return what makes an `AsyncClient` of one's own schedule its calls: ``AsyncClient(transport=...)``.

        Everything else of that client holds: headers, hooks, timeouts. Its base URL does not matter.
        """
        return async_transport_type(checked_stack(stack))(self._inbound)

    def transport(self, stack: Stack | None = None) -> Any:
        """Return the same for a sync `Client`."""
        return sync_transport_type(checked_stack(stack))(self._inbound)

    def client_kwargs(self) -> dict[str, Any]:
        """Return what LangChain's `ChatOpenAI` and its relatives need for all their calls to be scheduled."""
        return {
            "api_key": API_KEY,
            "base_url": BASE_URL,
            "http_async_client": self.http_async_client(),
            "http_client": self.http_client(),
            "max_retries": 0,
        }

    # -- queries --------------------------------------------------------------------------------------

    def query(
        self,
        workflow: str,
        *,
        slo_s: float | None = None,
        timeout_s: float | None = None,
        deadline: datetime | None = None,
        tenant: str | None = None,
        priority: int = 0,
        max_calls: int | None = None,
        **unknown: Never,
    ) -> QueryBlock:
        """Open a query: one run of a workflow. All calls made inside the block belong to it.

        Args:
            workflow: the template's name, the same for every run.
            slo_s: seconds within which it wishes to be done; never raises.
            timeout_s: seconds after which its calls end with `Expired`.
            deadline: the same as a point in time, an aware datetime; the earlier of both holds.
            tenant: for whom it runs.
            priority: higher is more urgent; goes before every other order.
            max_calls: most calls it may make; one more raises `CallLimitReached` and sends nothing.

        Raises:
            UsageError: for a duration that is not positive and finite, a deadline without time zone or in the
                past, a tenant or limit that contradicts the query around, or an unknown option.
        """
        refuse(unknown, self.query, "query")
        return QueryBlock(
            self._driver,
            self._ids.new,
            workflow,
            slo_s=slo_s,
            timeout_s=timeout_s,
            deadline=deadline,
            tenant=tenant,
            priority=priority,
            max_calls=max_calls,
        )

    @overload
    def workflow(self, target: F, /) -> F: ...
    @overload
    def workflow(
        self,
        target: str | None = None,
        /,
        *,
        slo_s: float | None = None,
        timeout_s: float | None = None,
        tenant: str | None = None,
        priority: int = 0,
        max_calls: int | None = None,
    ) -> Callable[[F], F]: ...
    def workflow(
        self,
        target: Any = None,
        /,
        *,
        slo_s: float | None = None,
        timeout_s: float | None = None,
        tenant: str | None = None,
        priority: int = 0,
        max_calls: int | None = None,
        **unknown: Never,
    ) -> Any:
        """Make each call of a function one query, named after it or as given, with the options of `query`."""
        refuse(unknown, self.workflow, "workflow")

        def decorate(fn: Any) -> Any:
            if not callable(fn):
                raise UsageError(f"workflow decorates functions, not {type(fn).__name__}")
            named = target if isinstance(target, str) else getattr(fn, "__name__", type(fn).__name__)

            def new_query() -> QueryBlock:
                return self.query(
                    named,
                    slo_s=slo_s,
                    timeout_s=timeout_s,
                    tenant=tenant,
                    priority=priority,
                    max_calls=max_calls,
                )

            new_query()  # a wrong option is an error where it is written, not at the first call
            return wrap(fn, new_query)

        if callable(target):
            return decorate(target)
        if target is not None:
            label(target, "workflow: name")
        return decorate

    # -- questions ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return what is queued, what runs where, and why."""
        with self._driver.lock:
            return snapshot(
                self._driver.engine, self._driver.clock(), self._driver.addressing.priorities.refusing
            )

    def explain(self, request_id: str) -> Explanation:
        """Return one call's story: expectations, prices of the backends, waits, attempts.

        Args:
            request_id: the answer's `x-request-id` header (the SDK's `_request_id`).

        Raises:
            UsageError: if the id is unknown or forgotten; the last 1,000 calls are kept.
        """
        with self._driver.lock:
            story = self._driver.engine.story(request_id)
            now = self._driver.clock()
        if not story:
            raise UsageError(f"no call has the id {request_id!r}, or it ended too long ago")
        return explain(request_id, story, now)

    # -- the end --------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End every call with `SchedulerClosed` and close all connections. Closing twice is fine."""
        await self._driver.aclose()
        self._io.stop()
        if self._journal is not None:
            self._journal.close()

    def close(self) -> None:
        """Do what `aclose` does, from sync code.

        Raises:
            UsageError: inside a running event loop, which would wait for itself.
        """
        if running_loop() is not None:
            raise UsageError(
                "close() inside a running event loop would block it: use `await scheduler.aclose()`"
            )
        asyncio.run(self.aclose())

    def __enter__(self) -> "Scheduler":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> "Scheduler":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _request(self, incoming: Incoming) -> Request:
        scope = current_scope.get()
        inside = scope is not None and scope.owner is self._driver
        query = scope.query if scope is not None and inside else None
        prompt = incoming.prompt
        return Request(
            id=self._ids.new(),
            model=incoming.model,
            input_tokens=prompt.tokens,
            max_tokens=incoming.max_tokens,
            query=query.id if query is not None else None,
            workflow=query.workflow if query is not None else None,
            step=step_name(),
            tenant=query.tenant if query is not None else None,
            priority=scope.priority if scope is not None and inside else 0,
            deadline=scope.deadline if scope is not None and inside else None,
            slo_at=scope.slo_at if scope is not None and inside else None,
            sdk_retry=incoming.sdk_retry,
            marks=prompt.marks,
        )


def _client_options(stack: Stack) -> dict[str, Any]:
    return {"base_url": BASE_URL, "timeout": stack.Timeout(READ_S, connect=CONNECT_S)}


def _checked_fleet(backends: object) -> list[Backend]:
    if isinstance(backends, (str, Backend)) or not isinstance(backends, Iterable):
        raise UsageError(f"backends must be a list of Backend, not {type(backends).__name__}")
    fleet: list[Any] = list(backends)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for backend in fleet:
        if not isinstance(backend, Backend):
            raise UsageError(f"backends must hold Backend(...) values; found {type(backend).__name__}")
    return fleet
