"""What a server says it serves: `GET /models`."""

import asyncio
from collections.abc import Iterable
from typing import Any

from agentsched.model import Backend
from agentsched.transport.body import read_body
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.stack import Stack

CAP_S = 2.0
"""A server that is asked for its models holds up its first calls; no longer than this."""

MAX_BYTES = 4 * 2**20
MAX_MODELS = 10_000


async def list_models(stack: Stack, transport: Any, backend: Backend) -> tuple[str, ...] | None:
    """Return the names that the server lists; None if it does not answer with a list in time."""
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
        if response.status_code != 200 or content is None:
            return None
        names = [model["id"] for model in loads(content)["data"]]
    except Exception:  # whatever is wrong with the answer, the caller only needs to know that there is none
        return None
    return (
        tuple(name for name in names if isinstance(name, str) and name.isprintable() and name)[:MAX_MODELS]
        or None
    )


def as_list(names: Iterable[str]) -> bytes:
    """Return the body of `GET /models` for these names."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "agentsched"} for name in names]
    return dumps({"object": "list", "data": data})
