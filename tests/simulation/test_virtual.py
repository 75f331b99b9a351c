"""The virtual loop keeps asyncio's order, takes no time, and notices when nothing can run."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.simulation import virtual


def test_jumps_to_the_next_timer() -> None:
    """Hours of sleep take no time, and the clock says when each of them ended."""
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (3600.0, 0.0, 0.25):
            await asyncio.sleep(seconds)
            times.append(loop.time())

    started = time.monotonic()
    virtual.run(main())
    assert times == [3600.0, 3600.0, 3600.25]
    assert time.monotonic() - started < 60.0


def test_raises_when_nothing_can_run() -> None:
    """A wait that nobody will ever end is an error at once, not a hang."""

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(virtual.NothingCanRun):
        virtual.run(main())


def test_cancels_at_the_instant_of_a_result() -> None:
    """Things of one instant meet: a task can be cancelled after its future was resolved, before it woke."""
    seen: list[str] = []

    async def wait(future: asyncio.Future[str]) -> None:
        try:
            seen.append(await future)
        except asyncio.CancelledError:
            seen.append(f"cancelled with {future.result()} in hand")

    async def main() -> None:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(wait(future))
        await asyncio.sleep(1)
        future.set_result("a lease")
        task.cancel()
        await asyncio.wait([task])

    virtual.run(main())
    assert seen == ["cancelled with a lease in hand"]
