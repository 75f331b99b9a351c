"""The connections to one engine. Nothing waits for a connection in here: the lease is the only gate."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Sequence
from functools import partial
from time import monotonic
from urllib.parse import urlsplit

from gateway.engines.base import Answer
from gateway.exchange import AnswerTooLarge, Connection, ConnectionLost, Exchange, Head
from gateway.outbox import Outbox

__all__ = ["AnswerTooLarge", "ConnectFailed", "ConnectionLost", "Exchange", "Head", "Upstream"]

IDLE_SECONDS = 4.0  # uvicorn-based engines close idle connections after 5 s; a request must not meet that
IDLE_MAX = 64  # idle connections kept
STARTS_MAX = 64  # of an engine's paths, at most a dozen are ever asked

_LINE = re.compile(r"[A-Z]+ /[!-~]*")
_VISIBLE = re.compile(r"[!-~]*")


class ConnectFailed(Exception):
    """No connection came about: refused, unreachable, DNS, TLS, too slow. Nothing was sent."""

    def __init__(self, cause: str, *, refused: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.refused = refused  # by the machine: nobody listens there


class Upstream:
    """Sends requests to one engine, on idle connections where it can.

    `url`: http:// or https://, host, port, perhaps a path that is put before every path.
    `connect_seconds` bounds DNS, TCP and TLS together. `reuse` may be set at any time. Raises ValueError
    for a URL or key that cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_seconds: float = 5.0,
        reuse: bool = True,
        tls: ssl.SSLContext | None = None,
        api_key: str = "",
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the URL of an engine is http://HOST:PORT or https://HOST:PORT")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("the URL of an engine has no user, query or fragment")
        if not _VISIBLE.fullmatch(f"{parts.netloc}{parts.path}{api_key}"):
            raise ValueError("the URL and the key of an engine are visible ASCII characters")
        self.connect_seconds = connect_seconds
        self.reuse = reuse
        self.idle_seconds = idle_seconds
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._fields = f"Host: {parts.netloc}\r\nAccept-Encoding: identity\r\n{key}"
        self._starts: dict[tuple[str, str, bool], bytes] = {}
        self._outbox = Outbox()
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # idle since; the newest is last
        self._closed = False

    @property
    def connections(self) -> int:
        """Connections that are open, idle ones too."""
        return len(self._open)

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return len(self._idle)

    async def send(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Exchange:
        """Send a request, within this turn of the loop, and return without waiting for the answer.

        `headers` describe the content; framing, host and credentials are ours. Raises ConnectFailed, and
        ValueError for what would break the framing. What goes wrong later the exchange tells.
        """
        request = self._request(method, path, headers, body)
        exchange = Exchange(bodiless=method == "HEAD")
        connection = self._take(exchange) or await self._connect(exchange)
        self._outbox.post(partial(connection.submit, request))
        return exchange

    def send_at_once(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Exchange | None:
        """The same on an idle connection; None: there is none, and nothing was sent."""
        request = self._request(method, path, headers, body)
        exchange = Exchange(bodiless=method == "HEAD")
        connection = self._take(exchange)
        if connection is None:
            return None
        self._outbox.post(partial(connection.submit, request))
        return exchange

    async def ask(
        self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, bytes_max: int
    ) -> Answer:
        """Send a request and wait for the whole answer. Raises what `send` raises, ConnectionLost and
        AnswerTooLarge."""
        exchange = await self.send(method, path, headers, body)
        try:
            head = await exchange.head()
            return Answer(head.status, head.headers, await exchange.body(bytes_max))
        finally:
            exchange.abort()

    def retire(self) -> None:
        """Another one takes the requests from now on: those that run go on, on connections that end with
        them."""
        self.reuse = False
        for connection in list(self._idle):
            connection.end("another one takes the requests")

    async def close(self) -> None:
        """End all connections; from now on `send` fails."""
        self._closed = True
        for connection in list(self._open):
            connection.end("the gateway closes")
        await asyncio.sleep(0)  # the round of the loop in which the transports close

    def _request(self, method: str, path: str, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
        start = self._starts.get((method, path, self.reuse)) or self._start(method, path)
        fields = b"".join([b"%b: %b\r\n" % field for field in headers])
        count = len(headers)
        if fields.count(b"\n") != count or fields.count(b"\r") != count or b"\0" in fields:
            raise ValueError("a header field holds a line break or NUL")
        # Never chunked: ds4 before v0.6.3 reads a chunked body as empty.
        return b"%bContent-Length: %d\r\n%b\r\n%b" % (start, len(body), fields, body)

    def _start(self, method: str, path: str) -> bytes:
        """The request line and the fields that are the same for each request, made once: that costs as much
        as all the rest."""
        line = f"{method} {self._prefix}{path}"
        if not _LINE.fullmatch(line):
            raise ValueError("not a method and a path")
        ending = "keep-alive" if self.reuse else "close"
        start = f"{line} HTTP/1.1\r\n{self._fields}Connection: {ending}\r\n".encode()
        if len(self._starts) < STARTS_MAX:
            self._starts[method, path, self.reuse] = start
        return start

    def _take(self, exchange: Exchange) -> Connection | None:
        """The connection that was used last: of all, the engine has the least reason to close it."""
        while self._idle:
            connection, since = self._idle.popitem()
            if self.reuse and monotonic() - since <= self.idle_seconds and connection.usable:
                connection.reuse(exchange)
                return connection
            connection.end("idle for too long")
        return None

    async def _connect(self, exchange: Exchange) -> Connection:
        if self._closed:
            raise ConnectFailed("the gateway closes")
        loop = asyncio.get_running_loop()
        connection = Connection(self, exchange)
        try:
            async with asyncio.timeout(self.connect_seconds):
                await loop.create_connection(lambda: connection, self._host, self._port, ssl=self._tls)
        except BaseException as error:
            self.forget(connection)  # cancelled at the last moment, uvloop closes it without a word
            if isinstance(error, (OSError, UnicodeError)):  # UnicodeError: no name that DNS can hold
                cause = str(error) or f"no connection within {self.connect_seconds:g} s"
                raise ConnectFailed(cause, refused=isinstance(error, ConnectionRefusedError)) from error
            raise
        return connection

    # Called by the connections, as their pool.

    def enrol(self, connection: Connection) -> None:
        self._open.add(connection)
        if self._closed:
            connection.end("the gateway closes")

    def keep(self, connection: Connection) -> None:
        now = monotonic()
        self._idle[connection] = now
        oldest, since = next(iter(self._idle.items()))
        if not self.reuse:
            connection.end("not to be used again")
        elif len(self._idle) > IDLE_MAX or now - since > self.idle_seconds:
            oldest.end("idle for too long")

    def forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
