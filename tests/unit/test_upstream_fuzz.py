"""The parsing of responses, mostly without sockets: every split, every cut, what no engine should send."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.exchange import FIELDS_MAX, FRAMING_BYTES_MAX, READ_BYTES, UNREAD_BYTES_MAX, Connection
from gateway.upstream import ConnectionLost, Exchange, Head, Upstream
from tests.fuzzing import examples

Result = TypeVar("Result")


class FakeTransport(asyncio.Transport):
    """A transport that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.unsent_bytes = 0
        self.reading = True
        self.aborted = False
        self.eof_written = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.aborted:
            raise RuntimeError("closed")  # as uvloop does
        self.written.append(bytes(data))

    def write_eof(self) -> None:
        self.eof_written = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.aborted

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.aborted = True


class Wire:
    """One exchange on a connection whose other end is the test."""

    def __init__(self, method: str = "POST", *, reuse: bool = True) -> None:
        self.upstream = Upstream("http://engine", reuse=reuse)
        self.exchange = Exchange(bodiless=method == "HEAD")
        self.connection = Connection(self.upstream, self.exchange)
        self.transport = FakeTransport()
        self.connection.connection_made(self.transport)
        self.connection.submit(b"the request")

    def ask_again(self, method: str = "POST") -> None:
        """The next exchange, on the same connection."""
        self.exchange = Exchange(bodiless=method == "HEAD")
        assert self.upstream._take(self.exchange) is self.connection
        self.connection.submit(b"the next request")

    def arrive(self, pieces: Iterable[bytes]) -> None:
        """Bytes of the engine, piece by piece, as long as anyone takes them."""
        for piece in pieces:
            if not self.transport.aborted:
                self.connection.data_received(piece)

    def close(self) -> None:
        """The engine closes, in order."""
        if not self.transport.aborted:
            self.connection.eof_received()
        self.lose()

    def lose(self) -> None:
        """The connection is gone, as a loop tells it last of all."""
        self.connection.connection_lost(None)
        assert (self.upstream.connections, self.upstream.idle) == (0, 0)

    @property
    def kept(self) -> bool:
        """Whether the connection waits for the next request; if not, it must be open or closed for good."""
        assert self.transport.aborted == (self.upstream.connections == 0)
        return self.upstream.idle == 1


