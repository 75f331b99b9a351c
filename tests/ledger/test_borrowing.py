"""Slots for a gateway's own requests, where several gateways share engines."""

from __future__ import annotations

import asyncio

from policies.types import Source
from tests.ledger.test_assumed_slots import Front
from tests.ledger.test_ledger import Script
from tests.simulation import virtual


def test_who_gets_no_slot_is_told_why() -> None:
    """All may be free, and nothing starts: the ledger does not know yet what runs."""

    async def run() -> tuple[str, str, bool]:
        front = Front(Script(), 1, Source.REPORTED)
        try:
            early = front.dispatcher.unlent("backend")
            await asyncio.sleep(60.0)
            front.call("a")
            await asyncio.sleep(5.0)
            return early, front.dispatcher.unlent("backend"), await front.dispatcher.borrow("backend")
        finally:
            for task in front.tasks:
                task.cancel()
            await asyncio.gather(*front.tasks, return_exceptions=True)

    early, late, given = virtual.run(run())
    assert early == "starts are held until the shared ledger is sure what runs"
    assert (late, given) == ("no slot is free", False)
