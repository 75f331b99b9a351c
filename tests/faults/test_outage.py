"""Nobody is well: an outage is not multiplied, and those who wait cost little."""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.plays import says
from tests.faults.raw_engine import FAILS, raw_engine
from tests.faults.verdict import verdict
from tests.processes.asking import CHAT, ask, fault, metric, of
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Gateway, RawClient, chat, engine, gateway, until

REQUESTS, REQUESTS_LONG = 200, 1000
AT_ONCE = 100
WAITING, WAITING_LONG = 400, 2000
WAITING_BYTES = 25_000  # of each, its connection included; of its body there is little
SLACK_BYTES = 10_000_000


@pytest.mark.parametrize("requests", [REQUESTS, pytest.param(REQUESTS_LONG, marks=pytest.mark.long)])
async def test_an_outage_is_not_multiplied(requests: int) -> None:
    """Three engines that break each connection: there is one attempt in five more than requests at the most,
    and each request is told by 502, or by 503 with `Retry-After`."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(raw_engine()) for _ in range(3)]
        for one in engines:
            one.play = says(b"")
        backends = [
            {"name": f"b{n}", "url": one.url, "slots": 4, "warmup": {"requests": 0}}
            for n, one in enumerate(engines)
        ]
        queue = {"unavailable_grace_seconds": 0.5}
        front = await stack.enter_async_context(gateway({"backends": backends, "queue": queue}))
        for backend in backends:
            await becomes(front, str(backend["name"]), "ready")
        numbers, outcomes = iter(range(requests)), Counter[str]()

        async def client() -> None:
            for number in numbers:
                reply = await ask(front, chat(f"{FAILS} {number}", stream=number % 2 == 0))
                outcomes[verdict(reply, stream=False)] += 1
                if reply.head.status == 503:
                    assert 1 <= int(reply.head.headers["retry-after"]) <= 60

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        attempts = sum(one.asked.total() for one in engines)
        print(dict(outcomes), attempts)  # noqa: T201
        assert outcomes.keys() <= {"backend_failed", "no_backend_ready"}
        assert outcomes.total() == requests
        assert attempts <= 1.2 * requests + 3
        assert await metric(front, "slotgate_slots", state="in_use") == 0


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough for all clients."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 3 * WAITING_LONG:
        pytest.skip("the machine allows too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 3 * WAITING_LONG), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("waiting", [WAITING, pytest.param(WAITING_LONG, marks=pytest.mark.long)])
async def test_those_who_wait_cost_little(waiting: int) -> None:
    """Two thousand of them take 60 MB at the most; the next one is refused at once, with `Retry-After`."""
    async with (
        engine(slots=1) as one,
        gateway(configured(one, queue={"waiting_max": waiting})) as front,
        AsyncExitStack() as stack,
    ):
        await becomes(front, "b0", "ready")
        await one.script(match="runs", token_seconds=120.0)
        first = await stack.enter_async_context(await RawClient.connect(front.url))
        await first.post(CHAT, chat("runs"))
        await one.busy()
        before = memory(front)
        for number in range(waiting):
            client = await stack.enter_async_context(await RawClient.connect(front.url))
            await client.post(CHAT, chat(f"waits {number}", stream=number % 2 == 0))

        async def all_wait() -> bool:
            return await metric(front, "slotgate_queue_length") == waiting

        await until(all_wait, f"{waiting} that wait", 120.0)
        grown = memory(front) - before
        refused = await ask(front, chat("one too many"))
        fault(refused, 429, "queue_full")
        assert 1 <= int(refused.head.headers["retry-after"]) <= 60
        print(f"{grown / 1e6:.1f} MB")  # noqa: T201
        assert grown <= waiting * WAITING_BYTES + SLACK_BYTES
        assert len(await of(one, "runs")) == 1
        assert not await of(one, "waits")


def memory(front: Gateway) -> int:
    """Bytes of memory that the gateway has."""
    status = Path(f"/proc/{front.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
