"""What a client may do to its connection: between requests, in a body, behind a request that runs."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.server import ServerState

from gateway.direct import DirectArrival, Serve
from gateway.edge import GONE, Arrival
from gateway.server import EdgeProtocol

OK = (200, [(b"content-length", b"2")])
DIRECT = b"POST /direct HTTP/1.1\r\nHost: x\r\n"
ASKED = DIRECT + b"Content-Length: 2\r\n\r\nhi"
BEHIND = b"GET /asgi HTTP/1.1\r\nHost: x\r\n\r\n"
SECONDS = 10.0


class Connection:
    """A client's connection, and our end of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: EdgeProtocol
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.served = served

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ended(self) -> None:
        """Nothing is served to it any more."""
        state = self.served.server_state
        while state.connections or state.tasks:  # noqa: ASYNC110 - nothing tells when they are empty
            await asyncio.sleep(0)

    async def until(self, end: bytes) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(end)

    async def rest(self) -> bytes:
        """All up to the close, which must come."""
        async with asyncio.timeout(SECONDS):
            return await self.reader.read()


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    """Answers in a word; by another name, when its client has left."""
    if scope["path"] == "/watch":
        gone = asyncio.Event()
        scope["extensions"][GONE](gone.set)
        await gone.wait()
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"asgi"})


@asynccontextmanager
async def connected(
    serve: Serve, keep_alive_seconds: float = 60.0, app: ASGI3Application = asgi
) -> AsyncIterator[Connection]:
    """A server with one client."""
    loop, state = asyncio.get_running_loop(), ServerState()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.timeout_keep_alive = keep_alive_seconds  # type: ignore[assignment]
    config.load()
    made: asyncio.Queue[EdgeProtocol] = asyncio.Queue()

    def protocol() -> EdgeProtocol:
        one = EdgeProtocol(config, state, {}, loop, direct={b"/direct": serve})
        made.put_nowait(one)
        return one

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        client = Connection(reader, writer, await made.get())
        try:
            yield client
        finally:
            for task in state.tasks:
                task.cancel()
            for transport in (writer.transport, client.served.transport):
                transport.abort()
            await client.ended()


async def refuse(arrival: Arrival) -> None:
    """Answers without a look at the body, as to a key that is not known."""
    await arrival.send(OK, b"no", last=True)


async def answer(arrival: Arrival) -> None:
    """Reads the body and answers."""
    await arrival.body(1000)
    await arrival.send(OK, b"ok", last=True)


