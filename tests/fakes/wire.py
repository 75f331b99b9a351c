"""HTTP/1.1 on an asyncio protocol, low enough that an engine can misbehave byte by byte.

The parser is not the gateway's on purpose: the judge must not share the mistakes of the judged.
"""

from __future__ import annotations

import asyncio
import http
import json
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

Headers = list[tuple[str, str]]
EVENTS = "text/event-stream"
JSON = "application/json; charset=utf-8"


@dataclass(slots=True)
class Request:
    """One request, its header fields and body as they were received."""

    method: str
    target: str
    headers: Headers
    body: bytes
    arrived: float
    connection: int  # serial number of its connection
    nth: int  # 1: the first on its connection

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def argument(self, name: str, default: str) -> str:
        """One value of the query."""
        return parse_qs(self.target.partition("?")[2]).get(name, [default])[0]

    def header(self, name: str) -> str:
        """The first field of that lower-case name, or an empty string."""
        return next((value for key, value in self.headers if key.lower() == name), "")


@dataclass(slots=True)
class Response:
    """One whole response."""

    status: int
    body: bytes = b""
    headers: Headers = field(default_factory=list)
    type: str = JSON


def json_response(value: Any, status: int = 200, headers: Headers | None = None) -> Response:
    """A response with a compact JSON body, as engines send it."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(status, body, headers or [])


def json_object(body: bytes) -> dict[str, Any] | None:
    """A body as an object, an empty one for no body; None: it is something else."""
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def head(status: int, headers: Headers) -> bytes:
    """Status line and header fields."""
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Malformed(Exception):
    """Bytes that are no HTTP request."""


class Door:
    """What all connections of one engine share: who serves them, and how many there are."""

    def __init__(
        self,
        serve: Callable[[Request, Connection], Awaitable[None]],
        idle_seconds: float,
        sees_leaving: bool = True,
    ) -> None:
        self.serve = serve
        self.idle_seconds = idle_seconds  # an idle connection is closed after this; 0: never
        self.sees_leaving = sees_leaving  # at once; else only when it writes
        self.connections = 0
        self.open = 0
        self.malformed = 0

    def __call__(self) -> Connection:
        """Take in one more connection."""
        return Connection(self)


class Connection(asyncio.Protocol):
    """One client. When it leaves, by FIN or RST, whatever is done for it is cancelled at once.

    Behind a door that does not see clients leave, a FIN is nothing while there is work, and a connection that
    is gone shows at the next write.
    """

    transport: asyncio.Transport

    def __init__(self, door: Door) -> None:
        self._door = door
        self._buffer = bytearray()
        self._requests: deque[Request] = deque()
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._received = 0
        self.left: float | None = None  # when the client's close was noticed
        self.closes = False  # after the current response
        self._working = False  # on a request
        self._lost = False  # nobody is there any more

    # -- the asyncio side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._door.connections += 1
        self._door.open += 1
        self.number = self._door.connections
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while self._buffer and (request := self._parse()) is not None:
                self._requests.append(request)
        except (Malformed, ValueError):
            self._door.malformed += 1
            self.transport.write(head(400, [("Connection", "close"), ("Content-Length", "0")]))
            self.transport.close()
        if self._requests:
            self._arrived.set()

    def eof_received(self) -> bool:
        if self._door.sees_leaving or not self._working:
            self._leave()
        return True  # our side stays open until the work has stopped

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.open -= 1
        self._lost = True
        if self._door.sees_leaving or not self._working:
            self._leave()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- the engine's side

    def write(self, data: bytes) -> None:
        """Send bytes, unless nobody is there; `drain` waits until the client has taken enough of them."""
        if not self.transport.is_closing():
            self.transport.write(data)
        elif self._lost:
            self._leave()

    async def drain(self) -> None:
        """Wait while the client does not read."""
        await self._writable.wait()

    def respond(self, response: Response, *, body_bytes: int | None = None) -> None:
        """Send a response, or only so much of the body it promises."""
        type = [("Content-Type", response.type)] if response.type else []
        headers = [*response.headers, *type, ("Content-Length", str(len(response.body)))]
        if self.closes:
            headers.append(("Connection", "close"))
        self.write(head(response.status, headers) + response.body[:body_bytes])

    def close(self) -> None:
        """FIN, once everything written has gone."""
        self.closes = True
        self.transport.close()

    def reset(self) -> None:
        """RST."""
        self.closes = True
        client: socket.socket = self.transport.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _leave(self) -> None:
        if self.left is None:
            self.left = time.monotonic()
            self._task.cancel()

    async def _run(self) -> None:
        try:
            while not self.closes:
                async with asyncio.timeout(self._door.idle_seconds or None):
                    await self._arrived.wait()
                request = self._requests.popleft()
                if not self._requests:
                    self._arrived.clear()
                self.closes = request.header("connection").lower() == "close"
                self._working = True
                await self._door.serve(request, self)
                self._working = False
        except (asyncio.CancelledError, TimeoutError):
            pass  # the client left, or said nothing for too long
        except Exception:
            traceback.print_exc()  # a defect of the fake: a test fails when there is anything on stderr
        finally:
            self.transport.close()

    def _parse(self) -> Request | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        method, target, version = first.split(" ")
        if version != "HTTP/1.1":
            raise Malformed(version)
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        fields = {name.lower(): value for name, value in headers}
        if "chunked" in fields.get("transfer-encoding", ""):
            found = _dechunk(self._buffer, end + 4)
            if found is None:
                return None
            body, stop = found
        else:
            stop = end + 4 + int(fields.get("content-length", "0"))
            if len(self._buffer) < stop:
                return None
            body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        self._received += 1
        return Request(method, target, headers, body, time.monotonic(), self.number, self._received)


def _dechunk(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """A chunked body and where it stops; None: not all there yet."""
    body = bytearray()
    while (end := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:end]).partition(b";")[0], 16)
        stop = end + 2 + size + 2
        if len(buffer) < stop:
            return None
        body += buffer[end + 2 : stop - 2]
        at = stop
        if size == 0:
            return bytes(body), stop
    return None
