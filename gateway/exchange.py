"""One request to an engine and its response, on one connection of ours.

It stands on httptools and asyncio transports, because a general client costs more than all the rest of
a request, and because the gateway must decide itself when a connection ends: that is how an engine
learns to stop. `Connection` is a protocol that needs nothing but a transport; `Exchange` is what the
caller holds. No task, no queue: bytes are parsed where they arrive, and a waiting reader is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol, cast

import httptools

UNREAD_BYTES_MAX = 1 << 20  # large, since engines drop readers that stall; but there is a bound
READ_BYTES = 1 << 16  # at a time
PIECES_MAX = 1024  # of what is unread: to join a piece takes 80 bytes, and it may have one
FRAMING_BYTES_MAX = 1 << 18  # in a row without a byte of a body: a head, chunk extensions, trailers
FIELDS_MAX = 1000  # header fields of one response


class ConnectionLost(Exception):
    """The response did not come whole: closed, reset, not HTTP, or given up by the gateway.

    `answered`: a byte of a response had arrived. `reused`: the connection had served a request before.
    Reused and not answered: most likely the engine closed an idle connection and never saw the request.
    """

    def __init__(self, cause: str, *, answered: bool, reused: bool) -> None:
        super().__init__(cause)
        self.cause = cause
        self.answered = answered
        self.reused = reused


class AnswerTooLarge(Exception):
    """The body is longer than the caller takes; the exchange was aborted."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the answer is larger than {bytes_max} bytes")
        self.bytes_max = bytes_max


class Head(NamedTuple):
    """Status and header fields of a response: lower-case names, repeated fields joined by ", "."""

    status: int
    headers: Mapping[str, str]


class Exchange:
    """One request and its response, for one reader at a time.

    A cancelled reader leaves it as it was. Whoever does not read it to its end must `abort` or `leave`;
    at its end the connection finds its own way, to the next request or closed.
    """

    __slots__ = (
        "_bodiless",
        "_cause",
        "_chunks",
        "_connection",
        "_head",
        "_left",
        "_timer",
        "_unread_bytes",
        "_waiter",
        "answered",
        "complete",
        "reused",
        "waited",
    )

    def __init__(self, *, bodiless: bool = False) -> None:
        self.complete = False  # the response has arrived whole, read or not
        self.answered = False
        self.reused = False
        self.waited = False  # the last reader was cancelled while it waited for the engine
        self._bodiless = bodiless  # the answer to HEAD announces a body that never comes
        self._head: Head | None = None
        self._chunks: list[bytes] = []
        self._unread_bytes = 0
        self._cause: str | None = None  # why nothing more is delivered
        self._connection: Connection | None = None  # until it is complete or lost
        self._waiter: asyncio.Future[None] | None = None
        self._left: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def unread(self) -> bool:
        """Whether the engine has sent what was not read yet."""
        return bool(self._chunks)

    async def head(self) -> Head:
        """The response head, once it has come; 1xx are skipped. Raises ConnectionLost."""
        while self._head is None:
            await self._arrival()
        return self._head

    async def read(self) -> bytes:
        """All body bytes since the last read, waiting for some; b"" at the end. Raises ConnectionLost.

        Of very many bytes only the first `READ_BYTES`, and others have their turn: a thousand events take as
        long as everybody's next token.
        """
        chunks = self._chunks
        if self._unread_bytes > READ_BYTES:
            await asyncio.sleep(0)
        while not chunks:
            if self.complete and self._cause is None:
                return b""
            await self._arrival()
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._unread_bytes = 0
        if len(data) > READ_BYTES:
            chunks.append(data[READ_BYTES:])
            self._unread_bytes = len(data) - READ_BYTES
            data = data[:READ_BYTES]
        elif self._connection is not None:
            self._connection.resume()
        return data

    async def body(self, bytes_max: int) -> bytes:
        """What is left of the body, whole. Raises ConnectionLost, AnswerTooLarge."""
        parts = []
        size = 0
        while data := await self.read():
            size += len(data)
            if size > bytes_max:
                self.abort()
                raise AnswerTooLarge(bytes_max)
            parts.append(data)
        return b"".join(parts)

    def abort(self, cause: str = "aborted by the gateway") -> None:
        """End the connection at once, unless the response is complete."""
        if self._connection is not None:
            self._connection.end(cause)

    def leave(self, seconds: float) -> asyncio.Future[None]:
        """Ask the engine to stop; resolves once it has: its side is closed, or its response complete.

        Our side is half-closed (over TLS: closed), what still arrives is dropped. After `seconds` the
        connection is aborted and the future resolves all the same: it never fails.
        """
        if self._left is None:
            loop = asyncio.get_running_loop()
            self._left = loop.create_future()
            if self._connection is None:
                self._left.set_result(None)
            else:
                self._cause = "left by the gateway"
                self._chunks.clear()
                self._unread_bytes = 0
                self._timer = loop.call_later(seconds, self.abort)
                self._connection.half_close()
                self._wake()
        return self._left

    async def _arrival(self) -> None:
        """Wait until something has changed. Raises ConnectionLost if nothing can any more."""
        if self._cause is not None:
            raise ConnectionLost(self._cause, answered=self.answered, reused=self.reused)
        if self._waiter is not None:
            raise RuntimeError("an exchange has one reader at a time")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.waited = True
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _detach(self, cause: str) -> None:
        """Its connection is gone; unless the response is complete, for this cause."""
        self._connection = None
        if not self.complete and self._cause is None:
            self._cause = cause
        if self._timer is not None:
            self._timer.cancel()
        if self._left is not None and not self._left.done():
            self._left.set_result(None)
        self._wake()


