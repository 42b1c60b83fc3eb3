"""Everything a fake backend answers besides generation: embeddings, and the pages that say how it is."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from hashlib import shake_256
from typing import TYPE_CHECKING
from urllib.parse import unquote

from agentsched.sim.calls import Call, Refusal
from agentsched.sim.kv import chain_blocks
from agentsched.testing import wire
from agentsched.testing.answer import Answer, json_answer
from agentsched.testing.asked import Body, prompt_cells, read_json, read_messages
from agentsched.testing.live import Bell, Feed
from agentsched.testing.metrics import page
from agentsched.testing.responder import ErrorReply
from agentsched.testing.tokens import CELL, count, from_ids, render_chat, to_ids, to_text

if TYPE_CHECKING:
    from agentsched.testing.backend import FakeBackend
    from agentsched.testing.received import Received

VERSION = "0.33.0+fake"
DIMENSIONS = 64
MOST_DIMENSIONS = 4096
MOST_INPUTS = 2048

Handler = Callable[["FakeBackend", wire.Request], Answer]


def _health(backend: FakeBackend, request: wire.Request) -> Answer:
    return Answer()


def _version(backend: FakeBackend, request: wire.Request) -> Answer:
    return json_answer({"version": VERSION})


def _load(backend: FakeBackend, request: wire.Request) -> Answer:
    return json_answer({"server_load": backend.log.in_flight})


def _models(backend: FakeBackend, request: wire.Request) -> Answer:
    limit = backend.spec.max_model_len
    common = {"object": "model", "created": 0, "owned_by": "vllm", "parent": None, "max_model_len": limit}
    cards = {name: {"id": name, "root": name} | common for name in backend.models}
    name = unquote(request.path.removeprefix("/v1/models").strip("/"))
    if not name:
        return json_answer({"object": "list", "data": list(cards.values())})
    if name not in cards:
        raise ErrorReply(404, f"The model `{name}` does not exist.", param="model")
    return json_answer(cards[name])


def _metrics(backend: FakeBackend, request: wire.Request) -> Answer:
    backend.live.settle()
    text = page(
        backend.live.model,
        model_name=backend.models[0],
        finished=backend.log.reasons,
        old_names=backend.old_names,
    )
    return Answer(headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"}, body=text.encode())


def _lag(backend: FakeBackend, request: wire.Request) -> Answer:
    lag = backend.live.lag
    times = {"late_s": lag.late_s, "worst_s": lag.worst_s, "planned_s": lag.planned_s}
    return json_answer({"calls": lag.calls, **times, "share": lag.share, "time_scale": backend.live.scale})


def _tokenize(backend: FakeBackend, request: wire.Request) -> Answer:
    body = read_json(request.body)
    if "messages" in body:
        cells = render_chat(read_messages(body), generate=bool(body.get("add_generation_prompt", True)))
    else:
        cells = prompt_cells(body.get("prompt"))
    tokens = to_ids(cells)
    limit = backend.spec.max_model_len
    return json_answer({"count": len(tokens), "max_model_len": limit, "tokens": tokens, "token_strs": None})


def _detokenize(backend: FakeBackend, request: wire.Request) -> Answer:
    tokens: object = read_json(request.body).get("tokens")
    ids = wire.as_list(tokens)
    numbers = [token for token in ids if isinstance(token, int)]
    if not isinstance(tokens, list) or len(numbers) != len(ids):
        raise ErrorReply(400, "tokens must be a list of token ids", param="tokens")
    return json_answer({"prompt": to_text(from_ids(numbers))})


ENDPOINTS: dict[tuple[str, str], Handler] = {
    ("GET", "/health"): _health,
    ("GET", "/ping"): _health,
    ("GET", "/version"): _version,
    ("GET", "/load"): _load,
    ("GET", "/metrics"): _metrics,
    ("GET", "/v1/models"): _models,
    ("POST", "/tokenize"): _tokenize,
    ("POST", "/detokenize"): _detokenize,
    ("GET", "/fake/lag"): _lag,
}


def error_answer(error: ErrorReply) -> Answer:
    """Return the HTTP answer for an error."""
    body = wire.error(error.code, error.message, kind=error.kind, param=error.param)
    return json_answer(body, status=error.code, headers=error.headers)


def refusal_answer(refusal: Refusal, *, stream: bool) -> Answer:
    """Say that the engine takes no such call; a stream is told of a full queue inside a 200, as vLLM does."""
    if refusal is not Refusal.QUEUE_FULL:
        return error_answer(
            ErrorReply(400, f"the engine can't hold this call: {refusal}", param="input_tokens")
        )
    body = wire.error(503, "the engine's queue is full")
    if not stream:
        return json_answer(body, status=503)
    return Answer(headers=wire.EVENTS_TYPE, body=wire.event(body) + wire.DONE)


async def embed(backend: FakeBackend, body: Body, row: Received) -> Answer:
    """Answer an embedding request: every input is a call that ends with its prefill."""
    inputs = _inputs(body.get("input"))
    dimensions = body.get("dimensions") or DIMENSIONS
    if not isinstance(dimensions, int) or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ErrorReply(400, f"dimensions must be from 1 to {MOST_DIMENSIONS}", param="dimensions")
    bell, feeds = Bell(), list[Feed]()
    width = backend.spec.block_tokens * CELL
    try:
        for index, cells in enumerate(inputs):
            call = Call(
                call_id=f"{row.number}-{index}",
                prompt_tokens=count(cells),
                output_tokens=0,
                prompt_blocks=chain_blocks(cells, width=width),
            )
            feed = backend.live.submit(call, bell)
            if isinstance(feed, Refusal):
                return refusal_answer(feed, stream=False)
            feeds.append(feed)
        while not all(feed.ended for feed in feeds):
            await bell.heard()
    finally:
        for feed in feeds:
            backend.live.abort(feed)
    row.prompt_tokens = sum(count(cells) for cells in inputs)
    row.cached_tokens = sum(feed.cached for feed in feeds)
    for feed in feeds:
        backend.live.note_end(feed)
    vectors = [unit_vector(cells, dimensions) for cells in inputs]
    packed = body.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _pack(vector) if packed else vector}
        for i, vector in enumerate(vectors)
    ]
    model = str(body.get("model") or backend.models[0])
    counts = {"prompt_tokens": row.prompt_tokens, "total_tokens": row.prompt_tokens, "completion_tokens": 0}
    answer_id = f"embd-{backend.name}-{row.number}"
    return json_answer({"id": answer_id, "object": "list", "model": model, "data": data, "usage": counts})


def _inputs(value: object) -> list[bytes]:
    items = wire.as_list(value)
    if isinstance(value, str) or (items and isinstance(items[0], int)):
        return [prompt_cells(value)]
    if 1 <= len(items) <= MOST_INPUTS:
        return [prompt_cells(item) for item in items]
    raise ErrorReply(400, "input must be text, token ids, or a list of such", param="input")


def unit_vector(cells: bytes, dimensions: int) -> list[float]:
    """Return a vector of length 1 whose direction depends on the tokens alone."""
    raw = shake_256(cells).digest(4 * dimensions)
    values = [value / 2.0**31 for (value,) in struct.iter_unpack(">i", raw)]
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return [value / norm for value in values]


def _pack(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
