"""What operators ask of the fleet."""

from __future__ import annotations

import asyncio

from gateway.probes import NoAnswer
from policies.types import State
from tests.unit.fleet import a_call
from tests.unit.stage import LATER, LOADING, PLAIN, Stage, llamacpp, over


@over(llamacpp(started="1"))
async def test_what_is_drained_stays_so_until_it_is_resumed(stage: Stage) -> None:
    """Over the end and the restart of its engine; then it is warmed up like any other."""
    stage.fleet.drain("a", "new driver")
    assert (stage.backend.state, stage.backend.why) == (State.DRAINED, "new driver")
    for answers in (NoAnswer.REFUSED, LOADING, llamacpp(slots=7, started="2")):
        assert await stage.hears(answers) is State.DRAINED
    stage.fleet.resume("a")
    assert stage.backend.state is State.STARTING
    await asyncio.sleep(0.01)
    assert stage.backend.state is State.READY
    assert stage.backend.slots == 7
    assert stage.states == ["warming", "ready", "drained", "starting", "warming", "ready"]


@over(PLAIN)
async def test_only_what_is_held_is_resumed(stage: Stage) -> None:
    """Resuming a backend that is at work changes nothing."""
    stage.fleet.resume("a")
    await asyncio.sleep(LATER)
    assert stage.states == ["warming", "ready"]


@over(PLAIN)
async def test_a_drain_is_waited_for(stage: Stage) -> None:
    """Until the last request has ended, but no longer than the caller wants; of an idle one not at all."""
    async with stage.dispatcher.slot(a_call()):
        stage.fleet.drain("a", "")
        assert stage.backend.state is State.DRAINING
        assert not await stage.fleet.drained("a", 1.0)
        waiting = asyncio.create_task(stage.fleet.drained("a", 60.0))
        await asyncio.sleep(1.0)
        assert not waiting.done()
    assert await waiting
    assert await stage.fleet.drained("a", 0.0)
    stage.fleet.resume("a")
    await asyncio.sleep(0.01)
    assert not await stage.fleet.drained("a", 1.0)
