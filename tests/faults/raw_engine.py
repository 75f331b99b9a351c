"""An engine on a raw socket, in the test's own process: its bytes are the test's, right or wrong.

Probes and well-meant requests are answered as an engine does; a request whose last message begins with
`fails` gets what `play` writes. The engine counts how often each request came: that is how a test sees
that nothing was generated twice.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

FAILS = "fails"
MODELS = b'{"object":"list","data":[{"id":"fake-model","object":"model"}]}'
FINISH = b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = EVENTS + b"Transfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = EVENTS + b"Connection: close\r\n\r\n"


class Peer:
    """The gateway's end of one request, as the engine sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, stream: bool) -> None:
        self._reader = reader
        self._writer = writer
        self.stream = stream  # what the request asked for

    async def send(self, data: bytes) -> None:
        """Write these bytes; ConnectionError once the gateway has closed."""
        self._writer.write(data)
        await self._writer.drain()

    async def hold(self) -> None:
        """Say nothing more, for as long as the gateway stays."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """RST."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Play = Callable[[Peer], Awaitable[None]]


class RawEngine:
    """Serves one request per connection: on one that had served before, a failure may be repeated."""

    def __init__(self) -> None:
        self.url = ""
        self.play: Play = nothing
        self.asked: Counter[str] = Counter()  # by the text of the last message
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until somebody closes."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        body = await reader.readexactly(int(fields.get(b"Content-Length", b"0")))
        if head.startswith(b"GET /v1/models "):
            writer.write(document(MODELS))
        elif head.startswith(b"GET "):
            writer.write(document(b"{}", b"404 Not Found"))
        else:
            asked = json.loads(body)
            key, stream = asked["messages"][-1]["content"], asked.get("stream") is True
            self.asked[key] += 1
            if key.startswith(FAILS):
                await self.play(Peer(reader, writer, stream=stream))
            else:
                writer.write(answer(stream=stream))
        await writer.drain()

    async def close(self) -> None:
        """End what is still being served."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def nothing(peer: Peer) -> None:
    """Close without a byte."""


@asynccontextmanager
async def raw_engine() -> AsyncIterator[RawEngine]:
    """Run one on a free port."""
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2**26)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await engine.close()


# -- right answers, to be spoilt ------------------------------------------------------------------------


def token(text: str = "word ") -> bytes:
    """The data of one event."""
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode()


def event(data: bytes) -> bytes:
    """One event, whole."""
    return b"data: " + data + b"\n\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def document(body: bytes, status: bytes = b"200 OK", fields: bytes = b"") -> bytes:
    """A whole JSON answer."""
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
    return head % (status, len(body), fields) + body


def completion(text: str = "word ") -> bytes:
    """The body of a chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return json.dumps({"object": "chat.completion", "choices": [choice]}).encode()


def answer(*, stream: bool) -> bytes:
    """A whole good answer, head included."""
    if not stream:
        return document(completion())
    events = [event(token()), event(token()), event(FINISH), event(b"[DONE]")]
    return CHUNKED + b"".join(map(chunk, events)) + b"0\r\n\r\n"
