"""The transport below uvicorn: what is written goes out with what others write, and no close loses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.outbox import Outbox

LINGER_SECONDS = 5.0  # as nginx waits between two reads of such a client


class LingeringTransport(asyncio.Transport):
    """Closes so that the client gets what was written. `unread`: the client may still be sending, and a
    socket closed then resets the connection, which takes the answer from the client."""

    __slots__ = (
        "_inner",
        "_lingers",
        "_loop",
        "_outbox",
        "_unread",
        "_unwritten",
        "_watched",
        "linger_seconds",
    )

    def __init__(
        self,
        inner: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        unread: Callable[[], bool],
        outbox: Outbox,
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._unread = unread
        self._outbox = outbox
        self._unwritten = b""
        self._lingers = False
        self._watched = False
        self.linger_seconds = LINGER_SECONDS

    def write(self, data: bytes) -> None:  # type: ignore[override]
        """Send this, within this turn of the loop; what comes behind it in the same turn sends both, or
        nobody would see that the client takes nothing."""
        if self._unwritten:
            self._unwritten += data
            self.flush()
        else:
            self._unwritten = data
            self._outbox.post(self.flush)

    def flush(self) -> None:
        """Send at once what waits for the end of the turn."""
        data, self._unwritten = self._unwritten, b""
        if data and not self._inner.is_closing():
            self._inner.write(data)

    def close(self) -> None:
        """Send what is pending, then close: at once, or when the client has, or after a while."""
        self.flush()
        if self._lingers or not self._unread() or self._inner.is_closing():
            self._inner.close()
            self._look(self.linger_seconds, None)  # a closed transport waits for its client without end
            return
        self._lingers = True
        self._inner.write_eof()
        self._inner.resume_reading()
        self._loop.call_later(self.linger_seconds, self._inner.abort)

    def expect_progress(self, seconds: float) -> None:
        """Until all is sent, give up on a client that takes nothing of it for so long."""
        if not self._watched:
            self._watched = True
            self._look(seconds, None)

    def _look(self, seconds: float, unsent_bytes: int | None) -> None:
        left = self._inner.get_write_buffer_size()
        if not left:
            self._watched = False
        elif left == unsent_bytes:
            self._inner.abort()
        else:
            self._loop.call_later(seconds, self._look, seconds, left)

    def abort(self) -> None:
        """Close at once."""
        self._unwritten = b""
        self._inner.abort()

    def lost(self) -> None:
        """The connection has ended: let go of who used it."""
        self._unread = _nothing

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._lingers or self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet."""
        return len(self._unwritten) + self._inner.get_write_buffer_size()

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


def _nothing() -> bool:
    """Nobody sends any more."""
    return False
