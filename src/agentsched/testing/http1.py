"""HTTP/1.1 for one connection to a fake backend: h11 for the protocol, asyncio for the bytes.

A client that goes away ends its call at once. Malformed requests are answered with 400 and the connection
is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import cast

import h11

from agentsched.testing import wire
from agentsched.testing.answer import Answer
from agentsched.testing.backend import FakeBackend
from agentsched.testing.faults import CutShort, Refused, Reset
from agentsched.testing.wire import Request

_log = logging.getLogger(__name__)

MOST_HEADER_BYTES = 64 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024


Notify = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """Serve one connection, one request after the other."""

    def __init__(self, backend: FakeBackend, *, opened: Notify, closed: Notify) -> None:
        self._backend = backend
        self._opened = opened
        self._closed = closed
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER_BYTES)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = asyncio.Event()

    # ---- what asyncio says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        if self._task is not None:
            self._task.cancel()
        self._ended.set()
        self._closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError:  # bytes after the end of the connection
            self._close()
        else:
            self._read()

    def eof_received(self) -> None:
        """Take a client that closed its sending side for one that has gone away; asyncio closes the rest."""

    def abort(self) -> None:
        """Break the connection with a reset."""
        transport = self._transport
        if transport is None:
            return
        sock = cast("socket.socket | None", transport.get_extra_info("socket"))
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def gone(self) -> None:
        """Wait until the connection and its last call have ended."""
        await self._ended.wait()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # ---- requests

    def _read(self) -> None:
        """Do what the bytes received so far ask for."""
        try:
            self._read_events()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _read_events(self) -> None:
        while self._transport is not None:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                if self._http.they_are_waiting_for_100_continue:
                    self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
                return
            if event is h11.PAUSED:  # a pipelined request waits until this one is answered
                self._transport.pause_reading()
                return
            if isinstance(event, h11.Request):
                self._request, self._body = event, bytearray()
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > MOST_BODY_BYTES:
                    self._refuse(413, "body too large")
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                loop, body = asyncio.get_running_loop(), bytes(self._body)
                self._task = loop.create_task(self._serve(self._request, body))
            elif isinstance(event, h11.ConnectionClosed):
                return

    def _refuse(self, status: int, reason: str) -> None:
        """Answer what can't be understood, if that is still possible, and close."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
        elif self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = wire.dump(wire.error(status, reason))
            headers = [*wire.JSON_TYPE.items(), ("content-length", str(len(body))), ("connection", "close")]
            with contextlib.suppress(h11.LocalProtocolError):
                self._write(self._http.send(h11.Response(status_code=status, headers=headers)))
                self._write(self._http.send(h11.Data(data=body)))
        if self._transport is not None:
            self._transport.close()

    async def _serve(self, head: h11.Request, body: bytes) -> None:
        target = head.target.decode("ascii", "replace").split("?")[0]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        prefix = self._backend.prefix
        request = Request(
            method=head.method.decode("ascii"), path=target.removeprefix(prefix), headers=headers, body=body
        )
        answer = None
        try:
            answer = await self._backend.answer(request)
            await self._send(answer, silent=head.method == b"HEAD")
        except (Refused, Reset):
            self.abort()
        except (CutShort, h11.LocalProtocolError):
            self._close()
        except Exception:
            _log.exception("the fake backend %s failed in the middle of an answer", self._backend.name)
            self.abort()
        finally:
            if answer is not None:
                answer.close()
                if not isinstance(answer.body, bytes):
                    await answer.body.aclose()
        self._next_request()

    async def _send(self, answer: Answer, *, silent: bool) -> None:
        http, body = self._http, answer.body
        headers = list(answer.headers.items())
        if isinstance(body, bytes):
            content = b"" if silent else body
            headers.append(("content-length", str(len(body))))
            self._write(
                http.send(h11.Response(status_code=answer.status, headers=headers)),
                http.send(h11.Data(data=content)),
                http.send(h11.EndOfMessage()),
            )
            return
        self._write(http.send(h11.Response(status_code=answer.status, headers=headers)))
        async for piece in body:
            self._write(http.send(h11.Data(data=piece)))
            await self._writable.wait()
        self._write(http.send(h11.EndOfMessage()))

    def _next_request(self) -> None:
        if self._transport is None:
            return
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._close()
            return
        self._http.start_next_cycle()
        self._transport.resume_reading()
        self._read()

    def _write(self, *data: bytes | None) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(part for part in data if part))

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
