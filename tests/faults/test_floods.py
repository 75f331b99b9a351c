"""Engines that send more than anybody asked for: memory stays within a bound, other streams go on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.faults.plays import endless_head
from tests.faults.raw_engine import (
    CHUNKED,
    FAILS,
    FINISH,
    UNTIL_CLOSE,
    Peer,
    Play,
    RawEngine,
    chunk,
    event,
    raw_engine,
    token,
)
from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import ask, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, chat, engine, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEGABYTE = b"x" * 1_000_000
GROWTH_BYTES_MAX = 64 * 1024 * 1024
TINY = 1_000_000


async def endless_event(peer: Peer) -> None:
    """64 MB without a line end."""
    await peer.send(UNTIL_CLOSE + b"data: ")
    for _ in range(64):
        await peer.send(MEGABYTE)


async def endless_document(peer: Peer) -> None:
    """A JSON text of 64 MB, and more."""
    await peer.send(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"choices":[{"text":"')
    for _ in range(64):
        await peer.send(MEGABYTE)
    await peer.send(b'"}]}')


async def endless_refusal(peer: Peer) -> None:
    """The same, as an error."""
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n")
    for _ in range(64):
        await peer.send(MEGABYTE)


async def tiny_chunks(peer: Peer) -> None:
    """A million chunks of a byte."""
    body = event(token("x" * 100)) * (TINY // 160)
    tail = chunk(event(FINISH)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n"
    await peer.send(CHUNKED)
    for start in range(0, len(body), 10_000):
        await peer.send(b"".join(b"1\r\n%c\r\n" % byte for byte in body[start : start + 10_000]))
    await peer.send(tail)


async def tiny_events(peer: Peer) -> None:
    """Two hundred thousand events that say nothing."""
    await peer.send(CHUNKED)
    for _ in range(200):
        await peer.send(chunk(event(b"{}") * 1000))
    await peer.send(chunk(event(token())) + chunk(event(FINISH)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n")


async def endless_sizes(peer: Peer) -> None:
    """Chunk extensions without end."""
    await peer.send(CHUNKED + b"1;")
    for _ in range(64):
        await peer.send(MEGABYTE)


FLOODS: dict[str, tuple[Play, str]] = {
    "an endless head": (endless_head, "backend_failed"),
    "an endless event": (endless_event, "backend_failed"),
    "an endless document": (endless_document, "backend_failed"),
    "an endless refusal": (endless_refusal, "backend_failed"),
    "an endless chunk size": (endless_sizes, "backend_failed"),
    "a million chunks of a byte": (tiny_chunks, COMPLETED),
    "events that say nothing": (tiny_events, "backend_failed"),
}


@dataclass(frozen=True)
class Stage:
    """A gateway before an engine that floods, and a calm one."""

    gateway: Gateway
    floods: RawEngine
    calm: Engine

    def memory(self, what: str) -> int:
        """Bytes of memory that the gateway has (VmRSS), or has had at most (VmHWM)."""
        status = (self.folder / "status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def forget(self) -> None:
        """From now on, the most that it has had is what it has now."""
        (self.folder / "clear_refs").write_text("5")

    @property
    def folder(self) -> Path:
        """What the kernel tells of the gateway."""
        return Path(f"/proc/{self.gateway.process.pid}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    async with raw_engine() as floods, engine(slots=1, tokens=60, decode_tps=50.0, model=["calm"]) as calm:
        backends = [
            {"name": name, "url": one.url, "slots": 1, "models": [name]}
            for name, one in (("floods", floods), ("calm", calm))
        ]
        async with gateway({"backends": backends}) as front:
            for name in ("floods", "calm"):
                await becomes(front, name, "ready")
            yield Stage(front, floods, calm)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_is_bounded(stage: Stage, name: str, stream: bool) -> None:
    """It ends in one answer; the gateway grows by no more than 64 MB, and a stream of another engine is
    whole."""
    front, (stage.floods.play, outcome) = stage.gateway, FLOODS[name]
    well = await ask(front, chat("well") | {"model": "floods"})
    assert verdict(well, stream=True) == COMPLETED
    stage.forget()
    before = stage.memory("VmRSS")
    beside = asyncio.create_task(ask(front, chat("beside") | {"model": "calm"}))
    await stage.calm.busy()
    key = f"{FAILS}: {name} {stream}"
    reply = await ask(front, chat(key, stream=stream) | {"model": "floods"})
    streams = reply.head.headers["content-type"].startswith("text/event-stream")
    assert verdict(reply, stream=streams) == outcome
    assert stage.floods.asked[key] == 1
    assert verdict(await beside, stream=True) == COMPLETED
    grown = stage.memory("VmHWM") - before
    print(f"{name}: {grown / 1e6:.0f} MB")  # noqa: T201 - `-s` shows it
    assert grown <= GROWTH_BYTES_MAX
    await quiet(front)
