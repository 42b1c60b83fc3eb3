"""Token counts as backends report them."""

from typing import Any, cast

from agentsched.model import Usage
from agentsched.transport.marks import CHARS_PER_TOKEN

MAX_COUNT = 10**7
"""No call has more tokens; a larger count is a mistake of the backend's."""

PIECE_CHARS = 7
"""Where the pieces of a text are longer on the average, they are several tokens each."""

_WRITTEN = ("completion_tokens", "output_tokens")


def counted(usage: object, seen: int = 0, timings: object = None) -> Usage:
    """Return the reported usage in our terms; of chats and completions, or of responses.

    Args:
        seen: output tokens seen, where none are reported.
        timings: as llama.cpp adds them to its answers; they tell what the usage does not.
    """
    fields = cast("dict[str, Any]", usage) if isinstance(usage, dict) else {}
    details = fields.get("prompt_tokens_details") or fields.get("input_tokens_details")
    given, written = first_count(fields, "prompt_tokens", "input_tokens"), first_count(fields, *_WRITTEN)
    cached = first_count(details, "cached_tokens")
    if isinstance(timings, dict):
        times = cast("dict[str, Any]", timings)
        read, kept = first_count(times, "prompt_n"), first_count(times, "cache_n")
        if given is None and read is not None:
            given = read + (kept or 0)
        if cached is None and kept is not None and (given is None or kept <= given):
            cached = kept
        written = first_count(times, "predicted_n") if written is None else written
    return Usage(
        input_tokens=given,
        output_tokens=(seen if written is None else written) or None,
        cached_tokens=cached or 0,
    )


def written(usage: object, pieces: int, chars: int) -> int:
    """Return the output tokens so far: as reported, else estimated from the pieces and characters seen."""
    reported = first_count(usage, *_WRITTEN) if usage is not None else None
    return reported if reported is not None else estimated(pieces, chars)


def estimated(pieces: int, chars: int) -> int:
    """Return about how many tokens a text has: a piece is one, unless they are so long that they must be several."""
    return pieces if chars <= pieces * PIECE_CHARS else chars // CHARS_PER_TOKEN


def first_count(usage: object, *names: str) -> int | None:
    """Return the first of these numbers that is there and can be; None where there is none."""
    if isinstance(usage, dict):
        fields = cast("dict[str, Any]", usage)
        for name in names:
            count = fields.get(name)
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= MAX_COUNT:
                return count
    return None