def now(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of what must not have to wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    coroutine.close()
    raise AssertionError("it waits, though nothing more can come")


class Response(NamedTuple):
    """A response on the wire and what it says."""

    wire: bytes
    body: bytes
    to_eof: bool = False  # only the end of the stream ends it
    kept: bool = True
    method: str = "POST"
    status: int = 200


RESPONSES = {
    "content-length": Response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "empty": Response(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    "chunked": Response(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: x\r\n\r\n",
        b"hello",
    ),
    "chunked and coded": Response(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked \r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"
    ),
    "close and length": Response(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", b"hello", kept=False
    ),
    "close and chunked": Response(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        b"a",
        kept=False,
    ),
    "to the end": Response(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello", b"hello", True, False),
    "to the end, 1.0": Response(b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello", True, False),
    "to the end, coded": Response(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\nhello", b"hello", True, False
    ),
    "1.0 kept": Response(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", b"hello"
    ),
    "204": Response(b"HTTP/1.1 204 No Content\r\n\r\n", b"", status=204),
    "304": Response(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b"", status=304),
    "HEAD": Response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", b"", kept=False, method="HEAD"),
    "HEAD without length": Response(b"HTTP/1.1 200 OK\r\n\r\n", b"", kept=False, method="HEAD"),
    "100 and 102 first": Response(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n"
        b"HTTP/1.1 400 Bad\r\nContent-Length: 5\r\n\r\nhello",
        b"hello",
        status=400,
    ),
    "no reason": Response(b"HTTP/1.1 529\r\nContent-Length: 5\r\n\r\nhello", b"hello", status=529),
}
every_response = pytest.mark.parametrize("response", RESPONSES.values(), ids=RESPONSES.keys())


def expect_whole(wire: Wire, response: Response) -> None:
    """Head, body and end of this response are there to be read, and the connection went where it belongs."""
    head = now(wire.exchange.head())
    assert head.status == response.status
    assert now(wire.exchange.body(100)) == response.body
    assert wire.exchange.complete
    assert wire.exchange.answered


@every_response
async def test_a_response_split_anywhere_is_the_same_response(response: Response) -> None:
    """Cut in two at every byte, and byte by byte, head, body and the fate of the connection are the same."""
    data = response.wire
    splits = [[data[:cut], data[cut:]] for cut in range(1, len(data))]
    splits.append([data[at : at + 1] for at in range(len(data))])
    for pieces in splits:
        wire = Wire(response.method)
        wire.arrive(pieces)
        if response.to_eof:
            assert not wire.exchange.complete
            wire.close()
        expect_whole(wire, response)
        assert wire.kept is response.kept


@every_response
async def test_a_response_cut_short_is_lost(response: Response) -> None:
    """Closed before its end it raises ConnectionLost; only a body that the end ends is whole anywhere."""
    head_ends = response.wire.rindex(b"\r\n\r\n") + 4 if response.to_eof else len(response.wire)
    for cut in range(len(response.wire)):
        wire = Wire(response.method)
        wire.arrive([response.wire[:cut]] if cut else [])
        wire.close()
        if cut >= head_ends:
            assert now(wire.exchange.body(100)) == response.wire[head_ends:cut]
            assert wire.exchange.complete
            continue
        with pytest.raises(ConnectionLost) as lost:
            now(wire.exchange.body(100))
        assert (lost.value.answered, lost.value.reused) == (cut > 0, False)
        assert not wire.exchange.complete


async def test_a_reset_ends_no_body() -> None:
    """Without an orderly end, a body that lasts to the end is not known to be whole."""
    wire = Wire()
    wire.arrive([RESPONSES["to the end"].wire])
    wire.connection.connection_lost(ConnectionResetError(104, "reset by peer"))
    assert now(wire.exchange.read()) == b"hello"
    with pytest.raises(ConnectionLost, match="reset by peer"):
        now(wire.exchange.read())


async def test_names_are_lower_case_and_repeated_fields_are_joined() -> None:
    """Values come without the spaces around them; an empty one is empty."""
    wire = Wire()
    wire.arrive(
        [b"HTTP/1.1 200 OK\r\nX-A:\t a \r\nx-a: b\r\nEmpty:\r\nX-\xe9: \xe9\r\nContent-Length:0 \r\n\r\n"]
    )
    with pytest.raises(ConnectionLost):  # a name is ASCII
        now(wire.exchange.head())
    wire = Wire()
    wire.arrive(
        [b"HTTP/1.1 200 OK\r\nX-A:\t a \r\nx-a: b\r\nEmpty:\r\nX-B: \xe9\r\nContent-Length:0 \r\n\r\n"]
    )
    headers = {"x-a": "a, b", "empty": "", "x-b": "\xe9", "content-length": "0"}
    assert now(wire.exchange.head()) == Head(200, headers)


UNUSABLE = {
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "switching": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx",
    "switching, bare": b"HTTP/1.1 101 Switching\r\n\r\n",
    "status 0": b"HTTP/1.1 000 OK\r\nContent-Length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi",
    "length and chunked": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "length too long": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunk too long": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
    "too many fields": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (FIELDS_MAX + 1) + b"\r\n",
}


@pytest.mark.parametrize("data", UNUSABLE.values(), ids=UNUSABLE.keys())
async def test_what_is_not_a_response_ends_the_connection(data: bytes) -> None:
    """It is closed at once, and the reader gets a loss that says why."""
    wire = Wire()
    wire.arrive([data])
    assert wire.transport.aborted
    with pytest.raises(ConnectionLost, match=r"not an HTTP response: .+") as lost:
        now(wire.exchange.body(100))
    assert lost.value.answered


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "one header": (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n"),
    "1xx": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "line breaks": (b"", b"\r\n"),
    "chunk extension": (STREAM + b"1;", b"a"),
    "trailers": (STREAM + b"1\r\na\r\n0\r\n", b"X: a\r\n"),
}


@pytest.mark.parametrize(("start", "more"), ENDLESS.values(), ids=ENDLESS.keys())
async def test_nothing_but_a_body_is_endless(start: bytes, more: bytes) -> None:
    """Head, 1xx, chunk extensions and trailers have a bound, after which the connection is aborted."""
    wire = Wire()
    piece = more * (4096 // len(more))
    wire.arrive([start] if start else [])
    for _ in range(FRAMING_BYTES_MAX // len(piece) - 1):
        wire.connection.data_received(piece)
    aborted_early = wire.transport.aborted
    wire.arrive([piece] * 3)
    assert not aborted_early
    assert wire.transport.aborted
    with pytest.raises(ConnectionLost):
        now(wire.exchange.body(100))


async def test_a_stream_of_small_chunks_is_as_long_as_it_likes() -> None:
    """The framing of many chunks does not add up: only a silence of the body is bounded."""
    wire = Wire()
    wire.arrive([STREAM])
    for _ in range(20):
        wire.arrive([b"1\r\na\r\n" * (FRAMING_BYTES_MAX // 60)])
        assert set(now(wire.exchange.read())) == set(b"a")
    wire.arrive([b"0\r\n\r\n"])
    assert wire.kept


async def test_many_heads_on_one_connection_do_not_add_up() -> None:
    """The bound holds for each response anew, whether or not it has a body."""
    wire = Wire()
    head = b"HTTP/1.1 204 No Content\r\nX: %b\r\n\r\n" % (b"a" * (FRAMING_BYTES_MAX // 2))
    for _ in range(4):
        wire.arrive([head[:100], head[100:]])
        assert now(wire.exchange.head()).status == 204
        assert wire.kept
        wire.ask_again()


async def test_a_connection_that_broke_before_the_request_is_lost() -> None:
    """Known to the transport but not yet told to us: nothing is written, and the loss follows."""
    upstream = Upstream("http://engine")
    exchange = Exchange()
    connection = Connection(upstream, exchange)
    transport = FakeTransport()
    connection.connection_made(transport)
    transport.aborted = True
    connection.submit(b"the request")
    connection.connection_lost(BrokenPipeError(32, "broken pipe"))
    with pytest.raises(ConnectionLost, match="broken pipe") as lost:
        now(exchange.head())
    assert (lost.value.answered, lost.value.reused, transport.written) == (False, False, [])


async def test_an_answer_before_the_request_ends_the_connection() -> None:
    """It is the answer, but whatever made the engine send it, nothing is written any more."""
    upstream = Upstream("http://engine")
    exchange = Exchange()
    connection = Connection(upstream, exchange)
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.data_received(RESPONSES["content-length"].wire)
    connection.submit(b"the request")
    assert now(exchange.body(100)) == b"hello"
    assert transport.aborted
    assert (transport.written, upstream.connections) == ([], 0)


async def test_a_connection_that_opens_after_the_close_is_ended() -> None:
    """It was on its way when the gateway closed: no request goes out on it, its exchange is lost."""
    upstream = Upstream("http://engine")
    await upstream.close()
    exchange = Exchange()
    connection = Connection(upstream, exchange)
    transport = FakeTransport()
    connection.connection_made(transport)
    connection.submit(b"the request")
    assert (transport.aborted, transport.written, upstream.connections) == (True, [], 0)
    with pytest.raises(ConnectionLost, match="the gateway closes"):
        now(exchange.head())


async def test_an_idle_connection_that_broke_is_not_taken() -> None:
    """Known to the transport but not yet told to us: the next request gets another connection."""
    wire = Wire()
    wire.arrive([RESPONSES["content-length"].wire])
    assert wire.kept
    wire.transport.aborted = True
    assert wire.upstream._take(Exchange()) is None
    assert (wire.upstream.connections, wire.upstream.idle) == (0, 0)


async def test_reading_stops_at_the_bound_and_goes_on_once_all_is_read() -> None:
    """In portions, so that others have their turn. Also a complete response that nobody has read leaves the
    connection able to read."""
    wire = Wire()
    piece = bytes(1 << 16)
    wire.arrive([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (2 * UNREAD_BYTES_MAX)])
    for _ in range(UNREAD_BYTES_MAX // len(piece)):
        wire.arrive([piece])
        assert wire.transport.is_reading()
    wire.arrive([piece])
    assert not wire.transport.is_reading()
    portions = []
    while not wire.transport.is_reading():
        portions.append(await wire.exchange.read())
    assert sum(map(len, portions)) == UNREAD_BYTES_MAX + len(piece)
    assert max(map(len, portions)) == READ_BYTES
    wire.arrive([piece])
    assert wire.transport.is_reading()
    wire.arrive([piece] * (UNREAD_BYTES_MAX // len(piece) - 2))
    assert wire.kept

    wire = Wire()
    wire.arrive([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (UNREAD_BYTES_MAX + 2)])
    wire.arrive([bytes(UNREAD_BYTES_MAX + 1)])
    assert not wire.transport.is_reading()
    wire.arrive([b"x"])
    assert wire.transport.is_reading()
    assert wire.kept


async def test_an_early_answer_to_an_unsent_request_ends_the_connection() -> None:
    """Bytes of the request still wait to be written: the engine may take them for a request of their own."""
    wire = Wire()
    wire.transport.unsent_bytes = 1
    wire.arrive([RESPONSES["content-length"].wire])
    assert not wire.kept
    expect_whole(wire, RESPONSES["content-length"])


async def test_a_leave_drops_what_arrives_and_ends_with_the_response() -> None:
    """Half-closed at once; nothing is stored, and reading goes on although nobody reads."""
    wire = Wire()
    wire.arrive([STREAM, b"2\r\nhi\r\n"])
    left = wire.exchange.leave(60.0)
    assert wire.transport.eof_written
    size = 2 * UNREAD_BYTES_MAX
    wire.arrive([b"%x\r\n" % size, bytes(size), b"\r\n"])
    assert wire.transport.is_reading()
    assert not left.done()
    wire.arrive([b"0\r\n\r\n"])
    assert left.done()
    assert not wire.kept
    with pytest.raises(ConnectionLost, match="left by the gateway"):
        now(wire.exchange.read())


async def test_a_leave_before_the_head_ends_with_the_engines_close() -> None:
    """The engine closes without an answer: it has stopped."""
    wire = Wire()
    left = wire.exchange.leave(60.0)
    wire.close()
    assert left.done()
    assert wire.exchange.leave(60.0) is left


# any bytes

tokens = st.text("abcXYZ-", min_size=1, max_size=8).map(str.encode)
values = st.binary(max_size=12).map(lambda value: bytes(byte for byte in value if 0x20 <= byte != 0x7F))
fields = st.lists(st.tuples(tokens.map(lambda name: b"x-" + name), values), max_size=6)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
cuts = st.lists(st.integers(0, 1000), max_size=12)


def in_pieces(data: bytes, at: Sequence[int]) -> list[bytes]:
    """The data, cut at these places."""
    places = [0, *sorted({place % len(data) for place in at} - {0}), len(data)] if data else [0]
    return [data[start:end] for start, end in pairwise(places)]


@given(fields, bodies, st.sampled_from(["length", "chunked", "close"]), cuts, st.booleans())
@examples(100)
async def test_any_cutting_of_a_response_gives_its_head_and_body(
    pairs: list[tuple[bytes, bytes]], parts: list[bytes], framing: str, at: list[int], interim: bool
) -> None:
    """What was put together is what is read, whatever the pieces in which it arrives."""
    whole = b"".join(parts)
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % pair for pair in pairs)
    if framing == "length":
        data = head + b"Content-Length: %d\r\n\r\n" % len(whole) + whole
    elif framing == "chunked":
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        data = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    else:
        data = head + b"Connection: close\r\n\r\n" + whole
    wire = Wire()
    wire.arrive(in_pieces(b"HTTP/1.1 100 Continue\r\n\r\n" * interim + data, at))
    if framing == "close":
        wire.close()
    headers = now(wire.exchange.head()).headers
    for name, _ in pairs:
        same = [value.decode("latin-1").strip() for other, value in pairs if other.lower() == name.lower()]
        assert headers[name.decode().lower()] == ", ".join(same)
    assert now(wire.exchange.body(len(whole))) == whole
    assert wire.kept is (framing != "close")


fragments = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.0 204 x\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Connection: close\r\n",
        b"Connection: upgrade\r\nUpgrade: x\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"0\r\nTrailer: x\r\n\r\n",
        b"abc",
        b" ",
        b"\0",
    ]
)
anything = st.lists(st.one_of(fragments, fragments, st.binary(max_size=8)), max_size=14).map(b"".join)


@given(anything, cuts, st.sampled_from(["POST", "HEAD"]), st.booleans(), st.booleans())
@examples(500)
async def test_any_bytes_give_a_response_or_a_loss(
    data: bytes, at: list[int], method: str, orderly: bool, idle: bool
) -> None:
    """Nothing an engine sends makes a reader wait for ever, raises anything else, or leaks a connection."""
    wire = Wire(method)
    if idle:  # before it, a request was served on this connection
        wire = Wire()
        wire.arrive([RESPONSES["content-length"].wire])
        wire.ask_again(method)
    wire.arrive(in_pieces(data, at))
    kept = wire.kept
    if orderly:
        wire.close()
    else:
        wire.lose()
    lost: ConnectionLost | None = None
    try:
        status = now(wire.exchange.head()).status
        body = now(wire.exchange.body(len(data)))
    except ConnectionLost as error:
        lost = error
    else:
        assert 200 <= status < 600
        assert len(body) <= len(data)
    assert wire.exchange.complete is (lost is None)
    if lost is not None:
        assert not kept
        assert (lost.answered, lost.reused) == (data != b"", idle)
    assert wire.exchange.leave(60.0).done()


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
@given(st.lists(anything, min_size=1, max_size=4))
@examples(25)
def test_any_bytes_on_real_sockets_give_a_response_or_a_loss(run: Any, answers: list[bytes]) -> None:
    """The same over the loopback, one engine, several requests."""

    async def scenario() -> None:
        left = list(answers)
        writers = []

        async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(left.pop() if left else b"")
            writer.close()

        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with asyncio.timeout(30):
            for _ in answers:
                exchange = await upstream.send("POST", "/", [], b"")
                try:
                    await exchange.head()
                    await exchange.body(1 << 20)
                except ConnectionLost:
                    assert not exchange.complete
                else:
                    assert exchange.complete
        await upstream.close()
        assert upstream.connections == 0
        server.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    run(scenario())
