"""Token counts as backends report them."""

from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.incoming import CHARS_PER_TOKEN

MAX_COUNT = 10**7
"""No call has more tokens; a larger count is a mistake of the backend's."""

_WRITTEN = ("completion_tokens", "output_tokens")


def counted(usage: object, seen: int = 0) -> Usage:
    """Return the reported usage in our terms; of chats and completions, or of responses.

    Args:
        seen: output tokens seen, where none are reported.
    """
    details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
    return Usage(
        input_tokens=first_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=first_count(usage, *_WRITTEN) or seen or None,
        cached_tokens=first_count(details, "cached_tokens") or 0,
    )


def written(usage: object, pieces: int, chars: int) -> int:
    """Return the output tokens so far: as reported, else estimated from the pieces and characters seen."""
    reported = first_count(usage, *_WRITTEN) if usage is not None else None
    return reported if reported is not None else max(pieces, chars // CHARS_PER_TOKEN)


def first_count(usage: object, *names: str) -> int | None:
    """Return the first of these numbers that is there and can be; None where there is none."""
    for name in names:
        count = _part(usage, name)
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT:
            return count
    return None


def _part(usage: object, name: str) -> Any:
    return cast("dict[str, Any]", usage).get(name) if isinstance(usage, dict) else None
