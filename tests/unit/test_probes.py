"""What counts as an answer to a probe, and what as none."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.engines.base import Answer
from gateway.probes import BROKEN_MAX, NoAnswer, Probes, probing
from tests.processes.process import free_port
from tests.unit.test_upstream import without_certificates

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(
    serve: Serve, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, asyncio.Server]]:
    """Something that listens, and its URL."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}", server
    finally:
        server.close()


async def ask(url: str, *paths: str, api_key: str = "", seconds: float = 5.0) -> dict[str, Answer] | NoAnswer:
    """Probe it."""
    engine = probing(url, api_key)
    try:
        return await Probes(seconds).ask(engine, paths)
    finally:
        assert engine.connections == 0


async def test_every_path_is_asked_with_the_engines_key() -> None:
    """On a connection of its own each, with the status as it is."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(
            b"HTTP/1.1 %d X\r\nA-B: c\r\nContent-Length: 2\r\n\r\nok" % (200 if len(heads) == 1 else 503)
        )
        writer.close()

    async with engine(serve) as (url, _):
        answers = await ask(url, "/one", "/two", api_key="key")
    assert not isinstance(answers, NoAnswer)
    assert [(path, a.status, a.body, a.headers["a-b"]) for path, a in answers.items()] == [
        ("/one", 200, b"ok", "c"),
        ("/two", 503, b"ok", "c"),
    ]
    assert [head.split(b" ")[1] for head in heads] == [b"/one", b"/two"]
    for head in heads:
        assert b"\r\nauthorization: bearer key\r\n" in head.lower()
        assert b"\r\nconnection: close\r\n" in head.lower()


async def test_a_closed_port_refuses() -> None:
    """Nobody is there."""
    assert await ask(f"http://127.0.0.1:{free_port()}", "/") is NoAnswer.REFUSED


async def test_a_host_that_has_no_address_does_not_refuse() -> None:
    """A mistyped name: who reads of a refusal looks at the engine, where nothing is wrong."""
    assert await ask("http://engine.invalid:1", "/") is NoAnswer.UNREACHABLE


@pytest.mark.parametrize(
    "words", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", b"nonsense\r\n\r\n"]
)
async def test_an_answer_that_always_breaks_off_is_none(words: bytes) -> None:
    """It is asked for a few times; then the engine counts as silent, not as gone."""
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(words)
        writer.close()

    async with engine(serve) as (url, _):
        assert await ask(url, "/", "/more") is NoAnswer.SILENT
    assert asked == BROKEN_MAX


async def test_a_process_that_is_just_ending_refuses() -> None:
    """Its connections break a moment before its port is closed: what is provable then must be found."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        asyncio.get_running_loop().call_later(0.05, server.close)

    async with engine(serve) as (url, server):
        assert await ask(url, "/") is NoAnswer.REFUSED


async def test_an_engine_that_accepts_and_says_nothing_is_silent() -> None:
    """It may be busy: it is not asked again at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with asyncio.timeout(2):
            assert await ask(url, "/", seconds=0.2) is NoAnswer.SILENT


async def test_probes_trust_whom_requests_trust() -> None:
    """The authorities that are configured for a backend hold for its probes too."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    trusting = without_certificates(ssl.PROTOCOL_TLS_CLIENT)
    async with engine(serve, without_certificates(ssl.PROTOCOL_TLS_SERVER)) as (url, _):
        answers = await Probes().ask(probing(url, tls=trusting), ("/",))
        assert not isinstance(answers, NoAnswer) and answers["/"].body == b"ok"
