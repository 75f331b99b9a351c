"""The client to engines, on real loopback sockets, with uvloop and with asyncio's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from random import Random
from typing import Any, cast

import pytest
import uvloop

from gateway.exchange import UNREAD_BYTES_MAX
from gateway.upstream import IDLE_MAX, AnswerTooLarge, ConnectFailed, ConnectionLost, Exchange, Upstream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n"
TEST_SECONDS = 30.0  # no test needs a tenth of it
SOON_SECONDS = 10.0  # for what happens at once

Script = Callable[["Peer"], Awaitable[None]]


def on_both_loops(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the test on uvloop and on asyncio's loop, and fail it if the loop had to report an error."""

    async def watched(**arguments: object) -> None:
        reported: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with asyncio.timeout(TEST_SECONDS):
            await scenario(**arguments)
        gc.collect()  # futures whose exception nobody asked for report when they are collected
        await asyncio.sleep(0)
        assert not reported

    @pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
    def test(run: Callable[[Coroutine[Any, Any, None]], None], **arguments: object) -> None:
        run(watched(**arguments))

    functools.update_wrapper(test, scenario)
    run = inspect.Parameter("run", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    scenario_parameters = inspect.signature(scenario).parameters.values()
    signed = cast(Any, test)
    signed.__signature__ = inspect.Signature([run, *scenario_parameters])
    return cast(Callable[..., None], test)


class Peer:
    """The engine's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self) -> bytes:
        """One whole request."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head + await self.reader.readexactly(length)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def close(self) -> None:
        self.writer.close()

    async def gone(self) -> None:
        """Return when the gateway has closed its side, reading what it still sends."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


class Engine:
    """A server that runs a script on every connection."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self.tasks.append(asyncio.ensure_future(self.script(peer)))

    async def scripts_end(self) -> None:
        """Return when every script is at its end; raises what one has raised."""
        await asyncio.gather(*self.tasks)


@contextlib.asynccontextmanager
async def serve(
    script: Script, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Engine]:
    """An engine with this script; a script that failed fails the test."""
    engine = Engine(script)
    server = await asyncio.start_server(engine.accept, host, 0, ssl=tls)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for task in engine.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*engine.tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        for peer in engine.peers:
            if not peer.writer.is_closing():
                peer.writer.transport.abort()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client(url: str, **options: Any) -> AsyncIterator[Upstream]:
    """A client that is closed in the end, and then has no connection left."""
    upstream = Upstream(url, **options)
    try:
        yield upstream
    finally:
        await upstream.close()
        assert (upstream.connections, upstream.idle) == (0, 0)


async def post(upstream: Upstream, body: bytes = b"{}") -> Exchange:
    """Send a request like those of the relay."""
    return await upstream.send("POST", "/v1/chat/completions", [(b"Content-Type", b"application/json")], body)


async def answers(peer: Peer) -> None:
    """Script: answer every request, until the gateway closes."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while await peer.request():
            peer.send(OK)


async def stays_silent(peer: Peer) -> None:
    """Script: read, never answer, return when the gateway closes."""
    await peer.gone()
    peer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    async with asyncio.timeout(SOON_SECONDS):
        while not condition():  # noqa: ASYNC110 (a condition outside, which sets no event)
            await asyncio.sleep(0.001)


# requests


@on_both_loops
async def test_a_request_goes_out_whole_and_framed_by_us() -> None:
    """The engine gets our framing, host and key, the caller's header fields, and the body unchanged."""
    requests: list[bytes] = []

    async def script(peer: Peer) -> None:
        requests.append(await peer.request())
        peer.send(OK)

    async with serve(script) as engine, client(engine.url + "/prefix/", api_key="secret") as upstream:
        exchange = await post(upstream, b'{"a": 1}')
        head = await exchange.head()
        assert (head.status, dict(head.headers)) == (200, {"content-length": "2"})
        assert await exchange.body(10) == b"hi"
        assert requests == [
            b"POST /prefix/v1/chat/completions HTTP/1.1\r\n"
            b"Host: 127.0.0.1:%d\r\n"
            b"Accept-Encoding: identity\r\n"
            b"Authorization: Bearer secret\r\n"
            b"Connection: keep-alive\r\n"
            b"Content-Length: 8\r\n"
            b"Content-Type: application/json\r\n"
            b"\r\n"
            b'{"a": 1}' % engine.port
        ]


@on_both_loops
async def test_without_reuse_the_engine_is_told_and_every_request_has_its_own_connection() -> None:
    """`reuse` may be set at any time; then `Connection: close` is asked for and nothing is kept."""
    requests: list[bytes] = []

    async def script(peer: Peer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                requests.append(await peer.request())
                peer.send(OK)

    async with serve(script) as engine, client(engine.url) as upstream:
        assert await (await post(upstream)).body(10) == b"hi"
        assert upstream.idle == 1
        upstream.reuse = False
        for _ in range(2):
            assert await (await post(upstream)).body(10) == b"hi"
            assert upstream.connections == 0
        assert len(engine.peers) == 3
        assert [b"\r\nConnection: close\r\n" in request for request in requests] == [False, True, True]


@on_both_loops
async def test_small_writes_are_not_delayed() -> None:
    """TCP_NODELAY is set: without it a request waits for the engine's delayed acknowledgement."""
    async with serve(answers) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        assert exchange._connection is not None
        tcp = exchange._connection._transport.get_extra_info("socket")
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        await exchange.body(10)


@on_both_loops
async def test_an_ipv6_literal_is_a_host() -> None:
    """A URL with a literal IPv6 address works, and its Host keeps the brackets."""
    hosts: list[bytes] = []

    async def script(peer: Peer) -> None:
        hosts.append((await peer.request()).split(b"\r\n")[1])
        peer.send(OK)

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with serve(script, host="::1") as engine, client(f"http://[::1]:{engine.port}") as upstream:
        assert await (await post(upstream)).body(10) == b"hi"
        assert hosts == [b"Host: [::1]:%d" % engine.port]


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/", (b"a", b"b\r\nX: y")),
        ("POST", "/", (b"a", b"b\n")),
        ("POST", "/", (b"a", b"b\r")),
        ("POST", "/", (b"a\r\nX", b"b")),
        ("POST", "/", (b"a", b"b\0")),
        ("POST", "/ HTTP/1.1\r\nX: y\r\n", (b"a", b"b")),
        ("POST", "/a b", (b"a", b"b")),
        ("POST", "/\u00e9", (b"a", b"b")),
        ("POST", "v1", (b"a", b"b")),
        ("POST /x", "/", (b"a", b"b")),
    ],
)
async def test_nothing_can_be_smuggled_into_the_head(
    method: str, path: str, field: tuple[bytes, bytes]
) -> None:
    """Line breaks, NUL and spaces where they would change the framing are refused before connecting."""
    with pytest.raises(ValueError, match=r"not a method and a path|a header field holds"):
        await Upstream("http://127.0.0.1:9").send(method, path, [(b"Accept", b"*/*"), field], b"")


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("127.0.0.1:8000", ""),
        ("ftp://host", ""),
        ("http://", ""),
        ("http://user:password@host", ""),
        ("http://host/?a=b", ""),
        ("http://host/#a", ""),
        ("http://host/a b", ""),
        ("http://host:99999", ""),
        ("http://host", "secret\r\nX: y"),
    ],
)
def test_a_url_or_key_that_cannot_be_sent_is_refused(url: str, key: str) -> None:
    """The error is a ValueError that repeats neither password nor key."""
    with pytest.raises(ValueError, match=r"URL|[Pp]ort") as refused:
        Upstream(url, api_key=key)
    assert "secret" not in str(refused.value)
    assert "password" not in str(refused.value)


