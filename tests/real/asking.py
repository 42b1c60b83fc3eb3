"""What real engines are asked, and what of their answers lasts from one call to the next."""

import json
import urllib.request
from typing import Any

MESSAGES = [{"role": "user", "content": "Name the tallest mountain."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "trip", "strict": True, "schema": SCHEMA}}


def direct(url: str, path: str, body: dict[str, object]) -> dict[str, Any]:
    """Ask the server itself."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def lasting(answer: dict[str, object]) -> dict[str, Any]:
    """Return an answer without what differs in every call: names, times, what was cached."""
    left: dict[str, Any] = json.loads(json.dumps(answer))
    for unique in ("id", "created", "created_at", "completed_at", "timings"):
        left.pop(unique, None)
    for cached in ("prompt_tokens_details", "input_tokens_details"):
        left["usage"].pop(cached, None)
    for item in left.get("output", []):
        item.pop("id")
    return left
