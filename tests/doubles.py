"""Doubles that several floors of tests share: a scripted upstream, a sink that remembers, an idle check."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import httpx
import httpx2
from openai import AsyncOpenAI

from agentsched import Backend, Scheduler
from agentsched.model import Signals, Usage
from agentsched.testing import FakeBackend, FakeFleet, Received, VirtualClock
from agentsched.transport.head import Head
from agentsched.transport.incoming import Incoming, read

STACKS: Mapping[str, ModuleType] = {"httpx": httpx, "httpx2": httpx2}

MODEL = "fake-model"

ASK: Mapping[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi there"}]}

Piece = bytes | float | Exception | Callable[[], Awaitable[None]]
"""A step of a scripted body: bytes are sent, a number is slept, an exception raised, a function awaited."""

JSON_TYPE = (("content-type", "application/json"),)
EVENTS_TYPE = (("content-type", "text/event-stream"),)


# -- answers ------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Script:
    """What a scripted upstream answers."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    pieces: Sequence[Piece] = ()
    before: Sequence[Piece] = ()
    """Steps before there is a head: sleeps and exceptions."""


def events(*payloads: Any, done: bool = True, before: Sequence[Piece] = ()) -> Script:
    """An event stream; payloads are objects, raw bytes, seconds or exceptions."""
    pieces = [event(p) if isinstance(p, dict) else p for p in payloads]
    if done:
        pieces.append(b"data: [DONE]\n\n")
    return Script(headers=EVENTS_TYPE, pieces=pieces, before=before)