# connecting


@on_both_loops
async def test_a_refused_connection_says_why() -> None:
    """Nothing was sent: ConnectFailed, with the system's words."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with client(f"http://127.0.0.1:{port}") as upstream:
        with pytest.raises(ConnectFailed) as failed:
            await post(upstream)
        assert "111" in failed.value.cause or "refused" in failed.value.cause


@on_both_loops
async def test_a_name_that_cannot_be_resolved_is_a_failed_connection() -> None:
    """A label longer than DNS allows fails without asking anyone."""
    async with client(f"http://{'a' * 64}.invalid:1") as upstream:
        with pytest.raises(ConnectFailed):
            await post(upstream)


@on_both_loops
async def test_connecting_is_bounded() -> None:
    """An engine that accepts but never finishes the TLS handshake costs `connect_seconds`, no more."""
    async with (
        serve(stays_silent) as engine,
        client(f"https://127.0.0.1:{engine.port}", connect_seconds=0.05) as upstream,
    ):
        with pytest.raises(ConnectFailed, match=r"no connection within 0\.05 s"):
            await post(upstream)
        await until(lambda: len(engine.tasks) == 1)
        await engine.scripts_end()


@on_both_loops
async def test_a_caller_cancelled_while_connecting_leaves_no_connection() -> None:
    """The engine sees the close of the connection that nobody waits for any more."""
    async with serve(stays_silent) as engine, client(f"https://127.0.0.1:{engine.port}") as upstream:
        sending = asyncio.ensure_future(post(upstream))
        await until(lambda: bool(engine.peers))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await engine.scripts_end()


@on_both_loops
async def test_a_caller_cancelled_at_any_step_of_connecting_leaves_no_connection() -> None:
    """Cancelled after 0, 1, 2 ... rounds of the loop, the connection is in the end closed or usable."""
    async with serve(answers) as engine, client(engine.url, reuse=False) as upstream:
        for rounds in range(12):
            sending = asyncio.ensure_future(post(upstream))
            for _ in range(rounds):
                await asyncio.sleep(0)
            sending.cancel()
            outcome = (await asyncio.gather(sending, return_exceptions=True))[0]
            if isinstance(outcome, Exchange):
                assert await outcome.body(10) == b"hi"
            else:
                assert isinstance(outcome, asyncio.CancelledError)
            await until(lambda: upstream.connections == 0)
        await engine.scripts_end()


@on_both_loops
async def test_an_answer_that_comes_before_the_request_is_the_answer() -> None:
    """ds4 with too many connections says 503 and closes before it has read anything."""

    async def script(peer: Peer) -> None:
        peer.send(
            b"HTTP/1.1 503 Busy\r\nRetry-After: 10\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy"
        )
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        head = await exchange.head()
        assert (head.status, head.headers["retry-after"]) == (503, "10")
        assert await exchange.body(10) == b"busy"
        assert upstream.connections == 0


# reuse


@on_both_loops
async def test_a_connection_is_used_again() -> None:
    """A hundred requests one after another need one connection."""
    async with serve(answers) as engine, client(engine.url) as upstream:
        for turn in range(100):
            exchange = await post(upstream)
            assert exchange.reused is (turn > 0)
            assert await exchange.body(10) == b"hi"
            assert exchange.complete
            assert (upstream.connections, upstream.idle) == (1, 1)
        assert len(engine.peers) == 1


@on_both_loops
async def test_the_connection_used_last_is_used_next() -> None:
    """Of two idle connections the one that became idle last is taken."""
    served: list[int] = []

    async def script(peer: Peer) -> None:
        me = len(engine.peers)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await peer.request():
                served.append(me)
                peer.send(OK)

    async with serve(script) as engine, client(engine.url) as upstream:
        exchanges = [await post(upstream), await post(upstream)]
        for exchange in exchanges:
            await exchange.body(10)
        assert upstream.idle == 2
        last = served[-1]
        for _ in range(3):
            await (await post(upstream)).body(10)
        assert served[2:] == [last] * 3


@on_both_loops
async def test_one_that_is_retired_finishes_what_runs() -> None:
    """Another one has the next requests: idle connections end at once, the others with their answers."""
    answer = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if len(engine.peers) == 2:
            await answer.wait()
        peer.send(OK)
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchanges = [await post(upstream)]
        await until(lambda: len(engine.peers) == 1)
        exchanges.append(await post(upstream))
        await exchanges[0].body(10)
        assert (upstream.idle, upstream.connections) == (1, 2)
        upstream.retire()
        assert (upstream.idle, upstream.connections) == (0, 1)
        answer.set()
        assert await exchanges[1].body(10) == b"hi"
        await until(lambda: upstream.connections == 0)
        await engine.scripts_end()


@on_both_loops
async def test_idle_connections_are_bounded() -> None:
    """More than the bound at once leave the bound behind; the oldest goes first."""
    async with serve(answers) as engine, client(engine.url) as upstream:
        exchanges = await asyncio.gather(*(post(upstream) for _ in range(IDLE_MAX + 6)))
        for exchange in exchanges:
            assert await exchange.body(10) == b"hi"
        assert (upstream.connections, upstream.idle) == (IDLE_MAX, IDLE_MAX)
        assert len(engine.peers) == IDLE_MAX + 6


@on_both_loops
async def test_a_connection_idle_for_too_long_is_not_used() -> None:
    """uvicorn closes after 5 s: an older connection is closed by us and a new one made."""
    async with serve(answers) as engine, client(engine.url, idle_seconds=0.0) as upstream:
        for _ in range(3):
            exchange = await post(upstream)
            assert not exchange.reused
            assert await exchange.body(10) == b"hi"
        assert upstream.connections == 1
        await until(lambda: sum(task.done() for task in engine.tasks) == 2)


@on_both_loops
async def test_connections_idle_for_too_long_do_not_pile_up() -> None:
    """After a burst, what is too old is closed as later requests end, though it is never asked for."""
    async with serve(answers) as engine, client(engine.url, idle_seconds=0.0) as upstream:
        exchanges = [await post(upstream) for _ in range(5)]
        for exchange in exchanges:
            assert await exchange.body(10) == b"hi"
        assert upstream.idle == 1


@pytest.mark.parametrize("farewell", [b"", b"HTTP/1.1 408 Timeout\r\nConnection: close\r\n\r\n"])
@on_both_loops
async def test_an_idle_connection_that_the_engine_ends_is_dropped_at_once(farewell: bytes) -> None:
    """Closed, or with unasked bytes on it, it does not stay in the pool; the next request gets a new one."""
    ending = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await ending.wait()
        if farewell:
            peer.send(farewell)
            await peer.gone()
        peer.close()

    async with serve(script) as engine, client(engine.url) as upstream:
        await (await post(upstream)).body(10)
        assert upstream.idle == 1
        ending.set()
        await until(lambda: upstream.connections == 0)
        assert await (await post(upstream)).body(10) == b"hi"
        assert len(engine.peers) == 2


@on_both_loops
async def test_a_reused_connection_that_breaks_before_an_answer_can_be_told() -> None:
    """The loss says reused and not answered; the same on a new connection says not reused."""

    async def script(peer: Peer) -> None:
        await peer.request()
        if len(engine.peers) == 1:
            peer.send(OK)
            await peer.request()
        peer.writer.transport.abort()

    async with serve(script) as engine, client(engine.url) as upstream:
        await (await post(upstream)).body(10)
        flags = []
        for _ in range(2):
            with pytest.raises(ConnectionLost) as lost:
                await (await post(upstream)).head()
            flags.append((lost.value.reused, lost.value.answered))
        assert flags == [(True, False), (False, False)]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        OK + b"HTTP/1.1 200 OK\r\n",
        OK + b"rubbish",
    ],
    ids=["close", "http/1.0", "second response", "rubbish"],
)
@on_both_loops
async def test_a_connection_that_cannot_be_trusted_again_is_closed(answer: bytes) -> None:
    """The response is whole, but the engine closes, or bytes follow it: no second request."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(answer)
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        assert await (await post(upstream)).body(10) == b"hi"
        assert upstream.connections == 0
        await engine.scripts_end()


