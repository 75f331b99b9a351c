"""What a client may do to its connection: between requests, in a body, behind a request that runs."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvicorn
from uvicorn._types import ASGI3Application
from uvicorn.server import ServerState

from gateway.direct import DirectArrival, Serve
from gateway.edge import GONE, Arrival
from gateway.errors import ClientGone
from gateway.intake import Intake
from gateway.server import EdgeProtocol

OK = (200, [(b"content-length", b"2")])
DIRECT = b"POST /direct HTTP/1.1\r\nHost: x\r\n"
ASKED = DIRECT + b"Content-Length: 2\r\n\r\nhi"
BEHIND = b"GET /asgi HTTP/1.1\r\nHost: x\r\n\r\n"
SECONDS = 10.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
        async with asyncio.timeout(SECONDS):
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
async def server(serve: Serve, connections_max: int) -> AsyncIterator[tuple[int, ServerState]]:
    """A server for so many clients, by its port; and what it knows of them."""
    loop, state = asyncio.get_running_loop(), ServerState()
    config = uvicorn.Config(asgi, lifespan="off", log_config=None)
    config.load()
    more: dict[str, Any] = {"direct": {b"/direct": serve}, "connections_max": connections_max}
    listening = await loop.create_server(
        lambda: EdgeProtocol(config, state, {}, loop, **more), "127.0.0.1", 0
    )
    async with listening:
        try:
            yield listening.sockets[0].getsockname()[1], state
        finally:
            for task in state.tasks:
                task.cancel()


async def until(so: Callable[[], bool]) -> None:
    """Wait for it."""
    async with asyncio.timeout(SECONDS):
        while not so():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.001)


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
    """Reads the body and answers; nobody is told, as by the handler, where the client has left."""
    with suppress(ClientGone):
        await arrival.body(Intake(1000))
        await arrival.send(OK, b"ok", last=True)


class Endless:
    """Serves a stream that goes on until its client leaves."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def __call__(self, arrival: Arrival) -> None:
        await arrival.body(Intake(1000))
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
        await arrival.body(Intake(1000))
        fields.extend(arrival.fields)
        await arrival.send(OK, b"ok", last=True)

    async with connected(serve) as client:
        body = b"2\r\nhi\r\n0\r\nX-Slotgate-Agent: other\r\n\r\n"
        await client.write(DIRECT + b"Transfer-Encoding: chunked\r\n\r\n" + body)
        await client.until(b"ok")
    assert fields == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("end", [b"0\r\nX-Trailer: ", b"0\r\n", b"1;"])
