"""Warm-up requests, on real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from policies.types import State
from tests.unit.fleet import a_call
from tests.unit.stage import PLAIN, Stage


class Warm:
    """An engine that answers every request with a status of the test's choice."""

    def __init__(self) -> None:
        self.status = 200
        self.lacks: set[bytes] = set()  # routes that it answers with 404
        self.asked: list[bytes] = []  # routes
        self.open = 0  # connections
        self.hold = asyncio.Event()
        self.hold.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.open += 1
        while head := await self._head(reader):
            length = next(
                int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")
            )
            await reader.readexactly(length)
            route = head.split(b" ")[1]
            self.asked.append(route)
            await self.hold.wait()
            status = 404 if route in self.lacks else self.status
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n{}" % status)
        writer.transport.abort()
        self.open -= 1

    @property
    def requests(self) -> int:
        """How many it was asked."""
        return len(self.asked)

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


@pytest.fixture
async def warm() -> Any:
    """The engine, listening, and a stage before it that wants three warm-up requests."""
    one = Warm()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    stage = Stage(PLAIN, url=f"http://127.0.0.1:{port}", warmup={"requests": 3})
    yield one, stage
    await stage.fleet.close()
    server.close()
    await until(lambda: one.open == 0)


async def until(true: Callable[[], bool]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.005)


async def test_a_warm_up_that_fails_is_tried_again(
    warm: tuple[Warm, Stage], caplog: pytest.LogCaptureFixture
) -> None:
    """The backend stays warming and says why, once; when the engine generates, it becomes ready."""
    one, stage = warm
    caplog.set_level(logging.INFO)
    one.status = 500
    stage.fleet.start()
    for tries in range(1, 4):
        await until(lambda tries=tries: one.requests == tries)
        await until(lambda: stage.backend.why == "warm-up request was answered with status 500")
        stage.fleet.suspect(stage.member)
    assert stage.backend.state is State.WARMING
    assert sum("status 500" in message for message in caplog.messages) == 1
    assert sum("does not tell its slots" in message for message in caplog.messages) == 1
    one.status = 200
    before = one.requests
    await until(lambda: stage.backend.state is State.READY)
    assert one.requests in (before + 3, before + 4)
    assert stage.states == ["warming", "warming", "ready"]


async def test_a_drain_ends_the_warm_up(warm: tuple[Warm, Stage]) -> None:
    """No further request is sent, the state stays, and a resume begins anew."""
    one, stage = warm
    one.hold.clear()
    stage.fleet.start()
    await until(lambda: one.requests == 1)
    stage.fleet.drain("a", "")
    assert stage.backend.state is State.DRAINED
    one.hold.set()
    await stage.look()
    assert (stage.backend.state, one.requests) == (State.DRAINED, 1)
    stage.fleet.resume("a")
    await until(lambda: stage.backend.state is State.READY)
    assert one.requests == 4


async def test_a_full_engine_is_not_warmed_up(warm: tuple[Warm, Stage]) -> None:
    """Resumed while its last requests still run, it waits until one of them has ended."""
    one, stage = warm
    stage.fleet.start()
    await until(lambda: stage.backend.state is State.READY)
    async with stage.dispatcher.slot(a_call()):
        stage.fleet.drain("a", "")
        stage.fleet.resume("a")
        await until(lambda: stage.backend.why == "no slot is free")
        assert (stage.backend.state, one.requests) == (State.WARMING, 3)
        assert stage.member.last_error == ""
    stage.fleet.suspect(stage.member)
    await until(lambda: stage.backend.state is State.READY)
    assert one.requests == 6


@pytest.mark.parametrize(
    ("lacks", "asked"),
    [
        ({b"/v1/chat/completions"}, [b"/v1/chat/completions", b"/v1/completions"]),
        (
            {b"/v1/chat/completions", b"/v1/completions"},
            [b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"],
        ),
    ],
)
async def test_an_engine_is_warmed_up_with_what_it_serves(
    warm: tuple[Warm, Stage], lacks: set[bytes], asked: list[bytes]
) -> None:
    """A base model does not chat, and one that embeds does nothing else."""
    one, stage = warm
    one.lacks = lacks
    stage.fleet.start()
    await until(lambda: stage.backend.state is State.READY)
    assert one.asked == 3 * asked


async def test_an_engine_that_serves_nothing_is_not_ready(warm: tuple[Warm, Stage]) -> None:
    """The reason is its answer to chat."""
    one, stage = warm
    one.status = 404
    stage.fleet.start()
    await until(lambda: stage.backend.why == "warm-up request was answered with status 404")
    assert stage.backend.state is State.WARMING
