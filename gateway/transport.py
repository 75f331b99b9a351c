"""The transport below uvicorn, whose close loses nothing that was written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

LINGER_SECONDS = 5.0  # as nginx waits between two reads of such a client


class LingeringTransport(asyncio.Transport):
    """Closes so that the client gets what was written. `unread`: the client may still be sending, and a
    socket closed then resets the connection, which takes the answer from the client."""

    __slots__ = ("_inner", "_lingers", "_loop", "_unread", "_watched", "linger_seconds", "write")

    def __init__(
        self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop, unread: Callable[[], bool]
    ) -> None:
        self._inner = inner
        self._loop = loop
        self._unread = unread
        self._lingers = False
        self._watched = False
        self.linger_seconds = LINGER_SECONDS
        self.write = inner.write  # type: ignore[method-assign]

    def close(self) -> None:
        """Send what is pending, then close: at once, or when the client has, or after a while."""
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
        self._inner.abort()

    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return self._lingers or self._inner.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that are not sent yet."""
        return self._inner.get_write_buffer_size()

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
