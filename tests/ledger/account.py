"""One gateway's account with a real Redis, without the gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.ledger.ledger import Ledger
from gateway.ledger.redis import RedisStore
from gateway.ledger.step import Word
from tests.processes.process import until

ENGINE = "http://engine:1"
POOL = "default"
LEASES = f"{{slotgate:{POOL}}}:leases:{ENGINE}"


@asynccontextmanager
async def account(
    url: str, slots: int = 4, lease_seconds: float = 1.0, hints: asyncio.Event | None = None
) -> AsyncIterator[Ledger]:
    """A ledger that talks to this Redis until the end, and then says good-bye."""
    store = RedisStore(url, POOL)

    def words() -> Sequence[Word]:
        came_ms = round(1000 * time.monotonic()) if hints is not None else None  # then somebody waits
        return [Word(ENGINE, slots, True, came_ms)]

    ledger = Ledger(
        store, store.channel, lease_seconds, time.monotonic, words, lambda: None, lambda: hints is not None
    )
    tasks = [asyncio.create_task(ledger.run())]
    if hints is not None:
        tasks.append(asyncio.create_task(store.hints(hints.set)))
    try:
        yield ledger
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await ledger.bye()
        await store.close()


async def take(ledger: Ledger, id: str, slots: int = 4) -> bool | None:
    """As a call does that has just come."""
    return await ledger.take(id, ENGINE, time.monotonic(), slots)


async def taken(ledger: Ledger, id: str, slots: int = 4) -> None:
    """Ask until it is given."""

    async def given() -> bool:
        return bool(await take(ledger, id, slots))

    await until(given, f"a slot for {id}")
