"""An HTTP client that sees every byte and when it came, and can leave in every way a client can."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from tests.processes.process import WAIT_SECONDS

_BLANK_LINE = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and header fields (lower-case names) of a response, and when they were complete."""

    status: int
    headers: dict[str, str]
    at: float


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event, and when its last byte came (monotonic seconds)."""

    raw: bytes  # with its blank line
    at: float

    def field(self, name: str) -> str | None:
        """The lines of one field, joined; None if there is none."""
        lines = [line.partition(":") for line in re.split(r"\r\n|\r|\n", self.raw.decode())]
        values = [value.removeprefix(" ") for key, _, value in lines if key == name]
        return "\n".join(values) if values else None

    @property
    def data(self) -> str | None:
        """Its data; None for a comment."""
        return self.field("data")

    @property
    def done(self) -> bool:
        """Whether it is the end marker."""
        return self.data == "[DONE]"

    def json(self) -> dict[str, Any]:
        """Its data as an object."""
        value = json.loads(self.data or "null")
        assert isinstance(value, dict), self.raw
        return value

    @property
    def token(self) -> str:
        """The text it adds: content, reasoning, or a tool call's arguments."""
        if self.data is None or self.done:
            return ""
        delta = [c.get("delta", {"content": c.get("text")}) for c in self.json().get("choices", [])]
        calls = [call for d in delta for call in d.get("tool_calls") or []]
        texts = [d.get(name) for d in delta for name in ("reasoning_content", "reasoning", "content")]
        texts += [call["function"].get("arguments") for call in calls]
        return "".join(text for text in texts if text)


class RawClient:
    """One connection. `ended` says how the response body ended, once it has.

    clean: as its framing promises; cut: FIN before that; reset: RST.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
        self._reader = reader
        self._writer = writer
        self._seconds = seconds
        self._rest = b""  # of the body, not yet an event
        self._chunked = False
        self._left: int | None = None  # of a body with a length
        self.ended: Literal["clean", "cut", "reset"] | None = None

    @classmethod
    async def connect(cls, url: str, seconds: float = WAIT_SECONDS) -> Self:
        """Connect to the host and port of a URL; nothing later waits longer than `seconds`."""
        parts = urlsplit(url)
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
        return cls(reader, writer, seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()
        await asyncio.sleep(0)  # the socket is closed in the next turn

    # -- sending

    async def post(self, path: str, value: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Send a POST with a JSON body, or with these bytes."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        fields = [("Content-Type", "application/json"), *headers]
        await self.send("POST", path, body, fields)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Send a request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: test", *(f"{name}: {value}" for name, value in headers)]
        if body:
            lines.append(f"Content-Length: {len(body)}")
        await self.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    async def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        async with asyncio.timeout(self._seconds):
            await self._writer.drain()

    # -- receiving

    async def head(self) -> Head:
        """Read status line and header fields; ConnectionError if the peer closes before."""
        async with asyncio.timeout(self._seconds):
            try:
                data = await self._reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as error:
                raise ConnectionError(f"closed after {len(error.partial)} bytes") from None
        first, *lines = data.decode("latin-1").strip().split("\r\n")
        fields = [line.partition(":") for line in lines]
        headers = {name.lower(): value.strip() for name, _, value in fields}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        length = headers.get("content-length")
        self._left = int(length) if length is not None else None
        self.ended, self._rest = None, b""
        return Head(int(first.split(" ")[1]), headers, time.monotonic())

    async def body(self) -> bytes:
        """The rest of the body; see `ended`."""
        parts, self._rest = [self._rest], b""
        while data := await self._read():
            parts.append(data)
        return b"".join(parts)

    async def event(self) -> Event | None:
        """The next event or comment; None at the end. A broken last event is returned as it is."""
        while (found := _BLANK_LINE.search(self._rest)) is None:
            data = await self._read()
            if not data:
                raw, self._rest = self._rest, b""
                return Event(raw, time.monotonic()) if raw.strip() else None
            self._rest += data
        raw, self._rest = self._rest[: found.end()], self._rest[found.end() :]
        return Event(raw, time.monotonic())

    async def events(self) -> list[Event]:
        """All events up to the end."""
        events: list[Event] = []
        while (event := await self.event()) is not None:
            events.append(event)
        return events

    async def first_token(self) -> Event:
        """Read on to the first event that adds text."""
        while (event := await self.event()) is not None:
            if event.token:
                return event
        raise AssertionError(f"the stream ended without a token: {self.ended}")

    async def closed(self) -> float:
        """Wait for the peer's close, whatever it still sends; returns when it came."""
        async with asyncio.timeout(self._seconds):
            try:
                while await self._reader.read(65536):
                    pass
            except ConnectionError:
                pass
        return time.monotonic()

    # -- leaving; each returns the time just before

    def half_close(self) -> float:
        """FIN, but still reading."""
        now = time.monotonic()
        self._writer.write_eof()
        return now

    def close(self) -> float:
        """Close the socket: FIN, and RST for whatever the peer has sent or sends afterwards."""
        client: socket.socket = self._writer.get_extra_info("socket")
        now = time.monotonic()
        client.shutdown(socket.SHUT_WR)  # a close alone with unread data is an RST
        self._writer.transport.abort()
        return now

    def reset(self) -> float:
        """RST."""
        client: socket.socket = self._writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        now = time.monotonic()
        self._writer.transport.abort()
        return now

    async def _read(self) -> bytes:
        """Some of the body; empty at its end."""
        if self.ended is not None:
            return b""
        try:
            async with asyncio.timeout(self._seconds):
                if self._chunked:
                    return await self._chunk()
                return await self._some()
        except asyncio.IncompleteReadError:
            self.ended = "cut"
        except ConnectionError:
            self.ended = "reset"
        return b""

    async def _chunk(self) -> bytes:
        size = int((await self._reader.readuntil(b"\r\n")).partition(b";")[0], 16)
        data = await self._reader.readexactly(size + 2)
        if size == 0:
            self.ended = "clean"
        return data[:-2]

    async def _some(self) -> bytes:
        if self._left == 0:
            self.ended = "clean"
            return b""
        data = await self._reader.read(65536 if self._left is None else self._left)
        if not data:
            self.ended = "clean" if self._left is None else "cut"
        elif self._left is not None:
            self._left -= len(data)
        return data
