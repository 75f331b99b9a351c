"""One gateway's account, step by step, with a ledger that answers as it is told."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine

import pytest

from gateway.ledger.dispatcher import SharedDispatcher
from gateway.ledger.ledger import Ledger, Mode
from gateway.ledger.step import Reply, Step, Store, Unavailable
from policies.admission import Admission
from policies.types import Limits
from tests.ledger.account import ENGINE, Holder
from tests.ledger.double import Double
from tests.simulation import virtual
from tests.unit.fleet import a_backend

SEEDS = 10
LEASE_SECONDS = 6.0
PAUSE_SECONDS = 2.05  # within which it asks again


class Script(Store):
    """The double, and what it was asked; it answers when it may."""

    channel = "freed"

    def __init__(self) -> None:
        self.double = Double()
        self.steps: list[Step] = []
        self.up = True
        self.open = asyncio.Event()
        self.open.set()

    async def step(self, step: Step) -> Reply:
        """As RedisStore does it, but that it takes no time."""
        self.steps.append(step)
        if not self.up:
            raise Unavailable("refused")
        told = self.double.step(step.encoded(), round(1000 * asyncio.get_running_loop().time()))
        await self.open.wait()
        return Reply.decoded(told)

    async def hints(self, hint: Callable[[], None]) -> None:
        """There are none."""

    async def close(self) -> None:
        """There is nothing to close."""


def on_its_own_clock(main: Callable[[Script, Ledger], Coroutine[None, None, None]]) -> None:
    """Run it with an account of an engine of four slots, in virtual time."""

    async def run(dice: random.Random) -> None:
        store, loop = Script(), asyncio.get_running_loop()
        ledger = Ledger(Holder(4), store, LEASE_SECONDS, loop.time, dice)
        running = asyncio.create_task(ledger.run())
        try:
            await main(store, ledger)
        finally:
            running.cancel()
            await asyncio.wait([running])

    for seed in range(SEEDS):
        virtual.run(run(random.Random(seed)))


def test_what_was_given_alone_is_told_at_once() -> None:
    """While nobody can be asked, and while an answer is on its way that ends this: the step that follows
    tells of both, before a renewal would."""

    async def main(store: Script, ledger: Ledger) -> None:
        await asyncio.sleep(5.0)
        store.up = False
        await asyncio.sleep(2.0)
        assert await ledger.take("a", ENGINE, 0.0, 4) is None
        ledger.keep("a", ENGINE)
        store.up = True
        store.open.clear()
        asked = len(store.steps)
        await asyncio.sleep(PAUSE_SECONDS)
        assert [len(step.held) for step in store.steps[asked:]] == [1]
        assert store.steps[-1].lost_ms is not None
        assert await ledger.take("b", ENGINE, 0.0, 4) is None
        ledger.keep("b", ENGINE)
        store.open.set()
        await asyncio.sleep(0.01)
        assert ledger.mode is Mode.SHARED
        assert [len(step.held) for step in store.steps[asked:]] == [1, 2]
        assert store.steps[-1].lost_ms is None
        assert len(store.double.leases[ENGINE]) == 2

    on_its_own_clock(main)


@pytest.mark.parametrize("seconds", [1.5, 10.0])
def test_who_is_alone_waits_for_nobody(seconds: float) -> None:
    """Redis is gone for less than a lease: what was said there tells that there is no other gateway, and a
    slot is given at once. For longer: there may be others, which have their time to come back."""

    async def main(store: Script, ledger: Ledger) -> None:
        await asyncio.sleep(5.0)
        store.up = False
        await asyncio.sleep(seconds)
        store.up = True
        await asyncio.sleep(PAUSE_SECONDS)
        assert ledger.mode is Mode.SHARED
        assert ledger.frozen == (seconds > LEASE_SECONDS)
        assert await ledger.take("a", ENGINE, 0.0, 4) is not ledger.frozen
        await asyncio.sleep(3.0)
        assert await ledger.take("b", ENGINE, 0.0, 4) is True

    on_its_own_clock(main)


def test_the_log_says_again_only_of_what_was_before(caplog: pytest.LogCaptureFixture) -> None:
    """A Redis that answers for the first time is not there again."""

    async def main(store: Script, ledger: Ledger) -> None:
        for _ in range(2):
            store.up = False
            await asyncio.sleep(3.0)
            store.up = True
            await asyncio.sleep(3.0)

    with caplog.at_level("INFO", "slotgate.ledger"):
        on_its_own_clock(main)
    told = [record.getMessage() for record in caplog.records if "shared" in record.getMessage()]
    assert told == ["slots are shared through Redis", "slots are shared through Redis again"] * SEEDS


def test_a_key_has_its_limit_in_all_gateways() -> None:
    """Three of eight that come at once to two gateways; what one gives back the other may have; each one's
    share while nobody can be asked, and what the ledger then knows counts while they wait for each other."""

    async def run(dice: random.Random) -> None:
        store, loop = Script(), asyncio.get_running_loop()
        fronts = [
            SharedDispatcher(Admission(Limits()), loop.time, str, store, LEASE_SECONDS) for _ in range(2)
        ]
        for front in fronts:
            front.ledger = Ledger(front, store, LEASE_SECONDS, loop.time, dice)
            front.admission.add(a_backend(slots=4), loop.time())
        running = [asyncio.create_task(front.run()) for front in fronts]
        number = itertools.count()

        async def let_in() -> list[tuple[SharedDispatcher, str]]:
            ids = [(front, str(next(number))) for front in fronts * 4]
            given = await asyncio.gather(*(front.claim(id, "team", 3) for front, id in ids))
            return [one for one, let in zip(ids, given, strict=True) if let]

        async def back() -> None:
            store.up = True
            await asyncio.sleep(PAUSE_SECONDS)

        try:
            await asyncio.sleep(5.0)
            inside = await let_in()
            assert len(inside) == 3
            assert await let_in() == []
            front, id = inside.pop()
            front.unclaim(id)
            await asyncio.sleep(0.01)
            (inside,) = [inside + await let_in()]
            assert len(inside) == 3
            for front, id in inside:
                front.unclaim(id)
            await asyncio.sleep(0.01)
            assert not store.double.leases["key:team"]
            store.up = False
            await asyncio.sleep(10.0)
            inside = await let_in()
            assert len(inside) == 4
            await back()
            assert all(front.ledger.frozen for front in fronts)
            assert await let_in() == []
            for front, id in inside[1:]:
                front.unclaim(id)
            await asyncio.sleep(0.5)
            assert len(await let_in()) <= 3
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    for seed in range(SEEDS):
        virtual.run(run(random.Random(seed)))
