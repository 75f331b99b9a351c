"""Clients that are slow, silent, or too many: they cost a bounded amount, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import statistics
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.processes.asking import CHAT, ask, fault, reply
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Gateway, RawClient, chat, engine, gateway, until
from tests.processes.narrow import DESCRIPTORS

log = logging.getLogger("tests.exhaustion")

HEAD_SECONDS = 10.0  # in which a head must come
BODY_SECONDS = 60.0
SILENT_SECONDS = 75.0  # in which a request must come
MARGIN_SECONDS = 8.0
WARM = {"warmup": {"requests": 0}}
HEAD = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: x\r\n"
BODY = HEAD + b"Content-Length: 100000\r\n\r\n"
FAST = {"slots": 4, "tokens": 2, "decode_tps": 500.0}


class Slow:
    """A connection that sends what it has byte by byte, and says how it ended."""

    def __init__(self, begin: bytes, drip: bool) -> None:
        self.seconds: float | None = None
        self.told = b""
        self._begin, self._drip = begin, drip

    async def run(self, port: int) -> None:
        """Until the gateway closes it."""
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(self._begin)
        try:
            while not reader.at_eof():
                with contextlib.suppress(TimeoutError):
                    self.told += await asyncio.wait_for(reader.read(4096), 1.0)
                if self._drip and not self.told:
                    writer.write(b"x")
        except ConnectionError:
            pass
        finally:
            self.seconds = time.monotonic() - began
            writer.transport.abort()


async def healthy(front: Gateway, seconds: float, per_second: float = 50.0) -> list[float]:
    """Requests at this rate, all of which must be served; how long each took."""
    took: list[float] = []

    async def one() -> None:
        began = time.monotonic()
        answer = await ask(front, chat("healthy", stream=False))
        assert answer.head.status == 200, answer
        took.append(time.monotonic() - began)

    async with asyncio.TaskGroup() as group:
        for _ in range(round(seconds * per_second)):
            group.create_task(one())
            await asyncio.sleep(1 / per_second)
    return took


def p99(took: list[float]) -> float:
    """In milliseconds."""
    return 1000 * statistics.quantiles(took, n=100)[98]


@pytest.mark.parametrize(
    ("seconds", "per_second"), [(12.0, 15.0), pytest.param(80.0, 50.0, marks=pytest.mark.long)]
)
async def test_slow_clients_are_closed_and_nobody_waits_for_them(seconds: float, per_second: float) -> None:
    """300 that are silent, or send a head or a body byte by byte: each is closed by its limit."""
    async with engine(**FAST) as one, gateway(configured(one, backend=WARM)) as front:
        await becomes(front, "b0", "ready")
        port = urlsplit(front.url).port
        assert port is not None
        alone = await healthy(front, 2.0, per_second)
        slow = [
            Slow(begin, drip)
            for begin, drip in ((b"", False), (HEAD, True), (BODY, True))
            for _ in range(100)
        ]
        tasks = [asyncio.create_task(one.run(port)) for one in slow]
        beside = await healthy(front, seconds, per_second)
        log.info("p99 alone %.1f ms, beside 300 slow ones %.1f ms", p99(alone), p99(beside))
        silent, heads, bodies = slow[:100], slow[100:200], slow[200:]
        await until(lambda: all(one.seconds is not None for one in heads), "the end of heads", MARGIN_SECONDS)
        assert all((one.seconds or 0) > HEAD_SECONDS - 1 for one in heads)
        assert all(one.told.startswith(b"HTTP/1.1 408 ") for one in heads)
        if seconds > SILENT_SECONDS:
            rest = [*silent, *bodies]
            await until(lambda: all(one.seconds is not None for one in rest), "the others", MARGIN_SECONDS)
            assert all(one.told.startswith(b"HTTP/1.1 408 ") for one in bodies)
            assert all(BODY_SECONDS - 1 < (one.seconds or 0) < SILENT_SECONDS for one in bodies)
            assert not any(one.told for one in silent)
        else:
            assert not any(one.seconds for one in [*silent, *bodies])
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def resident(pid: int) -> int:
    """Bytes of memory that the process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_bodies_that_are_too_large_cost_a_bounded_amount() -> None:
    """Twenty at once, declared or in chunks that do not end: 413, or 429 where they are too many, and no more
    than one and a half of the largest size are held."""
    limit = 16_000_000
    async with engine(**FAST) as one:
        config = configured(one, backend=WARM, server={"body_bytes_max": limit})
        async with gateway(config) as front:
            await becomes(front, "b0", "ready")
            await ask(front, chat("x" * 1_000_000))
            before, most = resident(front.process.pid), 0
            codes: Counter[str] = Counter()

            async def declared() -> None:
                async with await RawClient.connect(front.url) as client:
                    await client.write(HEAD + b"Content-Length: %d\r\n\r\n" % (limit + 1))
                    fault(await reply(client), 413, "body_too_large")

            async def endless() -> None:
                async with await RawClient.connect(front.url) as client:
                    await client.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
                    answering = asyncio.create_task(client.head())
                    piece = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
                    for _ in range(2 * limit // 65_536):
                        if answering.done():
                            break
                        with contextlib.suppress(ConnectionError):
                            await client.write(piece)
                        await asyncio.sleep(0)
                    codes[str((await answering).status)] += 1

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, resident(front.process.pid))
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(declared() if number % 4 == 0 else endless())
            watching.cancel()
            grown = most - before
            log.info("%.1f times the largest body at most; %s", grown / limit, dict(codes))
            assert set(codes) <= {"413", "429"}
            assert grown < 4 * limit  # measured: less than 2
            assert (await ask(front, chat("x"))).head.status == 200


def cpu_seconds(pid: int) -> float:
    """That the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_more_connections_than_descriptors() -> None:
    """400 that say nothing, where 256 may be open: others are served meanwhile, the engine is reached and
    probed, nothing spins, and all is as before when they are gone."""
    async with (
        engine(**FAST) as one,
        gateway(configured(one, backend=WARM), program=("tests.processes.narrow",)) as front,
    ):
        await becomes(front, "b0", "ready")
        port = urlsplit(front.url).port
        assert port is not None
        crowd = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", port) for _ in range(400)))
        open_files = len(os.listdir(f"/proc/{front.process.pid}/fd"))
        assert open_files < DESCRIPTORS
        for _ in range(5):
            assert (await ask(front, chat("meanwhile"))).head.status == 200
        before, began = cpu_seconds(front.process.pid), time.monotonic()
        await asyncio.sleep(3.0)
        used = (cpu_seconds(front.process.pid) - before) / (time.monotonic() - began)
        log.info("%d descriptors, %.0f %% of a core while they are silent", open_files, 100 * used)
        assert used < 0.5
        assert (await front.operator.get("/admin/backends/b0")).json()["state"] == "ready"
        for _, writer in crowd:
            writer.transport.abort()
        await until(lambda: len(os.listdir(f"/proc/{front.process.pid}/fd")) < 60, "few descriptors", 5.0)
        assert (await ask(front, chat("afterwards"))).head.status == 200
