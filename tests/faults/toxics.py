"""A TCP proxy before an engine that spoils what passes: seven toxics, drawn for each connection."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

KINDS = ("latency", "slicer", "bandwidth", "limit_data", "reset", "slow_close", "hold")
READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Toxics:
    """What a connection suffers on its way from the engine; times are seconds."""

    latency: float = 0.0  # before each piece
    slicer: int = 0  # pieces of so many bytes
    bandwidth: int = 0  # bytes per second
    limit_data: int | None = None  # so many bytes pass, then the connection is closed in order
    reset: int | None = None  # so many bytes pass, then a reset
    slow_close: float = 0.0  # the engine's close comes so much later
    hold: int | None = None  # so many bytes pass, and no more, but the connection stays


def draw(dice: random.Random) -> Toxics:
    """One or two of them; where the flow is cut, it is mostly inside a head or the first events."""
    cut = dice.choice((dice.randrange(200), dice.randrange(2000)))
    amounts = {
        "latency": dice.uniform(0.0, 0.2),
        "slicer": dice.randrange(1, 40),
        "bandwidth": dice.randrange(2_000, 50_000),
        "limit_data": cut,
        "reset": cut,
        "slow_close": dice.uniform(0.0, 1.0),
        "hold": cut,
    }
    return Toxics(**{kind: amounts[kind] for kind in dice.sample(KINDS, dice.choice((1, 1, 2)))})  # type: ignore[arg-type]


class Proxy:
    """Between the gateway and one engine. `share`: of its new connections, how many suffer."""

    def __init__(self, port: int, seed: object) -> None:
        self.url = ""
        self.share = 0.0
        self.suffered: Counter[str] = Counter()  # connections, by toxic
        self._port = port
        self._dice = random.Random(f"{seed} {port}")
        self._serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        toxics = draw(self._dice) if self._dice.random() < self.share else Toxics()
        self.suffered.update(kind for kind in KINDS if getattr(toxics, kind) != getattr(Toxics(), kind))
        try:
            engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            self._serving.discard(task)
            return
        try:
            with suppress(asyncio.CancelledError):  # by `close` alone; asyncio takes it for a defect
                async with asyncio.TaskGroup() as group:
                    group.create_task(forward(reader, engine_writer))
                    group.create_task(spoil(engine_reader, writer, toxics))
        finally:
            writer.transport.abort()
            engine_writer.transport.abort()
            self._serving.discard(task)

    async def close(self) -> None:
        """End what passes."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """From the gateway to the engine, untouched, its close too."""
    with suppress(OSError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        return
    writer.transport.abort()


async def spoil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, toxics: Toxics) -> None:
    """From the engine to the gateway."""
    cuts = [cut for cut in (toxics.limit_data, toxics.reset, toxics.hold) if cut is not None]
    left = min(cuts, default=None)
    with suppress(OSError):  # shut down by then
        while data := await reader.read(toxics.slicer or READ_BYTES):
            await asyncio.sleep(toxics.latency + (len(data) / toxics.bandwidth if toxics.bandwidth else 0.0))
            if left is not None and len(data) > left:
                await cut_off(reader, writer, data[:left], toxics)
                return
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()
        await asyncio.sleep(toxics.slow_close)
        writer.write_eof()


async def cut_off(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, toxics: Toxics
) -> None:
    """The last bytes that pass, and then what was drawn: held while both sides stay, reset or closed."""
    writer.write(data)
    await writer.drain()
    if toxics.hold is not None:
        while await reader.read(READ_BYTES):
            pass
    elif toxics.reset is not None:
        await asyncio.sleep(0.02)  # a reset discards what was not read yet
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def proxy(port: int, seed: object) -> AsyncIterator[Proxy]:
    """Run one before an engine's port."""
    one = Proxy(port, seed)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()
        await one.close()
