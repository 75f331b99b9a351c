"""Server-sent events as bytes: where they end, and what is in one.

Events of an engine are found, never rebuilt: what the splitter hands on is what it was fed. A line ends
with LF, CRLF or CR, and a blank line ends an event (WHATWG HTML, 9.2.6).
"""

from __future__ import annotations

import codecs
import json
import re

EVENT_BYTES_MAX = 16 * 1024 * 1024  # a whole reasoning trace or an image comes as one event of 3 MB

_end = re.compile(rb"[\r\n](?:\r\n?|(?<=\n)\n)").search  # a line end, and behind it a blank line


class EventTooLarge(Exception):
    """An event that did not end within the bound."""

    def __init__(self, size: int) -> None:
        super().__init__(f"an event of the engine has more than {size} bytes")
        self.size = size


class EventSplitter:
    """Cuts a stream of bytes into blocks of whole events.

    All blocks and `rest()` together are the bytes fed. Each byte is looked at once, however small the
    pieces in which a large event comes.
    """

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._pending = bytearray()
        self._seen = b"\n\n"  # the last two bytes of the stream; it starts as behind a blank line

    def feed(self, data: bytes) -> bytes:
        """The events that are whole now, with their blank lines; b"" if none is. Raises EventTooLarge."""
        if not self._pending and data.endswith(b"\n\n") and b"\r" not in data:
            self._seen = b"\n\n"
            return data
        end = _last_end(self._seen + data)
        self._seen = (self._seen + data[-2:])[-2:]
        if end is None:
            block = b""
            self._pending += data
        else:
            block = bytes(self._pending) + data[: end - 2]
            self._pending = bytearray(data[end - 2 :])
        if len(self._pending) > self._event_bytes_max:
            raise EventTooLarge(self._event_bytes_max)
        return block

    def rest(self) -> bytes:
        """The beginning of an event that has not ended."""
        return bytes(self._pending)


def _last_end(window: bytes) -> int | None:
    """Behind the last blank line; None if there is none.

    A CR that is the last byte may be half of a CRLF: after an LF it waits for the next byte. After a CR
    it does not, for a stream of lone CRs would else be one event late all the time.
    """
    end = window.rfind(b"\n\n")
    if b"\r" in window:
        stop = len(window) - 1 if window.endswith(b"\n\r") else len(window)
        end = max(end, window.rfind(b"\n\r", 0, stop))
        end = max(end, window.rfind(b"\r\r", max(end, 0), stop))
    if end < 0:
        return None
    return end + 3 if window[end + 1 : end + 3] == b"\r\n" else end + 2


def events(block: bytes) -> list[bytes]:
    """The single events of a block, blank lines included; a blank line too many is an event of its own."""
    if b"\r" not in block and b"\n\n\n" not in block and block.endswith(b"\n\n") and block[0] != 10:
        return [event + b"\n\n" for event in block[:-2].split(b"\n\n")]
    found = []
    start = 0
    while start < len(block):
        end = event_end(block, start)
        found.append(block[start:end])
        start = end
    return found


def event_end(block: bytes, start: int) -> int:
    """Where the event ends that begins at `start` of a block of whole events."""
    if block.startswith(b"\r\n", start):
        return start + 2
    if block.startswith((b"\r", b"\n"), start):
        return start + 1
    match = _end(block, start)
    return match.end() if match else len(block)


def event_of(value: object) -> bytes:
    """An event of our own, with this as its data."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, value: object) -> bytes:
    """The same with a name."""
    return b"event: " + name.encode() + b"\n" + event_of(value)


def data_of(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by LF; None if it has none, as comments have."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]  # as all our engines send those without a name
    lines = event.removeprefix(codecs.BOM_UTF8).splitlines()
    values = [line.removeprefix(b"data") for line in lines if line.startswith(b"data")]
    data = [value[1:].removeprefix(b" ") for value in values if value[:1] in (b":", b"")]
    return b"\n".join(data) if data else None
