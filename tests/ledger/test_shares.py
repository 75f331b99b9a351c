"""What each gateway gives while nobody can be asked: some of each engine's slots, and no fewer than one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import Ledger, Mode
from gateway.ledger.step import Standing
from policies.admission import Admission
from policies.types import Limits
from tests.ledger.account import ENGINE, Holder
from tests.ledger.test_ledger import LEASE_SECONDS, PAUSE_SECONDS, Script
from tests.simulation import virtual
from tests.unit.fleet import a_backend, a_call

GATEWAYS = 3
SECONDS_MAX = 60.0


class Pool:
    """Three gateways before one engine, which does not say how many requests it runs."""

    def __init__(self, slots: int) -> None:
        self.store, loop = Script(), asyncio.get_running_loop()
        self.fronts: list[SharedDispatcher] = []
        for number in range(GATEWAYS):
            front = SharedDispatcher(Admission(Limits()), loop.time, str, self.store, LEASE_SECONDS)
            front.ledger = Ledger(front, self.store, LEASE_SECONDS, loop.time, random.Random(number))
            front.admission.add(a_backend(slots=slots), loop.time())
            self.fronts.append(front)
        self.tasks = [asyncio.create_task(front.run()) for front in self.fronts]

    async def down(self) -> None:
        """Redis goes, and all notice."""
        self.store.up = False
        await asyncio.sleep(PAUSE_SECONDS)
        assert all(front.ledger.mode is Mode.DEGRADED for front in self.fronts)

    async def served(self, number: int, id: str) -> None:
        """A request to this gateway, to its end."""
        async with self.fronts[number].slot(a_call(id, arrived=asyncio.get_running_loop().time())):
            await asyncio.sleep(1.0)


def in_virtual_time(slots: int, main: Callable[[Pool], Coroutine[Any, Any, None]]) -> None:
    """Run it with such a pool."""

    async def run() -> None:
        pool = Pool(slots)
        try:
            await asyncio.sleep(5.0)
            async with asyncio.timeout(SECONDS_MAX):
                await main(pool)
        finally:
            for task in pool.tasks:
                task.cancel()
            await asyncio.wait(pool.tasks)

    virtual.run(run())


def test_every_gateway_answers_without_redis() -> None:
    """Also those that are more than the engine has slots: which stands idle else."""

    async def main(pool: Pool) -> None:
        await pool.down()
        for number in range(GATEWAYS):
            await pool.served(number, f"r{number}")

    in_virtual_time(1, main)


@pytest.mark.parametrize("gateways", range(1, 9))
@pytest.mark.parametrize("slots", range(1, 9))
def test_the_shares_are_all_slots_and_hardly_more(slots: int, gateways: int) -> None:
    """Each at least one, together less than the slots and the gateways."""

    async def run() -> None:
        shares: list[int] = []
        told: list[int] = []
        alone: list[int] = []
        for rank in range(gateways):
            ledger = Ledger(Holder(slots), Script(), LEASE_SECONDS, lambda: 0.0)
            alone.append(ledger.share(ENGINE, slots))
            ledger.among(gateways, rank)
            told.append(ledger.share(ENGINE, slots))
            ledger.standings[ENGINE] = Standing(0, slots, 0, 0, 1, 0, True)
            assert gateways == 1 or ledger.share(ENGINE, slots) == told[-1]  # others have not begun yet
            ledger.standings[ENGINE] = Standing(0, slots, 0, 0, gateways, rank, True)
            shares.append(ledger.share(ENGINE, slots))
        assert min(shares) >= 1
        assert slots <= sum(shares) == max(slots, gateways)
        assert told == shares  # workers, which know how many they are before Redis ever answers
        assert set(alone) == {(slots + 1) // 2}

    virtual.run(run())
