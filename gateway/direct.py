"""A request of the hot paths, served without ASGI; see `server`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway import errors
from gateway.edge import Arrival, Head, declared_bytes
from gateway.errors import Headers
from gateway.intake import Intake, Reading

if TYPE_CHECKING:
    from gateway.server import EdgeProtocol

UNCLAIMED_BYTES_MAX = 262_144  # of a body, before anybody asks for it

Serve = Callable[[Arrival], Awaitable[None]]


class DirectArrival:
    """A request on the short way; see `Arrival`. To its protocol it is what uvicorn calls a cycle."""

    __slots__ = (
        "_begun",
        "_chunked",
        "_more",
        "_protocol",
        "_reading",
        "_waiter",
        "_wanted",
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
        self._wanted = True  # somebody will read the body
        self._begun = b""  # the first piece of it, which is mostly all of it
        self._more = bytearray()  # the rest; a list of tiny pieces would take 25 times their bytes
        self._reading: Reading | None = None  # while somebody waits for the rest
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
        if not self._wanted:
            return
        if self._begun:
            self._more += part
            if self._reading is not None:
                self._reading.has(self._size)
            elif len(self._more) >= UNCLAIMED_BYTES_MAX:  # one round of the loop may bring 8 MB
                self._protocol.flow.pause_reading()
        else:
            self._begun = part
        self.set()

    def whole(self) -> None:
        """The body is there."""
        self.more_body = False
        self.set()

    @property
    def silent_since(self) -> float | None:
        """When the last piece of a body came that is not whole yet; None: nobody waits for one."""
        return None if self._reading is None else self._reading.at

    @property
    def message_event(self) -> DirectArrival:
        """What uvicorn sets when something has happened."""
        return self

    def set(self) -> None:
        """Something has happened: the one who waits for it looks."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the handler calls these ------------------------------------------------------------------

    async def body(self, intake: Intake) -> bytes:
        """See `Arrival`."""
        if self.more_body:  # a timer would cost more than all the rest
            await self._arrived(intake)
        size, body, bytes_max = self._size, self._begun, intake.body_bytes_max
        if self._more and size <= bytes_max:
            body += self._more
        self._drop()
        if size > bytes_max:
            raise errors.BodyTooLarge(bytes_max)
        return body

    def _drop(self) -> None:
        """Keep nothing of the body, nor what of it may still come: a connection outlives its requests."""
        self._wanted, self._begun, self._more = False, b"", bytearray()

    @property
    def _size(self) -> int:
        return len(self._begun) + len(self._more)

    async def _arrived(self, intake: Intake) -> None:
        if declared_bytes(self.fields) > intake.body_bytes_max:
            self._drop()
            raise errors.BodyTooLarge(intake.body_bytes_max)
        async with intake.read(self._protocol.body_seconds_max, self._drop) as reading:
            self._reading = reading
            reading.has(self._size)
            self._protocol.flow.resume_reading()
            try:
                while self.more_body:
                    reading.check()
                    if self.disconnected:
                        raise errors.ClientGone
                    self._waiter = asyncio.get_running_loop().create_future()
                    await self._waiter
            finally:
                self._reading = None

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
            if self._wanted:
                self._drop()  # a client may go on sending what was refused
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
