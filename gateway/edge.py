"""The HTTP edge: what of a request is let in, by size and time, before anything is known of it.

Plain ASGI functions, which work on any server, and uvicorn's protocol with what ASGI has no words for.
httptools, which uvicorn uses, has no limit on headers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway import errors
from gateway.transport import JoiningTransport

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADER_FIELDS_MAX = 100
HEADER_BYTES_MAX = 65_536
HEAD_UNFINISHED_BYTES_MAX = 4 * HEADER_BYTES_MAX  # as much comes in one read
HEAD_SECONDS_MAX = 10.0
BODY_SECONDS_MAX = 60.0
# In the scope's extensions:
GONE = "slotgate.gone"  # takes the call that a leaving client causes
WHOLE = "slotgate.whole"  # tells whether the body has come already
WATCHERS: set[asyncio.Task[None]] = set()


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The request's headers by lower-case name; of a repeated one the last.

    Raises HeadersTooLarge.
    """
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    if (
        len(fields) > HEADER_FIELDS_MAX
        or sum(len(name) + len(value) for name, value in fields) > HEADER_BYTES_MAX
    ):
        raise errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX)
    return dict(fields)


async def read_body(
    scope: Scope,
    receive: Receive,
    headers: dict[bytes, bytes],
    bytes_max: int,
    seconds_max: float = BODY_SECONDS_MAX,
) -> bytes:
    """The whole body.

    Raises BodyTooLarge (at once if the client declares it), RequestTimeout, ClientGone.
    """
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > bytes_max:
        raise errors.BodyTooLarge(bytes_max)
    whole = scope.get("extensions", {}).get(WHOLE)
    if whole is not None and whole():  # a timer would cost more than the reading
        return await _parts(receive, bytes_max)
    try:
        async with asyncio.timeout(seconds_max):
            return await _parts(receive, bytes_max)
    except TimeoutError:
        raise errors.RequestTimeout(seconds_max) from None


async def _parts(receive: Receive, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise errors.ClientGone
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise errors.BodyTooLarge(bytes_max)
        if not message.get("more_body", False):
            return b"".join((*parts, part)) if parts else part
        parts.append(part)


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with what costs a request dearly in plain ASGI made cheap, and held to
    what clients really send.

    An answer begins with a head and some events: two writes in ASGI, one packet on the wire. And a
    client that leaves is told by a call, where ASGI wants a task that waits for a message.
    """

    head_seconds_max = HEAD_SECONDS_MAX
    _gone: Callable[[], None] | None = None
    _in_head = False
    _head_bytes = 0  # of the reads that have not finished it
    _late: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoiningTransport(transport, self.loop, self._unread))
        # uvicorn bounds the silence between requests only.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._unset_keepalive_if_required()
        if self.transport.is_closing():  # it lingers: nobody reads this
            return
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offered:
                self._decline(data[offered.args[0] :])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):  # CONNECT cannot be declined
            self._refuse(errors.InvalidRequest("The bytes received are not a valid HTTP/1.1 request."))
        if self._in_head or self._late is not None:
            self._watch_head(len(data))

    def _decline(self, rest: bytes) -> None:
        """Serve a request as if it had not offered another protocol, as RFC 9110, 7.8 allows: Java's
        client offers HTTP/2 with every one. The parser would drop the body; a new one never saw the
        offer."""
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        head = b"%b %b HTTP/1.1\r\n%b\r\n" % (self.parser.get_method(), self.url, b"".join(fields))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(head + rest)

    def _watch_head(self, read_bytes: int) -> None:
        """Bound a head that does not end, in bytes and time."""
        if not self._in_head:
            if self._late is not None:
                self._late.cancel()
            self._late, self._head_bytes = None, 0
            return
        self._head_bytes += read_bytes
        if self._late is None:
            late = errors.RequestTimeout(self.head_seconds_max)
            self._late = self.loop.call_later(self.head_seconds_max, self._refuse, late)
        if self._head_bytes > HEAD_UNFINISHED_BYTES_MAX:
            self._refuse(errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX))

    def _refuse(self, error: errors.GatewayError) -> None:
        """Answer what did not become a request, then close; into an answer on its way nothing is put."""
        if self.transport.is_closing():
            return
        self._in_head, self._refused = False, True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if self._gone is not None:
                self._gone()
        fields = [(b"content-type", b"application/json"), *error.headers()]
        if not error.closes:
            fields.append((b"connection", b"close"))
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        body = error.body()
        self.transport.write(
            b"HTTP/1.1 %d \r\n%bcontent-length: %d\r\n\r\n%b" % (error.status, head, len(body), body)
        )
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        extensions: dict[str, Any] = {GONE: self._when_gone, WHOLE: self._is_whole}
        self.scope["extensions"] = extensions

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.should_upgrade():
            return  # see `_decline`
        super().on_headers_complete()
        if self.pipeline and self._gone is not None:  # paused for the request behind, see `_when_gone`
            self.flow.resume_reading()
        if self.scope["http_version"] == "1.0":
            self.cycle.send = unchunked(self.cycle)  # type: ignore[assignment, method-assign]

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._gone = None  # not at the next request: that may come, pipelined, while this one runs
        super().on_response_complete()

    def eof_received(self) -> None:
        """Called by the loop. Left to itself it would first write what the client does not read."""
        if self._gone is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._late is not None:
            self._late.cancel()
        if self._gone is not None:
            self._gone()

    def _when_gone(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self.flow.resume_reading()  # uvicorn pauses at 64 KiB of body, and a paused socket shows no end

    def _is_whole(self) -> bool:
        return not self.cycle.more_body

    def _unread(self) -> bool:
        """Whether the client may still be sending what nobody will read."""
        cycle = self.cycle
        return self._refused or (cycle is not None and cycle.response_complete and cycle.more_body)


def unchunked(cycle: RequestResponseCycle) -> Send:
    """How to answer HTTP/1.0, which knows no chunks: where the length is not known, the close ends the
    body. nginx asks so unless it is told otherwise."""
    send, until_close = cycle.send, False

    async def send_plain(message: Any) -> None:
        nonlocal until_close
        if message["type"] == "http.response.start":
            until_close = not any(name.lower() == b"content-length" for name, _ in message["headers"])
            if until_close:
                cycle.chunked_encoding = False
        elif until_close:  # the length that uvicorn holds us to: never reached before the end
            cycle.expected_content_length = len(message.get("body", b"")) + message.get("more_body", False)
        await send(message)

    return send_plain


def watch(scope: Scope, receive: Receive, gone: Callable[[], None]) -> None:
    """Call `gone` when the client leaves, by close, reset or half-close; on other servers than ours
    maybe also when the answer is complete. The body must have been read."""
    if when_gone := scope.get("extensions", {}).get(GONE):
        when_gone(gone)
        return

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    watcher = asyncio.get_running_loop().create_task(wait())
    WATCHERS.add(watcher)  # the loop itself keeps no hold on a task
    watcher.add_done_callback(WATCHERS.discard)
