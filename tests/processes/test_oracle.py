"""HAProxy as the oracle: the same arrivals through it and through the gateway end the same way."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.debian import needs
from tests.processes.asking import ask, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, RawClient, chat, engine, free_port, gateway, until
from tests.processes.process import Process

SECONDS = 60
RATE = 13.0  # a second; six slots serve twelve
SERVICE: dict[str, Any] = {"prefill_tps": 1e6, "tokens": 10, "decode_tps": 20.0}  # half a second
SLOTS = 2
WAIT_SECONDS = 2
COMPLETED, TIMED_OUT = "completed", "timed out"
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout queue {wait}s
  option abortonclose
  no option http-server-close
frontend clients
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  balance leastconn
  http-reuse safe
{servers}
"""


@asynccontextmanager
async def haproxy(engines: list[Engine]) -> AsyncIterator[str]:
    """Run it before these engines, with so many requests at each and a queue; its URL."""
    program = shutil.which("haproxy")
    assert program is not None
    port = free_port()
    lines = [f"  server e{n} 127.0.0.1:{one.port} maxconn {SLOTS}" for n, one in enumerate(engines)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(HAPROXY.format(wait=WAIT_SECONDS, port=port, servers="\n".join(lines)))
        process = Process(["-db", "-f", str(file)], Path(folder), {}, program=program)
        try:
            url = f"http://127.0.0.1:{port}"
            await until(lambda: listens(url), "HAProxy listens")
            yield url
        finally:
            await process.kill()


async def listens(url: str) -> bool:
    """Whether somebody takes connections there."""
    try:
        async with await RawClient.connect(url):
            return True
    except OSError:
        return False


def arrivals(seed: int) -> list[float]:
    """Seconds from the start at which requests come, by chance."""
    dice, now, found = random.Random(seed), 0.0, []
    while (now := now + dice.expovariate(RATE)) < SECONDS:
        found.append(now)
    return found


async def played(url: str, times: list[float], refused: int) -> Counter[str]:
    """What became of requests that come at these times."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    class There:
        def __init__(self) -> None:
            self.url = url

    async def one(number: int, at: float) -> str:
        await asyncio.sleep(began + at - loop.time())
        reply = await ask(There(), chat(f"request {number}", stream=False))  # type: ignore[arg-type]
        assert reply.head.status in (200, refused), reply
        return COMPLETED if reply.head.status == 200 else TIMED_OUT

    return Counter(await asyncio.gather(*(one(number, at) for number, at in enumerate(times))))


@pytest.mark.long
@needs("haproxy")
async def test_the_same_arrivals_end_the_same_way() -> None:
    """A little more than three engines of two slots can do, for a minute: as many answers within 2 %, as many
    waits that end in vain within 1 % of all, and as many requests at most at each engine."""
    times = arrivals(1)
    outcomes, most = [], []
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine(slots=SLOTS, **SERVICE)) for _ in range(3)]
        async with haproxy(engines) as url:
            outcomes.append(await played(url, times, 503))
        most.append([(await one.state())["max_concurrent"] for one in engines])
        for one in engines:
            await one.reset()
        backends = [{"name": f"b{n}", "url": one.url, "slots": SLOTS} for n, one in enumerate(engines)]
        config = {
            "backends": backends,
            "queue": {"wait_seconds_max": WAIT_SECONDS},
            "routing": {"hold_seconds_max": 0, "interactive_reserve_slots": 0},
        }
        async with gateway(config) as front:
            for backend in backends:
                await becomes(front, str(backend["name"]), "ready")
            outcomes.append(await played(front.url, times, 429))
            await quiet(front)
        most.append([(await one.state())["max_concurrent"] for one in engines])
    print(len(times), outcomes, most)  # noqa: T201
    oracle, ours = outcomes
    assert most == [[SLOTS] * 3] * 2
    assert abs(ours[COMPLETED] - oracle[COMPLETED]) <= 0.02 * oracle[COMPLETED]
    assert abs(ours[TIMED_OUT] - oracle[TIMED_OUT]) <= 0.01 * len(times)