class Endless:
    """Serves a stream that goes on until its client leaves."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, arrival: Arrival) -> None:
        await arrival.body(1000)
        arrival.watch(self.gone.set)
        await arrival.send((200, []), b"begun", last=False)
        await self.gone.wait()


# -- bodies that nobody wants


async def test_a_body_behind_its_answer_is_not_kept() -> None:
    """A client that may not ask would else fill the memory with what it sends."""
    arrivals: list[Arrival] = []

    async def serve(arrival: Arrival) -> None:
        arrivals.append(arrival)
        await refuse(arrival)

    async with connected(serve) as client:
        await client.write(DIRECT + b"Transfer-Encoding: chunked\r\n\r\n")
        await client.until(b"no")
        await client.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n0\r\n\r\n" + BEHIND)
        await client.until(b"asgi")
    assert isinstance(arrivals[0], DirectArrival)
    assert not arrivals[0]._size


@pytest.mark.parametrize("late", [b"\r\n", b"POST /direct"], ids=["a line", "a body"])
async def test_a_connection_on_which_nothing_is_asked_is_closed(late: bytes) -> None:
    """Also when a line too many comes behind a request, or a part of a body behind its answer."""
    async with connected(refuse, keep_alive_seconds=0.05) as client:
        if late != b"\r\n":
            await client.write(DIRECT + b"Content-Length: 200\r\n\r\n")
            await client.until(b"no")
        await client.write(late)
        await client.rest()


async def test_trailers_are_no_header_fields() -> None:
    """They come when all is decided, and without a bound."""
    fields: list[tuple[bytes, bytes]] = []

    async def serve(arrival: Arrival) -> None:
        await arrival.body(1000)
        fields.extend(arrival.fields)
        await arrival.send(OK, b"ok", last=True)

    async with connected(serve) as client:
        body = b"2\r\nhi\r\n0\r\nX-Slotgate-Agent: other\r\n\r\n"
        await client.write(DIRECT + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        await client.until(b"ok")
    assert fields == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]


async def test_a_body_in_tiny_pieces_takes_no_more_memory_than_another() -> None:
    """Each piece as an object of its own would be 25 times its bytes: 32 MiB would fill 900 MB."""
    state = ServerState()
    protocol = EdgeProtocol(uvicorn.Config(asgi, log_config=None), state, {})
    arrival = DirectArrival(protocol, "/direct", [], keep_alive=True)
    tracemalloc.start()
    try:
        for number in range(50_000):
            arrival.take(b"%02d" % (number % 100))
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()
    arrival.whole()
    assert await arrival.body(100_000) == b"".join(b"%02d" % (number % 100) for number in range(50_000))


# -- requests behind one that runs


async def test_a_client_with_two_requests_in_one_write_is_noticed_when_it_leaves() -> None:
    """Reading is paused for the second one while nobody has asked to be told."""
    stream = Endless()
    async with connected(stream) as client:
        await client.write(ASKED + BEHIND)
        await client.until(b"begun")
        client.writer.close()
        async with asyncio.timeout(SECONDS):
            await stream.gone.wait()


async def test_a_client_that_leaves_with_two_requests_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    """Below ASGI as on it: that the first one has no answer is said to nobody, nor logged."""
    async with connected(answer) as client:
        await client.write(BEHIND.replace(b"/asgi", b"/watch") + BEHIND)
        client.writer.close()
        async with asyncio.timeout(SECONDS):
            await client.ended()
    assert not caplog.records


async def test_garbage_behind_a_request_that_waits_does_not_get_into_the_answer_before() -> None:
    """The answer on its way is the first one's, whatever became of the second."""
    stream = Endless()
    async with connected(stream) as client:
        await client.write(ASKED)
        await client.until(b"begun\r\n")
        await client.write(BEHIND)
        await client.write(b"\x00garbage\r\n\r\n")
        with suppress(ConnectionError):
            assert await client.rest() == b""
        assert stream.gone.is_set()


async def test_requests_behind_one_that_runs_are_bounded() -> None:
    """Beyond some the connection is not read: they would cost a hundred times their bytes."""
    stream = Endless()
    async with connected(stream) as client:
        await client.write(ASKED)
        await client.until(b"begun\r\n")
        for _ in range(100):
            if not client.served.flow.read_paused:
                client.served.data_received(BEHIND)
        assert 1 < len(client.served.pipeline) < 100


async def test_a_head_that_we_do_not_read_is_not_late() -> None:
    """It stands behind more requests than are read; the one that runs is not to be cut off for it."""
    stream = Endless()
    async with connected(stream) as client:
        await client.write(ASKED)
        await client.until(b"begun\r\n")
        client.served.data_received(BEHIND * 100 + b"GET /asgi HT")
        assert client.served.flow.read_paused
        client.served._head_is_late()
        assert not client.served.transport.is_closing()
        client.served.flow.resume_reading()
        client.served._head_is_late()
        assert client.served.transport.is_closing()


async def test_each_head_has_bounds_of_its_own() -> None:
    """However many stand one behind the other, each read in the middle of one."""
    request = BEHIND.replace(b"\r\n\r\n", b"\r\nX-Fill: %b\r\n\r\n" % (b"x" * 50_000))
    async with connected(answer) as client:
        client.served.data_received(request[:10])
        for _ in range(10):
            late = client.served._late
            client.served.data_received(request[10:] + request[:10])
            await client.until(b"asgi")
            assert client.served._late is not late


async def test_two_offers_of_another_protocol_in_one_write() -> None:
    """Both are declined, both requests are served."""
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    async with connected(answer) as client:
        await client.write((DIRECT + offer + b"Content-Length: 2\r\n\r\nhi") * 2)
        await client.until(b"ok")
        assert (await client.until(b"asgi")).startswith(b"HTTP/1.1 200 ")  # whatever waits goes there


async def test_an_offer_over_http_1_0_is_answered_as_that() -> None:
    """It knows no second request on a connection."""
    async with connected(answer) as client:
        await client.write(b"GET /asgi HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert b"connection: close" in await client.rest()
