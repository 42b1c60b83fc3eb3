"""A fake OpenAI-compatible server without a socket: HTTP requests in, answers out, an engine model behind.

The in-process transport and the loopback server are two ways to carry its requests and answers.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from agentsched.sim.spec import BackendSpec
from agentsched.testing import wire
from agentsched.testing.answer import Answer, json_answer
from agentsched.testing.asked import Asked, GoesOn, read_generation, read_json
from agentsched.testing.endpoints import ENDPOINTS, embed, error_answer, refusal_answer
from agentsched.testing.faults import (
    Fault,
    FaultPlan,
    Frozen,
    Hang,
    PageFault,
    Refuse,
    Refused,
    Rule,
    SlowStart,
    Status,
)
from agentsched.testing.generation import Generation
from agentsched.testing.live import LiveModel
from agentsched.testing.metrics import load_header
from agentsched.testing.received import Log, Received
from agentsched.testing.responder import ErrorReply, FakeRequest, Responder, default_responder, reply_to
from agentsched.testing.responses import ResponseShape
from agentsched.testing.wire import Request

CALLS: dict[str, Literal["chat", "completion", "response", "embedding"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/responses": "response",
    "/v1/embeddings": "embedding",
}

_log = logging.getLogger(__name__)


class FakeBackend:
    """Serve `models` at `base_url` with the speed and limits of `spec`.

    With `api_key` set, calls need it. `event_tokens` is how many tokens one event of a stream carries, the
    first and the last aside. `log` remembers the calls, `polls` counts requests to the other paths. With
    `old_names`, the metrics page has the names of an older vLLM. `goes_on` says what becomes of a chat's
    last message if it is the assistant's own: see `GoesOn`. With a `fingerprint`, such as
    ``"vllm-0.32.0-fake"``, answers tell it as vLLM's do, and have nulls for the ids of tokens where those
    are not asked for. With `refuse_priority`, calls with a priority other than 0 get a 400, as from an
    older vLLM that was not told to heed them. With `load_header`, answers that come whole tell the engine's
    load in a header if they are asked to; a text is told as it is, whatever the load. With `timings`,
    answers have the `timings` of an older llama.cpp, whose usage does not say what was cached, if they come
    whole or with usage.
    """

    def __init__(
        self,
        name: str = "fake",
        *,
        base_url: str | None = None,
        models: Sequence[str] = ("fake-model",),
        spec: BackendSpec | None = None,
        api_key: str | None = None,
        responder: Responder = default_responder,
        event_tokens: int = 1,
        log_limit: int = 10_000,
        old_names: bool = False,
        goes_on: GoesOn = "asked",
        fingerprint: str | None = None,
        refuse_priority: bool = False,
        load_header: bool | str = False,
        timings: bool = False,
    ) -> None:
        self.name = name
        self.base_url = base_url or f"http://{name}.test/v1"
        self.models = tuple(models)
        self.spec = spec or BackendSpec()
        self.api_key = api_key
        self.responder = responder
        self.event_tokens = event_tokens
        self.live = LiveModel(self.spec)
        self.faults = FaultPlan()
        self.page_faults: dict[str, PageFault] = {}
        self.old_names = old_names
        self.goes_on: GoesOn = goes_on
        self.fingerprint = fingerprint
        self.refuse_priority = refuse_priority
        self.load_header = load_header
        self.timings = timings
        self.log = Log(limit=log_limit)
        self.polls: Counter[str] = Counter()

    def __repr__(self) -> str:
        gauges = self.live.model.gauges()
        load = f"{gauges.running} running, {gauges.waiting} waiting"
        return f"<FakeBackend {self.name} at {self.base_url}: {load}>"

    @property
    def calls(self) -> list[Received]:
        """Return the calls it remembers, oldest first."""
        return list(self.log.calls)

    @property
    def prefix(self) -> str:
        """Return the path under which its endpoints lie: the base URL's, less the last `/v1`."""
        return urlsplit(self.base_url).path.rstrip("/").removesuffix("/v1")

    def fail(
        self,
        fault: Fault,
        *,
        nth: int | Sequence[int] | None = None,
        share: float = 1.0,
        seed: int = 0,
        between: tuple[float, float] | None = None,
        times: int | None = None,
    ) -> Rule:
        """Let a fault hit calls from now on: all, or those that meet every condition given (see `Rule`)."""
        numbers = (nth,) if isinstance(nth, int) else None if nth is None else tuple(nth)
        rule = Rule(fault=fault, nth=numbers, share=share, seed=seed, between=between, times=times)
        self.faults.rules.append(rule)
        return rule

    def fail_page(self, path: str, fault: PageFault) -> None:
        """Let a fault hit every request to a page, such as `/metrics`, from now on."""
        self.page_faults[path] = fault

    def heal(self) -> None:
        """Forget all faults; calls that hang or stall already go on doing so."""
        self.faults.rules.clear()
        self.page_faults.clear()

    async def answer(self, request: Request) -> Answer:
        """Answer a request, in the time that takes; raises `Refused` where there is no connection."""
        if self.faults.refusing(self.live.now()):
            self.log.refused += 1
            raise Refused(f"{self.name} refuses connections")
        try:
            if request.method == "POST" and request.path in CALLS:
                return await self._call(request)
            return await self._poll(request)
        except ErrorReply as error:
            return error_answer(error)
        except Exception as error:
            if isinstance(error, ConnectionError):
                raise
            _log.exception("the fake backend %s failed", self.name)
            return error_answer(ErrorReply(500, f"{type(error).__name__} in the fake backend"))

    async def _poll(self, request: Request) -> Answer:
        known = request.path in CALLS or any(path == request.path for _, path in ENDPOINTS)
        self.polls[request.path if known else "elsewhere"] += 1
        path = "/v1/models" if request.path.startswith("/v1/models/") else request.path
        match self.page_faults.get(path):
            case Frozen(page=page):
                return Answer(headers={"content-type": "text/plain; charset=utf-8"}, body=page.encode())
            case Hang():
                await asyncio.Event().wait()
            case SlowStart(delay_s=delay_s):
                await self.live.sleep(delay_s)
            case Status(code=code, message=message):
                raise ErrorReply(code, message)
            case None:
                pass
        handler = ENDPOINTS.get((request.method, path))
        if handler is not None:
            self._check_key(request)
            return handler(self, request)
        code, reason = (405, "Method Not Allowed") if known else (404, "Not Found")
        return json_answer({"detail": reason}, status=code)

    async def _call(self, request: Request) -> Answer:
        """Answer a call and log it; a row is closed exactly once, by its end or by whoever ends it early."""
        row = self.log.open(
            at=self.live.now(), path=request.path, headers=request.headers, body=_loggable(request.body)
        )
        row.fault = self.faults.pick(number=row.number, now=self.live.now())
        blame = "error" if row.fault is None else "fault"
        outcome, answer = "disconnected", None
        try:
            answer = await self._respond(request, row)
            outcome = "finished" if row.fault is None else blame
            row.status = answer.status
            return answer
        except ErrorReply as error:
            outcome, row.status = blame, error.code
            raise
        except Exception:
            outcome = blame
            raise
        finally:
            if answer is None or isinstance(answer.body, bytes):
                self._close(row, outcome)

    async def _respond(self, request: Request, row: Received) -> Answer:
        match row.fault:
            case Refuse():
                raise Refused(f"{self.name} refuses connections")
            case Hang():
                await asyncio.Event().wait()
            case Status(code=code, retry_after_s=wait_s, message=message):
                raise ErrorReply(
                    code, message, headers=None if wait_s is None else {"retry-after": f"{wait_s:g}"}
                )
            case _:
                pass
        self._check_key(request)
        body = read_json(request.body)
        self._check_model(str(body.get("model") or ""))
        kind = CALLS[request.path]
        if kind == "embedding":
            return await embed(self, body, row)
        asked = read_generation(body, kind, max_model_len=self.spec.max_model_len, goes_on=self.goes_on)
        if asked.priority and self.refuse_priority:
            raise ErrorReply(400, f"Got priority {asked.priority} but Priority scheduling is not enabled.")
        return await self._generate(request, asked, row)

    async def _generate(self, request: Request, asked: Asked, row: Received) -> Answer:
        generation = Generation(
            live=self.live, asked=asked, row=row, shape=self._shape(request, asked, row), timed=self.timings
        )
        replies = [
            reply_to(self._question(request, asked, choice), self.responder)
            for choice in range(asked.choices)
        ]
        width, step = self.spec.block_tokens, self.event_tokens
        refusal = generation.start(replies, block_tokens=width, event_tokens=step)
        if refusal is not None:
            self._close(row, "error")
            return refusal_answer(refusal, stream=asked.stream)

        def ended(reasons: list[str]) -> None:
            for reason in reasons:
                self.log.reasons[reason] = self.log.reasons.get(reason, 0) + 1
            if row.fault is None:
                self._close(row, "finished")

        def close() -> None:
            generation.close()
            self._close(row, "disconnected" if row.fault is None else "fault")

        generation.ended = ended
        try:
            answer = await generation.answer(row.fault, close)
        except BaseException:
            generation.close()
            raise
        form = request.headers.get("endpoint-load-metrics-format")
        if self.load_header and form and not asked.stream:
            self.live.settle()
            told = (
                self.load_header if isinstance(self.load_header, str) else load_header(self.live.model, form)
            )
            answer.headers = {**answer.headers, "endpoint-load-metrics": told}
        return answer

    def _shape(self, request: Request, asked: Asked, row: Received) -> wire.Shape | ResponseShape:
        answer_id = request.headers.get("x-request-id") or f"{self.name}-{row.number}"
        created, model = int(self.live.now()), asked.model or self.models[0]
        if asked.kind == "response":
            return ResponseShape(answer_id=answer_id, created=created, model=model, asked=asked.body)
        answer_id = ("chatcmpl-" if asked.kind == "chat" else "cmpl-") + answer_id
        return wire.Shape(
            kind=asked.kind, answer_id=answer_id, created=created, model=model, fingerprint=self.fingerprint
        )

    def _question(self, request: Request, asked: Asked, choice: int) -> FakeRequest:
        return FakeRequest(
            backend=self.name,
            kind=asked.kind,
            model=asked.model or self.models[0],
            body=asked.body,
            headers=request.headers,
            cells=asked.cells,
            choice=choice,
        )

    def _close(self, row: Received, outcome: str) -> None:
        try:
            now = self.live.now()
        except RuntimeError:  # its loop has ended
            now = self.live.model.now
        self.log.close(row, outcome, at=now)

    def _check_key(self, request: Request) -> None:
        if self.api_key is None or not request.path.startswith("/v1/"):
            return
        if request.headers.get("authorization") != f"Bearer {self.api_key}":
            raise ErrorReply(401, "wrong or missing API key")

    def _check_model(self, model: str) -> None:
        if model and model not in self.models:
            raise ErrorReply(404, f"The model `{model}` does not exist.", param="model")


def _loggable(body: bytes) -> Any:
    """Decode a request body for the log, or leave it as it is."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
