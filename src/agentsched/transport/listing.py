"""What a server says it serves: `GET /models`."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from agentsched.model import Backend, FailureKind
from agentsched.model.value import record
from agentsched.transport.body import read_body
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.refusal import Broken, raised
from agentsched.transport.stack import Stack

CAP_S = 2.0
"""A server that is asked for its models holds up its first calls; no longer than this."""

MAX_BYTES = 4 * 2**20
MAX_MODELS = 10_000


@record
class Card:
    """A model that a server lists.

    Attributes:
        max_tokens: of a prompt and its answer, as vLLM says; None if it does not.
    """

    name: str
    max_tokens: int | None


async def list_models(stack: Stack, transport: Any, backend: Backend) -> tuple[str, ...]:
    """Return the names that the server lists, at least one.

    Raises:
        Broken: if it does not answer with a list in time.
    """
    return tuple([card.name for card in await list_cards(stack, transport, backend)])


async def list_cards(stack: Stack, transport: Any, backend: Backend) -> tuple[Card, ...]:
    """Return what the server lists, at least one.

    Raises:
        Broken: if it does not answer with a list in time.
    """
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    if backend.api_key is not None:
        headers["authorization"] = f"Bearer {backend.api_key}"
    timeout = {"connect": CAP_S, "read": CAP_S, "write": CAP_S, "pool": None}
    request = stack.Request(
        "GET", f"{backend.base_url}/models", headers=headers, extensions={"timeout": timeout}
    )
    try:
        async with asyncio.timeout(CAP_S):
            response = await transport.handle_async_request(request)
            try:
                content = await read_body(response.stream, MAX_BYTES)
            finally:
                await response.aclose()
    except Exception as error:
        raise raised(stack, error) from None
    if response.status_code != 200:
        kind = FailureKind.DENIED if response.status_code in (401, 403) else FailureKind.ERROR
        raise Broken(kind, f"GET {request.url} answers HTTP {response.status_code}")
    return _cards(content or b"")


def _cards(content: bytes) -> tuple[Card, ...]:
    try:
        found = [(model["id"], model.get("max_model_len")) for model in loads(content)["data"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Broken(FailureKind.PROTOCOL, "what it answers is no list of models") from None
    cards = tuple(
        Card(name, most if type(most) is int and most > 0 else None)
        for name, most in found
        if isinstance(name, str) and name.isprintable() and name
    )
    if not cards:
        raise Broken(FailureKind.PROTOCOL, "it lists no model")
    return cards[:MAX_MODELS]


def listed(names: Sequence[str], path: str) -> tuple[int, bytes]:
    """Return status and body of `GET /models`, or of one of them.

    Args:
        path: below the API root.
    """
    name = unquote(path.partition("?")[0].removeprefix("/models").strip("/"))
    if not name:
        return 200, dumps({"object": "list", "data": [_card(each) for each in names]})
    if name in names:
        return 200, dumps(_card(name))
    error = {
        "message": f"The model `{name}` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    return 404, dumps({"error": error})


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "agentsched"}
