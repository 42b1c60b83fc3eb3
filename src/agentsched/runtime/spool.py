"""The bytes of one answer on their way to the caller: written by the attempt, read by the SDK."""

import asyncio
from collections import deque

MAX_UNREAD_BYTES = 2**20
"""A writer this far ahead of its reader waits."""


class Spool:
    """A bounded pipe inside one event loop.

    Attributes:
        taken: how many chunks were read.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._closed = False
        self._error: BaseException | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the writer should wait."""
        return self._unread > MAX_UNREAD_BYTES

    @property
    def complete(self) -> bool:
        """Whether all bytes are in and no error follows them."""
        return self._closed and self._error is None

    def put(self, chunk: bytes) -> None:
        """Append bytes."""
        if chunk and not self._closed:
            self._chunks.append(chunk)
            self._unread += len(chunk)
            _wake(self._reader)

    def close(self, error: BaseException | None = None) -> None:
        """End it; the reader gets what was put, then the end or the error. The first end counts."""
        if not self._closed:
            self._closed = True
            self._error = error
            _wake(self._reader)
            _wake(self._writer)

    async def read(self) -> bytes | None:
        """Return the next bytes; None at the end.

        Raises:
            BaseException: the error it was closed with.
        """
        while not self._chunks:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        chunk = self._chunks.popleft()
        self.taken += 1
        self._unread -= len(chunk)
        if not self.full:
            _wake(self._writer)
        return chunk

    async def read_all(self) -> bytes | None:
        """Return all bytes that are there, or the next ones; None at the end.

        Raises:
            BaseException: the error it was closed with.
        """
        chunk = await self.read()
        return chunk if chunk is None or not self._chunks else chunk + self.take()

    async def room(self) -> None:
        """Wait until it is not full."""
        while self.full and not self._closed:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    def take(self) -> bytes:
        """Return all bytes that are there at once."""
        whole = b"".join(self._chunks)
        self.taken += len(self._chunks)
        self._chunks.clear()
        self._unread = 0
        _wake(self._writer)
        return whole


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
