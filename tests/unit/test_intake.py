"""Bodies on their way: bounds of one and of all, and who goes first."""

from __future__ import annotations

import asyncio

import pytest

from gateway import errors
from gateway.intake import Intake
from tests.simulation import virtual

FOREVER = 3600.0


class Sender:
    """A client that sends pieces of a body when it is told to."""

    def __init__(self, intake: Intake, seconds: float = FOREVER) -> None:
        self._sends = asyncio.Queue[int | None]()
        self.task = asyncio.create_task(self._send(intake, seconds))

    async def _send(self, intake: Intake, seconds: float) -> int:
        async with intake.read(seconds) as reading:
            while (size := await self._sends.get()) is not None:
                reading.has(size)
                reading.check()
            return reading.bytes

    async def has(self, size: int | None) -> None:
        """So many bytes have come; None: that was all."""
        self._sends.put_nowait(size)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_one_body_has_a_bound_of_its_own() -> None:
    """Up to it all is well; nothing of one that is over it counts."""
    intake = Intake(10, 100)
    fits, large = Sender(intake), Sender(intake)
    await fits.has(10)
    await large.has(4)
    await large.has(11)
    with pytest.raises(errors.BodyTooLarge):
        await large.task
    assert intake.bytes == 10
    await fits.has(None)
    assert await fits.task == 10
    assert intake.bytes == 0


async def test_who_is_silent_longest_goes_first() -> None:
    """Nobody keeps others out by half a body: however much of it was sent, and whoever came first."""
    intake = Intake(100, 100)
    first, silent, busy = (Sender(intake) for _ in range(3))
    await first.has(30)
    await silent.has(60)
    await first.has(31)
    await busy.has(9)
    assert intake.bytes == 100
    await busy.has(10)
    with pytest.raises(errors.QueueFull) as refused:
        await silent.task
    assert refused.value.retry_after_seconds
    assert intake.bytes == 41
    for sender in (first, busy):
        await sender.has(None)
        await sender.task
    assert intake.bytes == 0


def test_who_is_refused_is_told_how_long_others_took() -> None:
    """The seconds from one body that became whole to the next; before any did, a second."""

    async def main() -> None:
        intake = Intake(100, 100)
        for expected in (1, 20):
            silent, busy = Sender(intake, 99.0), Sender(intake, 99.0)
            await silent.has(60)
            await busy.has(41)
            with pytest.raises(errors.QueueFull) as refused:
                await silent.task
            assert dict(refused.value.headers())[b"retry-after"] == b"%d" % expected
            await asyncio.sleep(20.0)
            await busy.has(None)
            await busy.task

    virtual.run(main())


async def test_one_that_is_too_much_alone_is_refused_itself() -> None:
    """Then there is nobody else to go."""
    intake = Intake(100, 50)
    sender = Sender(intake)
    await sender.has(51)
    with pytest.raises(errors.QueueFull):
        await sender.task
    assert intake.bytes == 0


async def test_a_body_that_does_not_come_has_its_time() -> None:
    """And nothing of it is held any more."""
    intake = Intake(100)
    sender = Sender(intake, 0.01)
    await sender.has(9)
    with pytest.raises(errors.RequestTimeout):
        await sender.task
    assert intake.bytes == 0


async def test_at_the_end_nobody_is_waited_for() -> None:
    """Who is sending is told, and who begins."""
    intake = Intake(100)
    sender = Sender(intake)
    await sender.has(9)
    intake.close()
    late = Sender(intake)
    for one in (sender, late):
        with pytest.raises(errors.ShuttingDown):
            await one.task
    assert intake.bytes == 0


async def test_whoever_is_cancelled_holds_nothing() -> None:
    """A cancellation is none of its errors."""
    intake = Intake(100)
    sender = Sender(intake)
    await sender.has(9)
    sender.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sender.task
    assert intake.bytes == 0
