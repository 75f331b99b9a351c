"""Slots that nobody tells are searched for by all gateways together: who begins takes nothing back."""

from __future__ import annotations

import asyncio
import random

from gateway.capacity import Capacity
from gateway.engines.base import Report
from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import Ledger
from gateway.member import Member
from gateway.options import BackendSettings
from policies.admission import Admission
from policies.types import Limits, Source
from tests.ledger.test_ledger import LEASE_SECONDS, Script
from tests.simulation import virtual
from tests.unit.fleet import a_backend, a_call


class Front:
    """A gateway that gives one engine so many requests at a time."""

    def __init__(self, store: Script, slots: int, source: Source) -> None:
        loop = asyncio.get_running_loop()
        self.dispatcher = SharedDispatcher(Admission(Limits()), loop.time, str, store, LEASE_SECONDS)
        self.dispatcher.ledger = Ledger(
            self.dispatcher, store, LEASE_SECONDS, loop.time, random.Random(slots)
        )
        self.backend = a_backend(slots=slots, slots_source=source)
        self.dispatcher.admission.add(self.backend, 0.0)
        self.tasks = [asyncio.create_task(self.dispatcher.run())]

    def call(self, id: str) -> None:
        """A request that runs on."""
        self.tasks.append(asyncio.create_task(self._call(id)))

    async def _call(self, id: str) -> None:
        async with self.dispatcher.slot(a_call(id, arrived=asyncio.get_running_loop().time())):
            await asyncio.sleep(1000.0)


def running(source: Source, begins: Source, slots: int = 1) -> tuple[int, int]:
    """Of five requests to a gateway that gives four slots, those that run once another one has begun, which
    knows of so many; and how many that one hears of."""

    async def run() -> tuple[int, int]:
        store = Script()
        fronts = [Front(store, 4, source)]
        await asyncio.sleep(5.0)
        fronts.append(Front(store, slots, begins))
        await asyncio.sleep(5.0)
        for number in range(5):
            fronts[0].call(str(number))
        await asyncio.sleep(5.0)
        heard = fronts[1].dispatcher.slots_elsewhere("backend")
        assert fronts[0].backend.free == 0
        leases = len(store.double.leases["backend"])
        tasks = [task for front in fronts for task in front.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return leases, heard

    return virtual.run(run())


def test_one_that_is_only_assumed_is_no_figure() -> None:
    """For who has tried more, and for who knows; who begins hears of both."""
    assert running(Source.ASSUMED, Source.ASSUMED) == (4, 4)
    assert running(Source.LEARNT, Source.ASSUMED) == (4, 4)


def test_of_those_who_know_the_least_counts() -> None:
    """Also for who has tried more."""
    assert running(Source.LEARNT, Source.CONFIGURED, 2) == (2, 4)
    assert running(Source.ASSUMED, Source.CONFIGURED, 2) == (2, 4)


def test_who_begins_goes_on_where_others_are() -> None:
    """Not behind a restart of the engine, of which they may not know yet."""
    member = Member.of(BackendSettings(name="a", url="http://127.0.0.1:9"))
    member.told_elsewhere(4)
    member.told_elsewhere(0)
    assert Capacity.of(member.settings, Report(), member.experience).slots == 4
    member.ended(0.0)
    member.told_elsewhere(4)
    assert Capacity.of(member.settings, Report(), member.experience).slots == 1
