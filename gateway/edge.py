"""The HTTP edge: what of a request is let in, by size and time, before anything is known of it.

Plain ASGI functions over uvicorn. httptools, which uvicorn uses, has no limit on headers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway import errors

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADER_FIELDS_MAX = 100
HEADER_BYTES_MAX = 65_536
BODY_SECONDS_MAX = 60.0
GONE = "slotgate.gone"  # in the scope's extensions: takes the call that a leaving client causes
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


async def read_body(receive: Receive, headers: dict[bytes, bytes], bytes_max: int) -> bytes:
    """The whole body.

    Raises BodyTooLarge (at once if the client declares it), RequestTimeout, ClientGone.
    """
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > bytes_max:
        raise errors.BodyTooLarge(bytes_max)
    message = await _first(receive)
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise errors.BodyTooLarge(bytes_max)
    if not message.get("more_body", False):
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await _rest(receive, body, bytes_max)
    except TimeoutError:
        raise errors.RequestTimeout(BODY_SECONDS_MAX) from None


async def _first(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise errors.ClientGone
    return message


async def _rest(receive: Receive, first: bytes, bytes_max: int) -> bytes:
    parts, size = [first], len(first)
    while True:
        message = await _first(receive)
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise errors.BodyTooLarge(bytes_max)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with what costs a request dearly in plain ASGI made cheap.

    An answer begins with a head and some events: two writes in ASGI, one packet on the wire. And a
    client that leaves is told by a call, where ASGI wants a task that waits for a message.
    """

    _gone: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoiningTransport(transport, self.loop))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        extensions: dict[str, Any] = {GONE: self._when_gone}
        self.scope["extensions"] = extensions

    def on_response_complete(self) -> None:
        self._gone = None  # not at the next request: that may come, pipelined, while this one runs
        super().on_response_complete()

    def eof_received(self) -> None:
        """Called by the loop. Left to itself it would first write what the client does not read."""
        if self._gone is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._gone is not None:
            self._gone()

    def _when_gone(self, gone: Callable[[], None]) -> None:
        self._gone = gone


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


class JoiningTransport(asyncio.Transport):
    """Holds a response's head back until what follows it, at most until the loop turns."""

    __slots__ = ("_head", "_inner", "_loop")

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send this; a head goes out with the next write."""
        if self._head:
            head, self._head = self._head, b""
            self._inner.write(head + data)
        elif data[:5] == b"HTTP/":
            self._head = bytes(data)
            self._loop.call_soon(self._flush)
        else:
            self._inner.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._inner.is_closing():  # lost since then: uvloop refuses, asyncio drops
            self._inner.write(head)

    def close(self) -> None:
        """Send what is pending, then close."""
        self._flush()
        self._inner.close()

    def abort(self) -> None:
        """Close at once."""
        self._head = b""
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._inner.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Of the socket below."""
        return self._inner.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Stop receiving."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Go on receiving."""
        self._inner.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who receives from now on."""
        self._inner.set_protocol(protocol)