@on_both_loops
async def test_a_request_that_was_not_read_whole_ends_its_connection() -> None:
    """After a 413 in the middle of a body, its rest must not be taken for a request."""

    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.send(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(TEST_SECONDS)

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream, bytes(32 << 20))
        assert (await exchange.head()).status == 413
        assert exchange.complete
        assert (upstream.connections, len(engine.peers)) == (0, 1)


# reading


@on_both_loops
async def test_events_are_read_as_they_come() -> None:
    """One read returns all that has arrived, waits for more, and at the end returns nothing."""
    going_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(STREAM)
        await going_on.wait()
        peer.send(b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        assert await exchange.read() == b"hi"
        assert not exchange.complete
        reading = asyncio.ensure_future(exchange.read())
        await asyncio.sleep(0)
        assert not reading.done()
        going_on.set()
        assert await reading + await exchange.body(10) == b"ab"
        assert await exchange.read() == b""
        assert exchange.complete


@on_both_loops
async def test_what_arrived_before_a_loss_is_read_before_the_loss() -> None:
    """A stream that breaks delivers its bytes, then raises, each time it is asked."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(STREAM)
        peer.close()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        await until(lambda: upstream.connections == 0)
        assert (await exchange.head()).status == 200
        assert await exchange.read() == b"hi"
        for _ in range(2):
            with pytest.raises(ConnectionLost) as lost:
                await exchange.read()
            assert (lost.value.answered, lost.value.reused) == (True, False)


@on_both_loops
async def test_a_reader_that_stalls_stalls_the_engine() -> None:
    """Unread bytes are bounded; read on, and every byte arrives in order."""
    body = Random(0).randbytes(24 << 20)  # more than the kernel's buffers hold
    written = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        peer.send(body)
        await peer.writer.drain()
        written.set()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        await exchange.head()
        await until(lambda: exchange._unread_bytes > UNREAD_BYTES_MAX)
        await asyncio.sleep(0.05)
        assert exchange._unread_bytes < 2 * UNREAD_BYTES_MAX
        assert not written.is_set()
        assert await exchange.body(len(body)) == body
        assert upstream.idle == 1


@on_both_loops
async def test_an_answer_that_is_too_large_ends_the_connection() -> None:
    """`body` takes as much as allowed, and no more."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(STREAM)
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        with pytest.raises(AnswerTooLarge) as large:
            await exchange.body(1)
        assert large.value.bytes_max == 1
        assert upstream.connections == 0
        await engine.scripts_end()


@on_both_loops
async def test_a_cancelled_reader_leaves_the_exchange_as_it_was() -> None:
    """After a cancelled head() and a cancelled read() the response is still read whole."""
    going_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await going_on.wait()
        peer.send(OK)
        await peer.gone()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        for wait in (exchange.head, exchange.read):
            waiting = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        going_on.set()
        assert (await exchange.head()).status == 200
        assert await exchange.body(10) == b"hi"


@on_both_loops
async def test_a_second_reader_is_refused() -> None:
    """Two readers would each get a part; the first goes on undisturbed."""
    async with serve(stays_silent) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        first = asyncio.ensure_future(exchange.head())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await exchange.read()
        exchange.abort()
        with pytest.raises(ConnectionLost):
            await first


# ending


@on_both_loops
async def test_abort_closes_at_once_and_wakes_the_reader() -> None:
    """The engine sees the close, the reader a loss; a second abort does nothing."""
    async with serve(stays_silent) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        reading = asyncio.ensure_future(exchange.head())
        await asyncio.sleep(0)
        exchange.abort()
        exchange.abort()
        assert upstream.connections == 0
        with pytest.raises(ConnectionLost) as lost:
            await reading
        assert (lost.value.answered, lost.value.cause) == (False, "aborted by the gateway")
        await until(lambda: bool(engine.peers))
        await engine.scripts_end()


@on_both_loops
async def test_abort_and_leave_do_not_touch_a_connection_that_was_given_back() -> None:
    """A complete exchange has no connection any more: the next request on it goes on undisturbed."""
    async with serve(answers) as engine, client(engine.url) as upstream:
        first = await post(upstream)
        await first.body(10)
        second = await post(upstream)
        first.abort()
        assert first.leave(0.0).done()
        assert await second.body(10) == b"hi"
        assert len(engine.peers) == 1


@on_both_loops
async def test_leave_resolves_when_the_engine_closes() -> None:
    """The engine sees our end of the stream, goes on for a while unheard, and closes: then it has stopped."""
    stopping = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(STREAM)
        await peer.gone()
        peer.send(b"2\r\nhi\r\n" * 1000)
        await stopping.wait()
        peer.close()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        assert await exchange.read() == b"hi"
        left = exchange.leave(TEST_SECONDS)
        assert exchange.leave(TEST_SECONDS) is left
        for wait in (exchange.read, exchange.read):
            with pytest.raises(ConnectionLost, match="left by the gateway"):
                await wait()
        await until(lambda: not engine.peers[0].reader._buffer and engine.peers[0].reader.at_eof())  # type: ignore[attr-defined]
        await asyncio.sleep(0.02)
        assert not left.done()
        assert upstream.connections == 1
        stopping.set()
        await left
        assert upstream.connections == 0
        assert not exchange.complete
        assert exchange._timer is not None
        assert exchange._timer.cancelled()
        with pytest.raises(ConnectionLost, match="left by the gateway"):
            await exchange.read()


@on_both_loops
async def test_leave_resolves_when_the_response_is_complete() -> None:
    """An engine that ends its answer has stopped, even if it keeps the connection; we do not."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(STREAM)
        await peer.gone()
        peer.send(b"0\r\n\r\n")
        await asyncio.sleep(TEST_SECONDS)

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        await exchange.head()
        await exchange.leave(TEST_SECONDS)
        assert exchange.complete
        assert upstream.connections == 0


@on_both_loops
async def test_leave_gives_up_after_its_time() -> None:
    """An engine that ignores our close is aborted, and the future resolves."""
    aborted = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()
        with contextlib.suppress(ConnectionError):
            while True:
                peer.send(b"\r\n")
                await peer.writer.drain()
                await asyncio.sleep(0.001)
        aborted.set()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        await exchange.leave(0.02)
        assert upstream.connections == 0
        await aborted.wait()


@on_both_loops
async def test_leave_of_a_stalled_reader_hears_the_engine_again() -> None:
    """Reading had stopped at the bound; to see the engine's close it must go on."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (64 << 20))
        peer.send(bytes(32 << 20))
        await peer.gone()
        peer.close()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        await until(lambda: exchange._unread_bytes > UNREAD_BYTES_MAX)
        await exchange.leave(TEST_SECONDS)
        assert upstream.connections == 0
        assert exchange._unread_bytes == 0


@on_both_loops
async def test_leave_wakes_the_reader() -> None:
    """A reader that waits while another leaves gets a loss, long before the engine has stopped."""
    stopping = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.gone()
        await stopping.wait()
        peer.close()

    async with serve(script) as engine, client(engine.url) as upstream:
        exchange = await post(upstream)
        reading = asyncio.ensure_future(exchange.head())
        await asyncio.sleep(0)
        left = exchange.leave(TEST_SECONDS)
        with pytest.raises(ConnectionLost, match="left by the gateway"):
            await reading
        assert not left.done()
        stopping.set()
        await left


@on_both_loops
async def test_abort_ends_a_leave() -> None:
    """Whoever cannot wait for the engine aborts; the future resolves, cancelled or not."""
    async with serve(stays_silent) as engine, client(engine.url) as upstream:
        for cancelled in (False, True):
            exchange = await post(upstream)
            left = exchange.leave(TEST_SECONDS)
            if cancelled:
                left.cancel()
            exchange.abort()
            assert left.done()
            assert upstream.connections == 0
        await until(lambda: len(engine.tasks) == 2)


@on_both_loops
async def test_close_ends_everything() -> None:
    """Idle and busy connections end, readers get a loss, and nothing can be sent any more."""
    async with serve(answers) as engine:
        upstream = Upstream(engine.url)
        busy, idle = await post(upstream), await post(upstream)
        await idle.body(10)
        left = (await post(upstream, b"[]")).leave(TEST_SECONDS)
        await upstream.close()
        assert (upstream.connections, upstream.idle) == (0, 0)
        assert left.done()
        with contextlib.suppress(ConnectionLost):
            assert await busy.body(10) == b"hi"
        with pytest.raises(ConnectFailed):
            await post(upstream)
        await engine.scripts_end()


# TLS


def without_certificates(purpose: int) -> ssl.SSLContext:
    """TLS that authenticates nobody, so that no key lies in the repository."""
    context = ssl.SSLContext(purpose)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


@on_both_loops
async def test_tls_serves_reuses_and_leaves() -> None:
    """Over TLS a request is answered, its connection used again, and a leave seen by the engine."""

    async def script(peer: Peer) -> None:
        await peer.request()
        peer.send(OK)
        await peer.request()
        peer.send(STREAM)
        await peer.gone()
        peer.close()

    serving = without_certificates(ssl.PROTOCOL_TLS_SERVER)
    asking = without_certificates(ssl.PROTOCOL_TLS_CLIENT)
    async with (
        serve(script, tls=serving) as engine,
        client(f"https://127.0.0.1:{engine.port}", tls=asking) as upstream,
    ):
        assert await (await post(upstream)).body(10) == b"hi"
        exchange = await post(upstream)
        assert exchange.reused
        assert await exchange.read() == b"hi"
        await exchange.leave(TEST_SECONDS)
        await engine.scripts_end()
        assert len(engine.peers) == 1


@on_both_loops
async def test_an_engine_whose_certificate_is_not_trusted_is_not_spoken_to() -> None:
    """The default context refuses what it cannot verify; nothing was sent."""
    tls = without_certificates(ssl.PROTOCOL_TLS_SERVER)
    async with (
        serve(stays_silent, tls=tls) as engine,
        client(f"https://127.0.0.1:{engine.port}") as upstream,
    ):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)  # the server's own report
        with pytest.raises(ConnectFailed):
            await post(upstream)
        assert upstream.connections == 0