class Pool(Protocol):
    """Where connections come from and go back to."""

    def enrol(self, connection: Connection) -> None:
        """It is open."""

    def keep(self, connection: Connection) -> None:
        """It is idle: its response was complete, and the engine takes another request on it."""

    def forget(self, connection: Connection) -> None:
        """It is closed, or about to be."""


class Connection(asyncio.Protocol):
    """One connection to an engine: with an exchange it is busy, without one idle.

    Transport and parser call it. `end` is the one way out, whoever closes.
    """

    __slots__ = (
        "_clean",
        "_exchange",
        "_fields",
        "_framing_bytes",
        "_parser",
        "_paused",
        "_pool",
        "_transport",
        "_until_eof",
    )

    def __init__(self, pool: Pool, exchange: Exchange) -> None:
        self._pool = pool
        # From the first byte on: ds4 with too many connections answers before it has read a request.
        self._exchange: Exchange | None = exchange
        exchange._connection = self
        self._transport: asyncio.Transport  # set when it is open; nothing happens before
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._framing_bytes = 0
        self._until_eof = False
        self._paused = False
        self._clean = False  # the next byte can only belong to the answer to our request

    @property
    def usable(self) -> bool:
        """Whether it can still be written to; a loop reports a loss only one round later."""
        return not self._transport.is_closing()

    def reuse(self, exchange: Exchange) -> None:
        """Serve another exchange."""
        self._exchange = exchange
        self._clean = False
        exchange._connection = self
        exchange.reused = True

    def submit(self, request: bytes) -> None:
        """Write the request, unless the engine has answered or closed already, or nobody wants it now."""
        if self._exchange is not None and self._exchange._left is None and self.usable:
            self._clean = True
            self._framing_bytes = 0
            self._transport.write(request)

    def resume(self) -> None:
        """Read on, if reading was paused."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def half_close(self) -> None:
        """Close our side and stay to see the engine's."""
        self._clean = False
        self.resume()
        if not self.usable:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def end(self, cause: str) -> None:
        """Close at once; an exchange that is not complete is lost, for this cause."""
        self._transport.abort()
        self._let_go(cause)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop. TCP_NODELAY is set already, by asyncio and uvloop alike."""
        self._transport = cast(asyncio.Transport, transport)
        self._pool.enrol(self)

    def data_received(self, data: bytes) -> None:
        """Called by the loop: parse, then wake the reader once for all of it."""
        exchange = self._exchange
        if exchange is None:
            self.end("unasked bytes")  # an idle engine has nothing to say, except 408 before it closes
            return
        exchange.answered = True
        self._framing_bytes += len(data)
        fault = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            fault = f"not an HTTP response: {error.__context__ or error}"
        if exchange.complete:
            self._settle(exchange, clean=self._clean and not fault)
        elif fault:
            self.end(fault)
        elif self._framing_bytes > FRAMING_BYTES_MAX:
            self.end(f"more than {FRAMING_BYTES_MAX} bytes without a byte of a body")
        else:
            if exchange._unread_bytes > UNREAD_BYTES_MAX and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            exchange._wake()

    def eof_received(self) -> None:
        """Called by the loop: the engine closed its side, which may be how it ends a body."""
        exchange = self._exchange
        if exchange is not None and self._until_eof:
            exchange.complete = True
        self.end("the engine closed the connection")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop, last of all. Over TLS without an orderly end: no body ends so."""
        self._let_go(f"the connection broke: {exc or 'closed without notice'}")
        self._parser = httptools.HttpResponseParser(None)  # it held us: a cycle, for the collector to find

    # The parser calls these; what they raise comes out of feed_data as the context of its error.

    def on_message_begin(self) -> None:
        if self._exchange is not None and self._exchange.complete:
            raise ValueError("bytes after the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        fields, self._fields = self._fields, []
        status = self._parser.get_status_code()
        if not 100 <= status < 600 or status == 101:
            raise ValueError(f"status {status}")
        if status < 200:
            return
        if len(fields) > FIELDS_MAX:
            raise ValueError(f"more than {FIELDS_MAX} header fields")
        headers: dict[str, str] = {}
        for raw_name, raw_value in fields:
            name = raw_name.decode("latin-1").lower()
            value = raw_value.decode("latin-1").strip()
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        exchange._head = Head(status, headers)
        if exchange._bodiless:
            exchange.complete = True
            raise ValueError("no body follows, but the parser cannot be told")
        # Nor can it be told of the end of the stream, so we must know where that is the end of the body.
        self._until_eof = "content-length" not in headers and not _chunked(headers)

    def on_body(self, data: bytes) -> None:
        exchange = self._exchange
        assert exchange is not None
        self._framing_bytes = 0
        if exchange._cause is None:
            chunks = exchange._chunks
            chunks.append(data)
            if len(chunks) > PIECES_MAX:
                chunks[:] = (b"".join(chunks),)
            exchange._unread_bytes += len(data)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        if exchange._head is not None:  # else it was a 1xx
            exchange.complete = True
            self._clean = self._clean and self._parser.should_keep_alive()  # true only in here

    def _let_go(self, cause: str) -> None:
        exchange, self._exchange = self._exchange, None
        self._pool.forget(self)
        if exchange is not None:
            exchange._detach(cause)

    def _settle(self, exchange: Exchange, *, clean: bool) -> None:
        """The response is complete: keep the connection, or close it."""
        # An engine that answers before it has read the request may never read the rest of it.
        if clean and self.usable and not self._transport.get_write_buffer_size():
            self.resume()
            self._exchange = None
            exchange._detach("")
            self._pool.keep(self)
        else:
            self.end("")


def _chunked(headers: Mapping[str, str]) -> bool:
    """Whether the body comes in chunks, the last of which ends it."""
    return headers.get("transfer-encoding", "").rpartition(",")[2].strip().lower() == "chunked"