@pytest.mark.parametrize("path", [b"/direct", b"/watch"])
async def test_trailers_are_bounded_in_bytes(path: bytes, end: bytes) -> None:
    """One that does not end is held by the parser: 100 MB of it took 80 MB."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
    async with connected(answer) as client:
        client.served.data_received(head + b"2\r\nhi\r\n" + end)
        fill = b"X-Field: %b\r\n" % (b"x" * 1000) if end == b"0\r\n" else b"x" * 1000
        for _ in range(400):
            client.served.data_received(fill)
        assert client.served.transport.is_closing()
        assert b"headers_too_large" in await client.rest()


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
    assert await arrival.body(Intake(100_000)) == b"".join(
        b"%02d" % (number % 100) for number in range(50_000)
    )


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


async def test_who_asks_late_whether_the_client_left_is_told_so() -> None:
    """A key may be claimed in Redis before the request is watched."""
    begun, left, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def late(arrival: Arrival) -> None:
        begun.set()
        await left.wait()
        arrival.watch(gone.set)

    async with connected(late) as client:
        await client.write(ASKED)
        async with asyncio.timeout(SECONDS):
            await begun.wait()
            client.writer.close()
            await until(lambda: not client.served.server_state.connections)
            left.set()
            await gone.wait()


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


# -- what a request is ---------------------------------------------------------------------------------

POST = b"POST /direct HTTP/1.1\r\nHost: x\r\n"
CHUNKS = b"\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
TE = b"Transfer-Encoding: chunked"
# Two readers of one of these may differ in where the request ends.
AMBIGUOUS = {
    "chunked and a length": POST + TE + b"\r\nContent-Length: 2" + CHUNKS,
    "a length and chunked": POST + b"Content-Length: 2\r\n" + TE + CHUNKS,
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\nhi",
    "a sign": POST + b"Content-Length: +2\r\n\r\nhi",
    "negative": POST + b"Content-Length: -2\r\n\r\nhi",
    "hexadecimal": POST + b"Content-Length: 0x2\r\n\r\nhi",
    "empty": POST + b"Content-Length: \r\n\r\nhi",
    "two words": POST + b"Content-Length: 2 2\r\n\r\nhi",
    "more than fits": POST + b"Content-Length: 99999999999999999999999\r\n\r\nhi",
    "another coding": POST + b"Transfer-Encoding: gzip\r\n\r\nhi",
    "chunked first": POST + b"Transfer-Encoding: chunked, gzip" + CHUNKS,
    "chunked twice": POST + TE + b"\r\n" + TE + CHUNKS,
    "chunked, chunked": POST + TE + b", chunked" + CHUNKS,
    "not quite chunked": POST + b"Transfer-Encoding: xchunked" + CHUNKS,
    "a control character": POST + b"Transfer-Encoding: \x0bchunked" + CHUNKS,
    "a blank before the colon": POST + b"Transfer-Encoding : chunked" + CHUNKS,
    "a letter like k": POST + b"Transfer-Encoding: chun\xe2\x84\xaaed" + CHUNKS,
    "a folded line": POST + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\nhi",
    "a folded first line": b"POST /direct HTTP/1.1\r\n Host: x\r\nContent-Length: 2\r\n\r\nhi",
    "a bare line feed": POST + b"X: a\nContent-Length: 2\r\n\r\nhi",
    "only line feeds": POST.replace(b"\r", b"") + b"Content-Length: 2\n\nhi",
    "a bare carriage return": POST + b"X: a\rContent-Length: 2\r\n\r\nhi",
    "a zero byte": POST + b"X: a\x00b\r\nContent-Length: 2\r\n\r\nhi",
    "a blank in a name": POST + b"X y: a\r\nContent-Length: 2\r\n\r\nhi",
    "no colon": POST + b"Xy\r\nContent-Length: 2\r\n\r\nhi",
    "no name": POST + b": a\r\nContent-Length: 2\r\n\r\nhi",
    "a negative chunk": POST + TE + CHUNKS.replace(b"2", b"-2"),
    "a chunk in C": POST + TE + CHUNKS.replace(b"2", b"0x2"),
    "chunks of line feeds": POST + TE + b"\r\n\r\n2\nhi\n0\n\n",
    "a chunk that is longer": POST + TE + CHUNKS.replace(b"hi", b"hiX"),
    "a chunk that overflows": POST + TE + CHUNKS.replace(b"2", b"F" * 17),
}


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_a_request_has_one_end(raw: bytes) -> None:
    """Whatever could be read in two ways is refused, and so is all that comes behind it."""
    read = []

    async def serve(arrival: Arrival) -> None:
        with suppress(ClientGone):
            read.append(await arrival.body(Intake(1000)))

    async with connected(serve) as client:
        await client.write(raw + b"GET /asgi HTTP/1.1\r\nHost: x\r\n\r\n")
        answered = await client.rest()
    assert answered.startswith(b"HTTP/1.1 400 ") and answered.count(b"content-type") == 1
    assert not read


# -- how many there are --------------------------------------------------------------------------------


async def test_silent_connections_make_room_for_others() -> None:
    """Who has asked nothing for longest goes first, half a head or none; who is served stays; and where all
    are served, the one that comes is not."""
    stream = Endless()
    async with server(stream, connections_max=3) as (port, state):
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        clients[1][1].write(b"POST /direct HT")
        await until(lambda: len(state.connections) == 2)
        served = []
        for number in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(ASKED)
            assert await asyncio.wait_for(reader.readuntil(b"begun"), SECONDS)
            served.append((reader, writer))
            await until(lambda number=number: len(state.connections) == min(3, 3 + number))
        for reader, _ in clients:
            with suppress(ConnectionResetError):
                assert not await asyncio.wait_for(reader.read(), SECONDS)
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        with suppress(ConnectionResetError):
            assert not await asyncio.wait_for(late.read(), SECONDS)
        assert len(state.connections) == 3
        assert not any(reader.at_eof() for reader, _ in served)
        for _, one in [*clients, *served, (late, writer)]:
            one.transport.abort()
        await until(lambda: not state.connections)


async def test_half_bodies_make_room_for_others() -> None:
    """After those that ask for nothing, who has sent no more of a body for longest."""
    stream = Endless()

    async def serve(arrival: Arrival) -> None:
        with suppress(ClientGone):
            await stream(arrival)

    def halves() -> list[int]:
        """How much there is of each body that is not whole."""
        cycles = [one.cycle for one in state.connections if isinstance(one, EdgeProtocol)]
        waiting = [one for one in cycles if isinstance(one, DirectArrival) and one.silent_since is not None]
        return sorted(one._size for one in waiting)

    async with server(serve, connections_max=3) as (port, state):

        async def come(data: bytes) -> Stream:
            client = await asyncio.open_connection("127.0.0.1", port)
            client[1].write(data)
            return client

        begun = POST + b"Content-Length: 9\r\n\r\na"
        first = await come(begun)
        await until(lambda: halves() == [1])
        second = await come(begun)
        await until(lambda: halves() == [1, 1])
        idle = await come(b"")
        await until(lambda: len(state.connections) == 3)
        first[1].write(b"b")
        await until(lambda: halves() == [1, 2])
        served = []
        for reader, _ in (idle, second, first):
            served.append(await come(ASKED))
            assert await asyncio.wait_for(served[-1][0].readuntil(b"begun"), SECONDS)
            with suppress(ConnectionResetError):
                assert not await asyncio.wait_for(reader.read(), SECONDS)
        for _, writer in (first, second, idle, *served):
            writer.transport.abort()
        await until(lambda: not state.connections)


async def test_a_body_behind_a_request_that_runs_hides_nothing() -> None:
    """However much of it was sent, the end behind it is seen; too much of it ends the connection."""
    for size, ends in ((200_000, True), (2_000_000, False)):
        stream = Endless()
        async with connected(stream) as client:
            head = b"POST /asgi HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
            await client.write(ASKED)
            await client.until(b"begun")
            with suppress(ConnectionError):
                await client.write(head + b"x" * size)
                if ends:
                    client.writer.write_eof()
            await asyncio.wait_for(stream.gone.wait(), SECONDS)


async def test_a_client_that_takes_nothing_of_its_answer_is_given_up() -> None:
    """It would hold a slot for as long as it likes."""

    async def flood(arrival: Arrival) -> None:
        await arrival.body(Intake(1000))
        arrival.watch(gone.set)
        while not gone.is_set():
            await arrival.send((200, []) if not sent else None, b"x" * 1_000_000, last=False)
            sent.append(1)

    gone, sent = asyncio.Event(), list[int]()
    async with connected(flood) as client:
        client.served.unread_seconds_max = 0.2
        await client.write(ASKED)
        await asyncio.wait_for(gone.wait(), SECONDS)
