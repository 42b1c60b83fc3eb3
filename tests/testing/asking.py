"""Ways to call a fake fleet in tests."""

from typing import Any

import httpx2
import openai

from agentsched.testing import FakeFleet

ASK: dict[str, Any] = {"model": "fake-model", "messages": [{"role": "user", "content": "hi there"}]}


def sdk(fleet: FakeFleet, number: int = 0, **options: Any) -> openai.AsyncOpenAI:
    """Return an SDK client for one of the fleet's backends."""
    client = httpx2.AsyncClient(transport=fleet.transport("httpx2"), timeout=600)
    return openai.AsyncOpenAI(
        base_url=fleet.base_urls[number], api_key="key", max_retries=0, http_client=client, **options
    )


async def post(http: Any, fleet: FakeFleet, body: dict[str, Any], **options: Any) -> Any:
    """Send one chat request to the first backend with a client of `http`, httpx or httpx2."""
    client = http.AsyncClient(transport=fleet.transport(http.__name__))
    return await client.post(f"{fleet.base_urls[0]}/chat/completions", json=ASK | body, **options)
