"""The HTTP edge: what of a request is let in, by size and time, before anything is known of it.

An `Arrival` is one request and the way to answer it. `AsgiArrival` works on any ASGI server; the one of
`server` is shorter, for our own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from itertools import chain
from typing import Any, Protocol

from gateway import errors
from gateway.errors import Headers
from gateway.intake import Intake

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Head = tuple[int, Headers]  # status and header fields of an answer

HEADER_FIELDS_MAX = 100
HEADER_BYTES_MAX = 65_536
BODY_SECONDS_MAX = 60.0
GONE = "slotgate.gone"  # in the scope's extensions: takes the call that a leaving client causes
ABORT = "slotgate.abort"  # there, too: closes the connection at once, whatever is still to be sent


class Arrival(Protocol):
    """One request of a client, and the way to answer it."""

    @property
    def path(self) -> str:
        """Without the query."""
        ...

    @property
    def fields(self) -> Headers:
        """The header fields, with lower-case names."""
        ...

    @property
    def task(self) -> asyncio.Task[Any]:
        """What serves it: cancelled to interrupt it."""
        ...

    async def body(self, intake: Intake) -> bytes:
        """The whole body. Raises BodyTooLarge (at once if the client declares it), RequestTimeout,
        QueueFull where too much of too many bodies is held, ShuttingDown, ClientGone."""
        ...

    def watch(self, gone: Callable[[], None]) -> None:
        """Call `gone` when the client leaves, by close, reset or half-close; on other servers than ours
        maybe also when the answer is complete. The body must have been read."""
        ...

    async def send(self, head: Head | None, body: bytes, *, last: bool) -> None:
        """Send the head of the answer, if there is one, and a piece of its body; `last`: nothing follows.
        Behind a head without content-length it goes in chunks. Waits for a client that reads slowly; to
        one that is gone nothing is sent."""
        ...


def headers_of(fields: Headers) -> dict[bytes, bytes]:
    """The request's headers by lower-case name; of a repeated one the last.

    Raises HeadersTooLarge.
    """
    if len(fields) > HEADER_FIELDS_MAX or sum(map(len, chain.from_iterable(fields))) > HEADER_BYTES_MAX:
        raise errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX)
    return dict(fields)


def declared_bytes(fields: Iterable[tuple[bytes, bytes]]) -> int:
    """How long the client says its body is; 0 if it does not."""
    for name, value in fields:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


class AsgiArrival:
    """A request in the terms of ASGI."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, body_seconds_max: float = BODY_SECONDS_MAX
    ) -> None:
        self.path: str = scope["path"]
        self.fields: Headers = scope["headers"]
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self._when_gone: Callable[[Callable[[], None]], None] | None
        self._when_gone = scope.get("extensions", {}).get(GONE)
        self._receive = receive
        self._send = send
        self._body_seconds_max = body_seconds_max
        self._watcher: asyncio.Task[None] | None = None

    async def body(self, intake: Intake) -> bytes:
        """See `Arrival`."""
        if declared_bytes(self.fields) > intake.body_bytes_max:
            raise errors.BodyTooLarge(intake.body_bytes_max)
        parts: list[bytes] = []
        size = 0
        async with intake.read(self._body_seconds_max) as reading:
            while (message := await self._receive())["type"] != "http.disconnect":
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                reading.has(size)
                reading.check()
                if not message.get("more_body", False):
                    return b"".join(parts)
            raise errors.ClientGone

    def watch(self, gone: Callable[[], None]) -> None:
        """See `Arrival`."""
        if self._when_gone is not None:
            self._when_gone(gone)
            return

        async def wait() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            gone()

        self._watcher = asyncio.get_running_loop().create_task(wait())

    async def send(self, head: Head | None, body: bytes, *, last: bool) -> None:
        """See `Arrival`."""
        if head is not None:
            status, headers = head
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
