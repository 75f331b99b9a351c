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


class Holder:
    """Whose account it is: one engine of so many slots, for which a call waits or none."""

    def __init__(self, slots: int, waiting: bool = False) -> None:
        self.slots = slots
        self.waiting = waiting

    def words(self) -> Sequence[Word]:
        """Of that engine."""
        came_ms = round(1000 * time.monotonic()) if self.waiting else None
        return [Word(ENGINE, self.slots, True, came_ms)]

    def told(self) -> None:
        """Nothing follows from it."""

    def waits(self) -> bool:
        """Whether one does."""
        return self.waiting


@asynccontextmanager
async def account(
    url: str, slots: int = 4, lease_seconds: float = 1.0, hints: asyncio.Event | None = None
) -> AsyncIterator[Ledger]:
    """A ledger that talks to this Redis until the end, and then says good-bye."""
    store = RedisStore(url, POOL)
    ledger = Ledger(Holder(slots, hints is not None), store, lease_seconds, time.monotonic)
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
