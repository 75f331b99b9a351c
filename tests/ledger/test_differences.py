"""Redis, a gateway and an engine that do not agree are brought together, and counted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.ledger.differences import Differences
from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import RENEW_SHARE, Ledger
from gateway.metrics import Metrics
from policies.admission import Admission
from policies.types import Limits
from tests.debian import needs
from tests.ledger.account import ENGINE, LEASES, account, taken
from tests.ledger.server import redis_server
from tests.ledger.test_ledger import LEASE_SECONDS, Script, on_its_own_clock
from tests.processes.process import until
from tests.simulation import virtual
from tests.unit.fleet import a_backend

PROBE_SECONDS = 2.0


def test_a_lease_that_the_ledger_lost_is_back_at_the_next_renewal() -> None:
    """It is counted once. One that was given while nobody could be asked was never there, and is no loss."""

    async def main(store: Script, ledger: Ledger) -> None:
        await asyncio.sleep(5.0)
        assert await ledger.take("a", ENGINE, 0.0, 4) is True
        assert await ledger.take("b", ENGINE, 0.0, 4) is True
        for planted in (1, 2):
            there = store.double.leases[ENGINE]
            assert len(there) == 2
            del there[min(there)]
            await asyncio.sleep(RENEW_SHARE * LEASE_SECONDS + 0.01)
            assert len(store.double.leases[ENGINE]) == 2
            assert ledger.lost == {ENGINE: planted}
        store.up = False
        await asyncio.sleep(2.0)
        ledger.keep("c", ENGINE)
        store.up = True
        await asyncio.sleep(3 * LEASE_SECONDS)
        assert len(store.double.leases[ENGINE]) == 3 and ledger.lost == {ENGINE: 2}

    on_its_own_clock(main)


@needs("redis-server")
async def test_so_it_is_with_a_real_redis() -> None:
    """The script tells what was missing."""
    async with redis_server() as server, server.client() as client, account(server.url) as ledger:
        await taken(ledger, "a")
        (member,) = await client.zrange(LEASES, 0, -1)
        assert await client.zrem(LEASES, member) == 1

        async def back() -> bool:
            return bool(await client.zrange(LEASES, 0, -1) == [member])

        await until(back, "the lease again")
        await until(lambda: ledger.lost[ENGINE], "that it is counted")
        assert ledger.lost == {ENGINE: 1}


@pytest.mark.parametrize(("running", "ghosts", "kind"), [(0, 3, "idle"), (5, 1, "unknown")])
def test_an_engine_that_says_otherwise_makes_all_be_told_again(running: int, ghosts: int, kind: str) -> None:
    """Once for as long as they do not agree; leases whose gateway is gone are over within a lease."""

    none = {("backend", kind): 0 for kind in ("lost", "unknown", "idle")}

    async def main() -> None:
        store, loop = Script(), asyncio.get_running_loop()
        front = SharedDispatcher(Admission(Limits()), loop.time, str, store, LEASE_SECONDS)
        front.ledger = Ledger(front, store, LEASE_SECONDS, loop.time, random.Random(0))
        front.admission.add(a_backend(slots=8), loop.time())
        metrics = Metrics(front.admission, "0", differences=front.differences)
        task = asyncio.create_task(front.run())
        try:
            await asyncio.sleep(4.0)
            asked = 0
            for look in range(4):
                expiry = round(1000 * (loop.time() + LEASE_SECONDS))
                store.double.leases["backend"] = {f"ghost:{number}": expiry for number in range(ghosts)}
                await asyncio.sleep(PROBE_SECONDS)
                asked = len(store.steps)
                front.reported("backend", running)
                assert front.differences() == none | ({} if look < 3 else {("backend", kind): 1})
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            assert [step.full for step in store.steps[asked:]] == [True]
            line = f'slotgate_shared_differences_total{{backend="backend",kind="{kind}"}} 1.0'
            assert line in metrics.render().decode()
            front.reported("backend", running)
            await asyncio.sleep(LEASE_SECONDS + 1.0)
            assert front.ledger.elsewhere["backend"] == 0
            front.reported("backend", 1)
            assert front.differences() == none | {("backend", kind): 1}
            front.admission.remove("backend")
            assert front.differences() == {}
        finally:
            task.cancel()
            await asyncio.wait([task])

    run(main())


def test_what_lasts_is_counted_and_what_changes_is_not() -> None:
    """One request more or fewer is on its way; more than that at one look may be, too."""
    differences = Differences()
    assert not any(differences.looked("a", 3, 2, now) for now in range(20))
    looks = [(0, 5, 1), (2, 1, 1), (4, 5, 1), (9, 5, 1), (10, 5, 1), (11, 1, 4), (12, 5, 1), (17.5, 6, 1)]
    seen = [differences.looked("a", running, held, now) for now, running, held in looks]
    assert seen == [False, False, False, False, True, False, False, True]
    assert differences.counts == {("a", "unknown"): 2}


def run(main: Coroutine[Any, Any, None]) -> None:
    """In virtual time."""
    virtual.run(main)
