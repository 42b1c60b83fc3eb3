"""JSON to and from the wire, compact and quick."""

import json
from typing import Any

from jiter import from_json
from pydantic_core import to_json


def loads(content: bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: if it is not JSON, or nested absurdly deep.
    """
    try:
        return from_json(content)
    except ValueError:
        pass
    try:
        # it takes what the quick parser does not: halves of surrogate pairs
        return json.loads(content.decode("utf-8-sig", "surrogatepass"))
    except RecursionError:
        raise ValueError("nested too deep") from None


def dumps(value: Any) -> bytes:
    """Return compact JSON in UTF-8."""
    try:
        return to_json(value)
    except ValueError:  # halves of surrogate pairs have no UTF-8, but as escapes they are JSON
        return json.dumps(value, separators=(",", ":")).encode()
