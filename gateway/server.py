"""uvicorn's HTTP protocol, held to what clients really send, with a short way for the hot paths.

httptools, which uvicorn uses, has no limit on headers of its own. And ASGI costs a request of the hot
paths half as much again as all that the gateway does for it: a scope, messages in both directions, two
writes for a head and its first events, a task that waits for the message that a client left. So such a
request goes to its handler as a `DirectArrival`; everything else takes the usual way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gateway import errors
from gateway.direct import DirectArrival, Serve
from gateway.edge import ABORT, BODY_SECONDS_MAX, GONE, HEADER_BYTES_MAX, HEADER_FIELDS_MAX, Send
from gateway.outbox import Outbox
from gateway.transport import LingeringTransport

HEAD_UNFINISHED_BYTES_MAX = 4 * HEADER_BYTES_MAX  # as much comes in one read
HEAD_SECONDS_MAX = 10.0
WAITING_MAX = 16  # requests behind one that runs, beyond which no more is read: each costs some 3 KB
WAITING_BYTES_MAX = 1_048_576  # of their bodies
UNREAD_SECONDS_MAX = 60.0  # in which a client takes nothing of its answer: it holds a slot
SHUTDOWN_LINGER_SECONDS = 0.5
LAST_REQUEST_SECONDS = 0.25  # for one that is on its way when the server stops: a close would reset it
FIRST_REQUEST_SECONDS = 2.0  # for who has just connected, and surely means to ask
CLOSED_SHARE = 16  # of the connections, when there are too many: to look at all of them takes a while


@dataclass(slots=True)
class Ending:
    """Whether a server is about to stop: then each answer is the last one on its connection."""

    now: bool = False


class EdgeProtocol(HttpToolsProtocol):
    """One connection of a client.

    `direct`: who serves POST requests to these paths without ASGI. `connections_max`: of the server, beyond
    which those are closed that have asked for nothing for longest. `ending`, `outbox`: of the server.
    """

    head_seconds_max = HEAD_SECONDS_MAX
    body_seconds_max = BODY_SECONDS_MAX
    unread_seconds_max = UNREAD_SECONDS_MAX
    transport: LingeringTransport
    cycle: RequestResponseCycle | DirectArrival  # type: ignore[assignment]  # the one that came last
    _served: RequestResponseCycle | DirectArrival | None = None  # the one before those that wait
    gone: Callable[[], None] | None = None  # to be called when the client leaves
    _in_head = False
    _head_bytes = 0  # of the reads that have not finished it
    _moved = False  # the last read ended a head or a message, or brought something of a body
    _aside_bytes = 0  # of the reads since then: sizes of chunks, trailers
    _late: asyncio.TimerHandle | None = None
    _refused = False
    _idle_since: float | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        direct: Mapping[bytes, Serve] | None = None,
        connections_max: int | None = None,
        ending: Ending | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._direct = direct or {}
        self._connections_max = connections_max
        self._ending = ending or Ending()
        self._outbox = outbox or Outbox()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self.loop, self._unread, self._outbox))
        self._idle()  # uvicorn bounds the silence between requests only
        if self._connections_max is not None and len(self.connections) > self._connections_max:
            self._make_room(self._connections_max)

    def _make_room(self, connections_max: int) -> None:
        """Close some that ask for nothing, or send no more of it; this one, if all others are served."""
        there = [one for one in self.connections if isinstance(one, EdgeProtocol) and one.is_open]
        if len(there) <= connections_max:  # the rest is closing
            return
        others = [one for one in there if one is not self]
        owing = [(owes, id(one), one) for one in others if (owes := one.owes) is not None]
        owing.sort()
        if not owing:
            self.transport.abort()
        for _, _, one in owing[: 1 + connections_max // CLOSED_SHARE]:
            if one.transport.get_write_buffer_size():  # it still takes its last answer
                one.transport.close()
            else:
                one.transport.abort()

    @property
    def is_open(self) -> bool:
        """Whether it is not about to be closed."""
        return not self.transport.is_closing()

    @property
    def owes(self) -> tuple[bool, float] | None:
        """What the client has been silent about: the rest of a body, else a request; and since when. None:
        it owes nothing."""
        if (since := self.quiet_since) is not None:
            return False, since
        since = self.cycle.silent_since if isinstance(self.cycle, DirectArrival) else None
        return None if since is None else (True, since)

    @property
    def quiet_since(self) -> float | None:
        """Since when the client owes us a request, or the end of its head; None: it has sent one."""
        if self._idle_since is None and self._late is not None:
            return self._late.when() - self.head_seconds_max
        return self._idle_since

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self.transport.is_closing():  # it lingers: nobody reads this
            return
        self._moved = False
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(errors.InvalidRequest("The bytes received are not a valid HTTP/1.1 request."))
        if self._in_head:
            self._watch_head(len(data))
        elif self._moved:
            self._aside_bytes = 0
        else:  # the parser holds a trailer until it ends
            self._aside_bytes += len(data)
            if self._aside_bytes > HEAD_UNFINISHED_BYTES_MAX:
                self._refuse(errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX))

    def _parse(self, data: bytes) -> None:
        """Serve a request that offers another protocol as if it had not, as RFC 9110, 7.8 allows: Java's
        client offers HTTP/2 with every one. The parser would drop the body; a new one never saw the
        offer."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                data = self._without_offer() + data[offered.args[0] :]
                self.parser = httptools.HttpRequestParser(self)

    def _without_offer(self) -> bytes:
        """The head that was just parsed. Raises HttpParserError for CONNECT: that is nothing but an offer."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError("CONNECT cannot be declined")
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        return b"%b %b HTTP/%b\r\n%b\r\n" % (method, self.url, version, b"".join(fields))

    def _watch_head(self, read_bytes: int) -> None:
        """Bound a head that does not end, in bytes and time."""
        self._head_bytes += read_bytes
        if self._late is None:
            self._late = self.loop.call_later(self.head_seconds_max, self._head_is_late)
        if self._head_bytes > HEAD_UNFINISHED_BYTES_MAX:
            self._refuse(errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX))

    def _head_is_late(self) -> None:
        """It has not ended in time; unless it is we who do not read."""
        if self.flow.read_paused:
            self._late = self.loop.call_later(self.head_seconds_max, self._head_is_late)
        else:
            self._refuse(errors.RequestTimeout(self.head_seconds_max))

    def _refuse(self, error: errors.GatewayError) -> None:
        """Answer what did not become a request, then close; into an answer on its way nothing is put."""
        if self.transport.is_closing():
            return
        self._in_head, self._refused = False, True
        cycle = self._served
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or cycle is not self.cycle:
                self.transport.abort()
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if self.gone is not None:
                self.gone()
        fields = [(b"content-type", b"application/json"), errors.unnamed(), *error.headers()]
        if not error.closes:
            fields.append((b"connection", b"close"))
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        body = error.body()
        self.transport.write(
            b"HTTP/1.1 %d \r\n%bcontent-length: %d\r\n\r\n%b" % (error.status, head, len(body), body)
        )
        self.transport.close()

    # -- the parser calls these -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True
        self._idle_since = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer: nobody waits for it, and nothing bounds their number
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head, self._moved = False, True
        self._idle_since = None
        if self._late is not None:
            self._late.cancel()
            self._late, self._head_bytes = None, 0
        parser, cycle = self.parser, self.cycle
        if parser.should_upgrade():
            return  # see `_parse`
        free = cycle is None or cycle.response_complete
        serve = self._direct.get(self.url) if free and not self.expect_100_continue else None
        if serve is not None and parser.get_method() == b"POST" and parser.get_http_version() == "1.1":
            keep_alive = parser.should_keep_alive() and not self._ending.now
            arrival = DirectArrival(self, self.url.decode(), self.headers, keep_alive)
            self.cycle = self._served = arrival
            arrival.task = self.loop.create_task(arrival.run(serve))
            self.tasks.add(arrival.task)
        else:
            self._enter_asgi()

    def _enter_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.headers, self.expect_100_continue = url, headers, expects
        self.scope["headers"] = headers
        extensions: dict[str, Any] = {GONE: self.when_gone, ABORT: self.transport.abort}
        self.scope["extensions"] = extensions
        super().on_headers_complete()
        if self.gone is not None and 0 < len(self.pipeline) < WAITING_MAX:  # paused for the request behind
            self.flow.resume_reading()  # see `when_gone`
        cycle = self.cycle
        if self._ending.now:
            cycle.keep_alive = False
        if self.scope["http_version"] == "1.0" and isinstance(cycle, RequestResponseCycle):
            cycle.send = unchunked(cycle)  # type: ignore[assignment, method-assign]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._moved = True
        cycle = self.cycle
        if isinstance(cycle, DirectArrival):
            cycle.take(body)
        elif cycle is self._served:
            super().on_body(body)
        else:  # not for uvicorn, which would read no more, and so hide that the client leaves
            cycle.body += body
            if sum(len(one.body) for one, _ in self.pipeline) > WAITING_BYTES_MAX:
                self.transport.abort()

    def on_message_complete(self) -> None:
        self._moved = True
        if isinstance(self.cycle, DirectArrival):
            self.cycle.whole()
        elif not self.parser.should_upgrade():
            super().on_message_complete()

    # -- between requests -------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """An answer has left whole."""
        self.gone = None  # not at the next request: that may come, pipelined, while this one runs
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle()

    def _idle(self) -> None:
        """Nothing is asked from now on. One timer looks now and then: a timer for each silence would cost
        more than it is worth."""
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_after(self.timeout_keep_alive)

    def _look_after(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing was asked for too long."""
        self.timeout_keep_alive_task = None
        if self.transport.is_closing():
            return
        now, since = self.loop.time(), self._idle_since
        left = self.timeout_keep_alive if since is None else since + self.timeout_keep_alive - now
        if left > 0:
            self._look_after(left)
        else:
            self.transport.close()

    # -- the client leaves ------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Called by the transport: the client does not take what is written."""
        super().pause_writing()
        self.transport.expect_progress(self.unread_seconds_max)

    def shutdown(self) -> None:
        """Called by the server: the last answer is the last."""
        self._ending.now = True
        self.transport.linger_seconds = SHUTDOWN_LINGER_SECONDS
        if self.quiet_since is None:
            super().shutdown()
        else:
            seconds = FIRST_REQUEST_SECONDS if self.cycle is None else LAST_REQUEST_SECONDS
            self.loop.call_later(seconds, self._close_if_quiet)

    def _close_if_quiet(self) -> None:
        if self.quiet_since is not None:
            self.transport.close()

    def eof_received(self) -> None:
        """Called by the loop. Left to itself it would first write what the client does not read."""
        if self.gone is not None:
            self.transport.abort()
        else:
            self.transport.flush()  # its answer is complete; the loop closes now

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._served is not None:  # uvicorn tells the one that came last
            self._served.disconnected = True
            self._served.message_event.set()
        self._unset_keepalive_if_required()
        if self._late is not None:
            self._late.cancel()
        if self.gone is not None:
            self.gone()
        # All of these know the connection: left so, each would have to be found by the garbage collector.
        self.cycle = self._served = self.gone = None  # type: ignore[assignment]
        self.scope = None  # type: ignore[assignment]
        self.pipeline.clear()
        self.transport.lost()

    def when_gone(self, gone: Callable[[], None]) -> None:
        """Call this when the client leaves before its answer is complete; at once, if it has left already."""
        if self not in self.connections:
            gone()
            return
        self.gone = gone
        self.flow.resume_reading()  # uvicorn pauses at 64 KiB of body, and a paused socket shows no end

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
