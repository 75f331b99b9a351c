"""Requests that an engine's process took with it without a word: no data, no error, no end."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engines.base import Report
from gateway.inflight import LOST_SECONDS, LOST_STREAM_SECONDS, Inflight, Phase
from gateway.probes import NoAnswer
from gateway.watch import READY_SECONDS
from policies.types import State
from tests.unit.stage import PLAIN, Stage, over
from tests.unit.test_inflight import inflight
from tests.unit.wire import Wire

ENDED = 10.0  # when the end of the process was noticed


def running(phase: Phase, dispatched: float = 1.0, since: float = 2.0) -> Inflight:
    """A request at a backend, in this phase since then."""
    live = inflight(Wire())
    live.record.dispatched, live.record.backend = dispatched, "a"
    live.enter(phase, since)
    return live


def lost_after(live: Inflight) -> float | None:
    """Seconds from the end of the process until the request is given up."""
    for quarter in range(1000):
        if live.lost(ENDED, ENDED + quarter / 4):
            return quarter / 4
    return None


async def test_a_stream_is_given_up_soon_after_the_end() -> None:
    """But not while it flows: a process that closes its port may finish what it has."""
    assert lost_after(running(Phase.DECODE)) == LOST_STREAM_SECONDS
    flowing = running(Phase.DECODE)
    flowing.progress_at = ENDED + 20.0
    assert lost_after(flowing) == 20.0 + LOST_STREAM_SECONDS


async def test_what_is_silent_by_nature_has_more_time() -> None:
    """A prefill without comments, and an answer that comes whole."""
    assert lost_after(running(Phase.PREFILL)) == LOST_SECONDS
    commented = running(Phase.PREFILL)
    commented.progress_at = ENDED + 20.0
    assert lost_after(commented) == 20.0 + LOST_SECONDS
    whole = running(Phase.DECODE)
    whole.enter(Phase.DECODE, 2.0, whole=True)
    assert lost_after(whole) == LOST_SECONDS


async def test_nothing_else_is_given_up() -> None:
    """A request in the queue, one that the next process has, and any where no process ended."""
    assert lost_after(running(Phase.QUEUED)) is None
    assert lost_after(running(Phase.DECODE, dispatched=ENDED + 1.0, since=ENDED + 2.0)) is None
    assert not running(Phase.DECODE).lost(float("-inf"), 1e9)


@over(PLAIN)
async def test_an_engine_that_says_it_is_loading_keeps_what_runs(stage: Stage) -> None:
    """A proxy may say so for it, for a moment; what is refused, or has another start, is another matter."""
    await stage.told(Report(models=("m",), started="1"))
    await stage.told(Report(loading=True))
    assert (stage.backend.state, stage.member.ended_at) == (State.STARTING, float("-inf"))
    await stage.told(Report(models=("m",), started="1"))
    now = asyncio.get_running_loop().time()
    await stage.told(Report(models=("m",), started="2"))
    assert stage.member.ended_at >= now


class Line:
    """Stands for an exchange; what it ends with is what the test waits for."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def abort(self, cause: str) -> None:
        """As that of `Exchange`; also behind the end."""
        if not self.broken.done():
            self.broken.set_result(cause)


@pytest.mark.parametrize("next_process", [False, True])
def test_the_watch_breaks_the_connections_of_what_is_lost(next_process: bool) -> None:
    """Within a few probes of the first refused one; also when another process answers at once."""

    @over(PLAIN)
    async def body(stage: Stage) -> None:
        clock = asyncio.get_running_loop().time
        await stage.told(Report(models=("m",), started="1"))
        lines = {"a": Line(), "b": Line()}
        for backend, line in lines.items():
            live = running(Phase.DECODE, dispatched=clock(), since=clock())
            live.record.id = live.record.backend = backend
            live.exchange = line  # type: ignore[assignment]
            stage.inflights.enter(live)
        await asyncio.sleep(1.0)
        ended = clock()
        if next_process:
            assert (await stage.told(Report(models=("m",), started="2"))).state is State.READY
        else:
            assert await stage.hears(NoAnswer.REFUSED) is State.DOWN
        assert await lines["a"].broken == "silent since the engine's process ended"
        assert LOST_STREAM_SECONDS <= clock() - ended <= LOST_STREAM_SECONDS + 2 * READY_SECONDS
        await asyncio.sleep(2 * LOST_SECONDS)
        assert not lines["b"].broken.done()

    body()
