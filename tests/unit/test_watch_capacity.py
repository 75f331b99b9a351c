"""What fits into an engine follows it: over restarts, over what it shows, over its want of memory."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.capacity import LOWER_SECONDS, RESTORE_SECONDS
from gateway.engines.base import Report
from gateway.probes import NoAnswer
from policies.types import Source, State
from tests.unit.fleet import MODEL, a_call
from tests.unit.stage import PLAIN, Stage, over

MODELS = (MODEL,)


def report(**more: object) -> Report:
    """What an engine says that can serve."""
    return Report(models=MODELS, **more)  # type: ignore[arg-type]


# -- what it says -----------------------------------------------------------------------------------------


@over(PLAIN)
async def test_the_token_budget_as_reported(stage: Stage) -> None:
    """It follows the engine."""
    assert (await stage.told(report(slots=6, kv_tokens=100_000))).kv_tokens == 100_000
    assert (await stage.told(report(slots=6, kv_tokens=50_000))).kv_tokens == 50_000
    assert (await stage.told(report(slots=6))).kv_tokens is None


@over(PLAIN, kv_tokens=70_000, backup=True)
async def test_the_token_budget_as_configured(stage: Stage) -> None:
    """It stands, whatever the engine says; like the place of a backup, it is known from the start."""
    assert (stage.backend.kv_tokens, stage.backend.backup) == (70_000, True)
    assert (await stage.told(report(kv_tokens=100_000))).kv_tokens == 70_000


# -- what it shows ----------------------------------------------------------------------------------------


@over(PLAIN)
async def test_slots_are_learnt_until_the_engine_restarts(stage: Stage) -> None:
    """What ran while others waited, seen twice; the next process may have been started with fewer."""
    full = report(running=3, waiting=2, busy=5, started="1")
    assert (await stage.told(full)).slots_source is Source.ASSUMED
    backend = await stage.told(full)
    assert (backend.slots, backend.slots_source) == (3, Source.LEARNT)
    idle = report(running=0, waiting=0, busy=0, started="1")
    assert (await stage.told(idle)).slots == 3
    anew = report(running=0, waiting=0, busy=0, started="2")
    assert ((await stage.told(anew)).slots, backend.slots_source) == (1, Source.ASSUMED)
    assert backend.state is State.READY


def test_a_warning_says_what_becomes_of_slots_that_nobody_tells(caplog: pytest.LogCaptureFixture) -> None:
    """One stays one, unless the engine shows when all are taken."""

    @over(PLAIN)
    async def restarted(stage: Stage) -> None:
        await stage.told(report(started="1"))
        await stage.told(report(running=0, waiting=0, busy=0, started="2"))

    restarted()
    told = [message for message in caplog.messages if "1 is assumed" in message]
    assert told[0] == "a does not tell its slots: 1 is assumed; set slots in its [[backends]] table"
    assert "assumed, one more is tried whenever all are taken; set" in told[-1]


@over(PLAIN, slots=4)
async def test_an_engine_short_of_memory_gets_one_request_less_for_a_while(stage: Stage) -> None:
    """Also where the operator set the slots: the source stays, the reason is shown. A new process has all
    of its memory again."""
    await stage.told(report(refused=7, started="1"))
    assert (await stage.told(report(refused=8, started="1"))).slots == 3
    assert stage.backend.slots_source is Source.CONFIGURED
    assert stage.member.capacity.reason == "lowered from 4: the engine ran short of memory"
    await asyncio.sleep(LOWER_SECONDS)
    assert (await stage.told(report(refused=9, started="1"))).slots == 2
    await asyncio.sleep(RESTORE_SECONDS)
    assert (await stage.told(report(refused=9, started="1"))).slots == 3
    assert (await stage.told(report(refused=0, started="2"))).slots == 4


# -- restarts ---------------------------------------------------------------------------------------------


@over(PLAIN)
async def test_a_restart_shows_in_the_uptime(stage: Stage) -> None:
    """Of an engine that tells no start: it went down, or is far behind the time that has passed; a little
    behind is one that had to wait."""
    await stage.told(report(slots=11, uptime_seconds=40))
    ends = stage.member.ends
    assert (await stage.told(report(slots=11, uptime_seconds=40))).slots == 11
    assert stage.member.ends == ends
    assert (await stage.told(report(slots=2, uptime_seconds=1))).slots == 2
    assert (stage.member.ends, stage.states[-3:]) == (ends + 1, ["starting", "warming", "ready"])
    stage.probes.answers = NoAnswer.SILENT
    async with stage.dispatcher.slot(a_call()):  # so silence proves nothing
        await asyncio.sleep(70.0)
    stage.probes.answers = PLAIN
    assert (await stage.told(report(slots=3, uptime_seconds=30))).slots == 3
    assert stage.member.ends == ends + 2
    stage.probes.seconds = 4.0
    await stage.told(report(slots=3, uptime_seconds=31))
    assert stage.member.ends == ends + 2


@over(PLAIN)
async def test_a_smaller_process_gets_nothing_before_it_has_room(stage: Stage) -> None:
    """It restarted between two probes; requests of the old process hold their slots until they end."""
    await stage.told(report(slots=4, started="1"))
    async with AsyncExitStack() as rest:
        for number in range(3):
            await rest.enter_async_context(stage.dispatcher.slot(a_call(str(number))))
        async with stage.dispatcher.slot(a_call("first")):
            backend = await stage.told(report(slots=2, started="2"))
            assert (backend.slots, backend.free, backend.state) == (2, 0, State.READY)
        assert backend.free == 0
    assert backend.free == 2
