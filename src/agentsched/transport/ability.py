"""Whether a server goes on with a text that somebody else began: it is tried with a few words."""

import asyncio
from typing import Any

from agentsched.model import Backend, FailureKind
from agentsched.transport.body import read_body
from agentsched.transport.gist import ChoicesGist
from agentsched.transport.incoming import Kind
from agentsched.transport.jsontext import dumps, loads
from agentsched.transport.partial import Way
from agentsched.transport.refusal import Broken, in_band, raised
from agentsched.transport.sse import Decoder
from agentsched.transport.stack import Stack

CAP_S = 10.0
"""How long both questions may take together, at a server that is busy with other calls: somebody waits."""

MAX_BYTES = 2**20

BEGUN = "Rivers, said the heron, are"
"""Hardly how an answer begins by itself."""

_MESSAGES = [
    {"role": "user", "content": "Write a sentence about rivers."},
    {"role": "assistant", "content": BEGUN},
]
_CONTRADICTION = {"continue_final_message": True, "add_generation_prompt": True}
"""What vLLM and llama.cpp refuse, since they know both fields; a server that knows neither does not mind. What is said
is no proof: a model may go on with what it takes for an earlier answer of its own."""
_GO_ON = {"continue_final_message": True, "add_generation_prompt": False}


async def way_of(stack: Stack, transport: Any, backend: Backend, model: str) -> Way | None:
    """Return how a server goes on with a chat's answer; None if it does not.

    Args:
        model: as the server calls it.

    Raises:
        Broken: if it did not answer in time, so that nothing is known.
    """
    try:
        async with asyncio.timeout(CAP_S):
            if await _say(stack, transport, backend, {"model": model, **_CONTRADICTION}) is not None:
                return None
            said = await _say(stack, transport, backend, {"model": model, **_GO_ON})
            return Way.MESSAGE if said is not None and not said.lstrip().startswith(BEGUN) else None
    except TimeoutError:
        raise Broken(FailureKind.TIMEOUT, f"it did not go on with a few words within {CAP_S:g} s") from None


async def _say(stack: Stack, transport: Any, backend: Backend, fields: dict[str, Any]) -> str | None:
    """Return what the server says, as a stream: in whole answers llama.cpp repeats the text. None if it refuses.

    Raises:
        Broken: if it says nothing.
    """
    content = dumps({"messages": _MESSAGES, "max_tokens": 8, "temperature": 0, "stream": True, **fields})
    headers = {
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "connection": "close",  # some servers close one on which they have refused something, and do not say so
    }
    if backend.api_key is not None:
        headers["authorization"] = f"Bearer {backend.api_key}"
    timeout = {"connect": CAP_S, "read": CAP_S, "write": CAP_S, "pool": None}
    url = f"{backend.base_url}/chat/completions"
    request = stack.Request("POST", url, headers=headers, content=content, extensions={"timeout": timeout})
    try:
        response = await transport.handle_async_request(request)
        try:
            answer = await read_body(response.stream, MAX_BYTES)
        finally:
            await response.aclose()
    except Exception as error:
        raise raised(stack, error) from None
    if response.status_code in (400, 422):
        return None
    if response.status_code != 200:
        raise Broken(FailureKind.ERROR, f"POST {url} answers HTTP {response.status_code}")
    return _text(answer or b"")


def _text(events: bytes) -> str | None:
    """Return the text of a streamed answer; None if it says that the question was refused.

    Raises:
        Broken: if it is none.
    """
    gist = ChoicesGist(Kind.CHAT)
    try:
        for _, data in Decoder().feed(events):
            if data and not data.startswith(b"[DONE]"):
                payload: Any = loads(data)
                if payload.get("error") and in_band(payload, None).kind is FailureKind.INVALID:
                    return None
                gist.take(payload)
    except (ValueError, TypeError, AttributeError):
        raise Broken(FailureKind.PROTOCOL, "what it says is no stream of events") from None
    if not gist.done:
        raise Broken(FailureKind.PROTOCOL, "it did not say a few words to their end")
    return gist.text
