"""A body, read whole."""

from collections.abc import AsyncIterable


async def read_body(chunks: AsyncIterable[bytes], limit: int) -> bytes | None:
    """Return all bytes; None, having read no further, if there are more than `limit`."""
    pieces: list[bytes] = []
    size = 0
    async for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size > limit:
            return None
    return b"".join(pieces)
