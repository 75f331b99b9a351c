"""Clients that ask and leave, at any moment and in every way that a client can."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

from tests.processes.harness import Gateway, RawClient

LEAVES = ("close", "reset", "half_close")
# A reset discards what the gateway has not read yet: before that the request does not exist.
RESET_SECONDS_MIN = 0.1
LEAVE_SECONDS_MAX = 0.4


async def leave(one: Gateway, dice: random.Random, path: str, body: dict[str, Any], headers: Any) -> bool:
    """Ask and leave at a random moment; whether the answer was complete by then."""
    how = dice.choice(LEAVES)
    earliest = RESET_SECONDS_MIN if how == "reset" else 0.0
    async with await RawClient.connect(one.url) as client:
        await client.post(path, body, headers)
        reading = asyncio.create_task(read_all(client))
        await asyncio.wait([reading], timeout=dice.uniform(earliest, LEAVE_SECONDS_MAX))
        done = reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        getattr(client, how)()
        if how == "half_close":
            await client.closed()
    return done


async def read_all(client: RawClient) -> None:
    """Read an answer; nobody cares any more if there is none."""
    with suppress(ConnectionError):
        await client.head()
        await client.body()
