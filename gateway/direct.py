"""A request of the hot paths, served without ASGI; see `server`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway import errors
from gateway.edge import Arrival, Head, declared_bytes
from gateway.errors import Headers

if TYPE_CHECKING:
    from gateway.server import EdgeProtocol

Serve = Callable[[Arrival], Awaitable[None]]


class DirectArrival:
    """A request on the short way; see `Arrival`. To its protocol it is what uvicorn calls a cycle."""

    __slots__ = (
        "_bytes",
        "_chunked",
        "_parts",
        "_protocol",
        "_waiter",
        "disconnected",
        "fields",
        "keep_alive",
        "more_body",
        "path",
        "response_complete",
        "response_started",
        "task",
    )

    task: asyncio.Task[Any]

    def __init__(self, protocol: EdgeProtocol, path: str, fields: Headers, keep_alive: bool) -> None:
        self._protocol = protocol
        self.path = path
        self.fields = fields
        self.keep_alive = keep_alive
        self.disconnected = False
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self._chunked = False
        self._parts: list[bytes] | None = []  # of the body; None: nobody wants it any more
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    async def run(self, serve: Serve) -> None:
        """Serve it, as the task that can be cancelled."""
        try:
            await serve(self)
        finally:
            protocol = self._protocol
            protocol.tasks.discard(self.task)
            if not (self.response_complete or self.disconnected):
                protocol.transport.close()

    # -- its protocol calls these -----------------------------------------------------------------

    def take(self, part: bytes) -> None:
        """A piece of the body has come."""
        if self._parts is not None:
            self._parts.append(part)
            self._bytes += len(part)
            self.set()

    def whole(self) -> None:
        """The body is there."""
        self.more_body = False
        self.set()

    @property
    def message_event(self) -> DirectArrival:
        """What uvicorn sets when something has happened."""
        return self

    def set(self) -> None:
        """Something has happened: the one who waits for it looks."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the handler calls these ------------------------------------------------------------------

    async def body(self, bytes_max: int) -> bytes:
        """See `Arrival`."""
        if self.more_body:  # a timer would cost more than all the rest
            seconds = self._protocol.body_seconds_max
            try:
                async with asyncio.timeout(seconds):
                    await self._arrived(max(0, bytes_max))
            except TimeoutError:
                self._parts = None
                raise errors.RequestTimeout(seconds) from None
        parts, self._parts = self._parts, None
        if self._bytes > bytes_max:
            raise errors.BodyTooLarge(bytes_max)
        assert parts is not None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _arrived(self, bytes_max: int) -> None:
        if declared_bytes(self.fields) > bytes_max:
            self._parts = None
            raise errors.BodyTooLarge(bytes_max)
        while self.more_body and self._bytes <= bytes_max:
            if self.disconnected:
                raise errors.ClientGone
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def watch(self, gone: Callable[[], None]) -> None:
        """See `Arrival`."""
        self._protocol.when_gone(gone)

    async def send(self, head: Head | None, body: bytes, *, last: bool) -> None:
        """See `Arrival`. One write, whatever it is made of."""
        protocol = self._protocol
        if protocol.flow.write_paused:
            await protocol.flow.drain()
        if protocol.transport.is_closing():
            return
        start = b"" if head is None else self._start(*head)
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            protocol.transport.write(b"%b%b%b" % (start, piece, b"0\r\n\r\n" if last else b""))
        else:
            protocol.transport.write(start + body)
        if last:
            self.response_complete = True
            self._parts = None  # a client may go on sending what was refused
            if not self.keep_alive:
                protocol.transport.close()
            protocol.on_response_complete()

    def _start(self, status: int, headers: Headers) -> bytes:
        """The bytes of the head; without a length the body comes in chunks."""
        self.response_started = True
        known = dict(headers)
        self._chunked = b"content-length" not in known
        lines = [b"%b: %b\r\n" % field for field in headers]
        if self._chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if known.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        return b"%b%b\r\n" % (STATUS_LINE[status], b"".join(lines))