def event(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def whole(payload: Any, *, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Script:
    """An answer in one piece."""
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return Script(status=status, headers=[*JSON_TYPE, *headers], pieces=[content])


def delta(
    text: str | None = None, *, role: str | None = None, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """A chunk of a chat stream."""
    content = ({} if role is None else {"role": role}) | ({} if text is None else {"content": text})
    choice = {"index": 0, "delta": content, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": MODEL} | {
        "choices": [choice],
        **more,
    }


def counts(given: int = 3, written: int = 2) -> dict[str, Any]:
    """The usage chunk of a stream."""
    usage = {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}
    return delta() | {"choices": [], "usage": usage}


def said(*texts: str) -> Script:
    """A whole, good stream that says so."""
    return events(delta(role="assistant"), *map(delta, texts), delta(finish="stop"), counts())


# -- a scripted upstream ------------------------------------------------------------------------------

Answer = Script | Callable[[Any], Script]


@dataclass(slots=True)
class Seen:
    """What a scripted upstream remembers."""

    requests: list[Any] = field(default_factory=list)
    open: int = 0
    peak: int = 0
    given_up: int = 0
    """Requests whose caller left before there was a head."""
    sent: int = 0
    """Pieces sent."""

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]


def upstream(stack: ModuleType, *answers: Answer) -> Any:
    """An async transport of that stack whose n-th request gets the n-th answer, the last one for ever.

    An answer is a script or a function from the request to one. `transport.seen` remembers what happened.
    """
    seen = Seen()

    class Stream(stack.AsyncByteStream):
        def __init__(self, script: Script) -> None:
            self._script = script
            self._open = True

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self._script.pieces:
                if isinstance(piece, bytes):
                    seen.sent += 1
                    yield piece
                else:
                    await _do(piece)

        async def aclose(self) -> None:
            seen.open -= self._open
            self._open = False

    class Scripted(stack.AsyncBaseTransport):
        async def handle_async_request(self, request: Any) -> Any:
            await request.aread()
            answer = answers[min(len(seen.requests), len(answers) - 1)]
            seen.requests.append(request)
            script = answer if isinstance(answer, Script) else answer(request)
            seen.open += 1
            seen.peak = max(seen.peak, seen.open)
            try:
                for piece in script.before:
                    await _do(piece)
            except BaseException as error:
                seen.open -= 1
                seen.given_up += isinstance(error, asyncio.CancelledError)
                raise
            return stack.Response(script.status, headers=list(script.headers), stream=Stream(script))

    transport = Scripted()
    transport.seen = seen
    return transport


async def _do(piece: Piece) -> None:
    if isinstance(piece, Exception):
        raise piece
    if isinstance(piece, (int, float)):
        await asyncio.sleep(piece)
    elif not isinstance(piece, bytes):
        await piece()


# -- a sink -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sink:
    """Takes what an exchange receives and remembers it in order."""

    head: Head | None = None
    chunks: list[bytes] = field(default_factory=list)
    progress: list[tuple[int, float]] = field(default_factory=list)
    usage: Usage | None = None
    log: list[str] = field(default_factory=list)
    full: bool = True
    rooms: int = 0
    endings: int = 0
    refusals: list[str] = field(default_factory=list)
    signals: list[Signals] = field(default_factory=list)

    @property
    def delivered(self) -> bool:
        return self.head is not None

    def begin(self, head: Head, answer: Mapping[str, Any] | None = None) -> None:
        assert self.head is None, "an answer begins once"
        self.head = head
        self.log.append("begin")

    def tells(self, event: Mapping[str, Any]) -> None:
        pass

    def put(self, chunk: bytes) -> None:
        assert self.head is not None, "bytes before the head"
        assert self.usage is None, "bytes after the end"
        self.chunks.append(chunk)
        self.log.append("put")

    async def room(self) -> None:
        self.rooms += 1

    def ending(self) -> None:
        self.endings += 1

    def progressed(self, tokens: int, connect_s: float) -> None:
        self.progress.append((tokens, connect_s))

    def signalled(self, signals: Signals) -> None:
        self.signals.append(signals)
        self.log.append("signalled")

    def priority_refused(self, why: str) -> None:
        self.refusals.append(why)

    def finished(self, usage: Usage, *, kept_tokens: int = 0) -> None:
        assert self.usage is None, "an answer ends once"
        self.usage = usage
        self.log.append("finished")

    @property
    def content(self) -> bytes:
        return b"".join(self.chunks)


def incoming(
    body: Any = ASK,
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
    timeout: Mapping[str, float | None] | None = None,
    max_body_bytes: int = 2**20,
    **fields: Any,
) -> Incoming:
    """A call as the SDK sends it; `fields` are added to the body."""
    content = body if isinstance(body, bytes) else json.dumps({**body, **fields}).encode()
    return read(
        method=method,
        raw_path=path.encode(),
        headers=headers,
        content=content,
        timeout=timeout or {},
        max_body_bytes=max_body_bytes,
    )


# -- a scheduler over a fake fleet --------------------------------------------------------------------


class Rig:
    """A scheduler over quick fake backends `fake-1`, `fake-2` ..., in virtual time.

    Args:
        limit: `max_concurrency` of every backend.
        stack: the HTTP stack towards the backends; that towards the app is the scheduler's business.
        listed: whether the backends have to be asked what they serve.
    """

    def __init__(
        self,
        count: int = 2,
        *,
        limit: int | None = None,
        stack: ModuleType = httpx2,
        fleet: FakeFleet | None = None,
        listed: bool = False,
        upstream: Any = None,
        limits: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.clock = VirtualClock()
        self.fleet = fleet if fleet is not None else FakeFleet.fast(count, seats=1_000)
        self.scheduler = Scheduler(
            [
                Backend(
                    fake.base_url,
                    name=fake.name,
                    models=None if listed else fake.models,
                    max_concurrency=limit,
                    **(limits or {}),
                )
                for fake in self.fleet
            ],
            upstream=upstream if upstream is not None else self.fleet.transport(stack.__name__),  # type: ignore[call-overload]
            clock=self.clock,
            **options,
        )
        self.client: AsyncOpenAI = self.scheduler.openai()
        self.client._platform = (
            "Linux"  # it would be looked up in a thread, and calls could overtake each other
        )

    def __getitem__(self, name: str) -> FakeBackend:
        return self.fleet[name]

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run a test's coroutine in virtual time; in the end nothing may be left of any call."""

        async def quietly() -> None:
            await main()
            await assert_quiet(self.scheduler)
            assert all(backend.log.in_flight == 0 for backend in self.fleet), "an upstream call is open"

        self.clock.run(quietly())

    async def say(self, tokens: int = 3, **fields: Any) -> Any:
        """Make one chat call whose answer has so many tokens; a token takes 5 ms."""
        headers = {"x-fake-output-tokens": str(tokens), **fields.pop("extra_headers", {})}
        asked = {**ASK, **fields}
        return await self.client.chat.completions.create(**asked, extra_headers=headers)

    def begun(self, tokens: int = 3, **fields: Any) -> asyncio.Task[Any]:
        """Begin such a call in a task of its own."""
        return asyncio.ensure_future(self.say(tokens, **fields))

    @property
    def received(self) -> list[Received]:
        """The calls of all backends, in order of arrival."""
        return [row for _, row in self.fleet.calls]

    @property
    def in_flight(self) -> int:
        return sum(backend.log.in_flight for backend in self.fleet)


async def outcome(call: Awaitable[Any]) -> Any:
    """What a call came to: its result, or the error it raised."""
    try:
        return await call
    except Exception as error:
        return error


# -- the end of a test --------------------------------------------------------------------------------


async def settled(turns: int = 20) -> None:
    """Let everything that is due happen: callbacks, cancelled tasks, closed generators."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def begun() -> None:
    """Let the calls that were begun get through the SDK, which looks up the platform in a thread."""
    await asyncio.sleep(0.001)


async def collected() -> None:
    """Let what nobody refers to be collected, and what is due then happen; SDKs keep streams in cycles."""
    await settled()
    gc.collect()
    await settled()


async def after_turns(task: asyncio.Task[Any], turns: int) -> bool:
    """Cancel a task after the loop has turned so often; return whether that was before its end.

    Unlike a task that sleeps for no time again and again, this lets virtual time pass meanwhile.
    """
    loop: Any = asyncio.get_running_loop()
    turn, done = loop._run_once, 0

    def counted() -> None:
        nonlocal done
        if done == turns:
            task.cancel()
        done += 1
        turn()

    loop._run_once = counted
    try:
        await asyncio.wait([task])
    finally:
        del loop._run_once
    return task.cancelled()


def assert_idle(scheduler: Scheduler) -> None:
    """Nothing waits, runs, or is remembered of calls that have ended."""
    driver, engine = scheduler._driver, scheduler._driver.engine
    engine.check()
    assert not engine.requests
    assert not engine.attempts
    assert len(engine.queue) == 0
    assert all(not row.running and row.unread_tokens == 0 for row in engine.backends.values())
    assert not driver._calls
    assert not driver._attempts
    assert not driver._dropped
    assert not any(row.tasks for row in driver._loops.values())


async def assert_quiet(scheduler: Scheduler) -> None:
    """`assert_idle`, and no task is left but the one that asks."""
    await asyncio.sleep(0.2)  # connections may take 0.1 s to end
    await settled()
    assert_idle(scheduler)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
