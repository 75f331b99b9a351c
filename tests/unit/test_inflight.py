"""Interruptions, time limits and heartbeats of requests being served."""

from __future__ import annotations

import asyncio

import pytest

from gateway import errors
from gateway.accounting import Record
from gateway.client import Client
from gateway.engines.base import CHAT
from gateway.inflight import Inflight, Inflights, Phase
from gateway.request import parse
from gateway.routes.chat import Chat
from gateway.routes.completions import Completions
from tests.unit.wire import Wire

BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}'


def inflight(wire: Wire, total: float = 100.0) -> Inflight:
    client = Client(wire, Chat(), "r1", 0.0)
    client.streaming = True
    return Inflight(Record("r1", CHAT, 0.0), client, parse(BODY, Chat()), [], total)


def inflights(may_beat: bool = True) -> Inflights:
    return Inflights("auto", 10.0, lambda live, now: may_beat, lambda: 0.0)


async def test_an_interruption_becomes_its_failure() -> None:
    """A request that waits anywhere ends with the failure it was interrupted with; the task lives on."""
    live = inflight(Wire())
    asyncio.get_running_loop().call_soon(live.interrupt, errors.ClientGone())
    with pytest.raises(errors.ClientGone), inflights().serve(live):
        await asyncio.sleep(60)
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_first_interruption_counts() -> None:
    """A client that leaves after its time limit does not change the outcome."""
    live = inflight(Wire())
    loop = asyncio.get_running_loop()
    loop.call_soon(live.interrupt, errors.TotalTimeout(1))
    loop.call_soon(live.interrupt, errors.ClientGone())
    with pytest.raises(errors.TotalTimeout), inflights().serve(live):
        await asyncio.sleep(60)


async def test_a_foreign_cancellation_stays_one() -> None:
    """Only interruptions are turned into failures; the server's own cancellation passes."""
    live = inflight(Wire())

    async def serve() -> None:
        with inflights().serve(live):
            await asyncio.sleep(60)

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interruption_after_the_end_does_nothing() -> None:
    """A client that leaves with its whole answer interrupts nobody."""
    live = inflight(Wire())
    with inflights().serve(live):
        pass
    live.interrupt(errors.ClientGone())
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("phase", "now", "failure"),
    [
        (Phase.QUEUED, 99.0, None),
        (Phase.QUEUED, 100.0, errors.TotalTimeout),
        (Phase.PREFILL, 19.0, None),
        (Phase.PREFILL, 20.0, errors.FirstTokenTimeout),
        (Phase.DECODE, 20.0, errors.IdleTimeout),
        (Phase.DECODE, 4.0, None),
    ],
)
async def test_each_phase_has_its_limit(
    phase: Phase, now: float, failure: type[errors.Timeout] | None
) -> None:
    """The total limit counts from arrival, that of the first token from dispatch, idleness from the
    last data event, where there are some before the end."""
    live = inflight(Wire())
    live.first_token_seconds_max, live.idle_seconds_max = 20.0, 5.0
    live.enter(phase, 0.0)
    live.task = asyncio.create_task(asyncio.sleep(60))
    assert live.sweep(now) is (failure is None)
    assert failure is None or isinstance(live.failure, failure)
    live.task.cancel()
    silent = inflight(Wire())
    silent.idle_seconds_max = 5.0
    silent.enter(Phase.DECODE, 0.0, whole=True)
    assert silent.sweep(20.0)


async def test_ended_waits_for_the_last() -> None:
    """A drain is over when the last request has left, or when the time is up."""
    all_of_them = inflights()
    live = inflight(Wire())
    with all_of_them.serve(live):
        assert not await all_of_them.ended(0.01)
    assert await all_of_them.ended(0.01)


async def test_a_heartbeat_sends_the_head_once() -> None:
    """The first heartbeat sends the head, the second only itself; an error then is an event."""
    wire = Wire()
    live = inflight(wire)
    for now in (10.0, 20.0):
        live.beat("auto", now)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [message["type"] for message in wire.messages].count("http.response.start") == 1
    assert wire.sent == b": waiting\n\n" * 2
    await live.client.fail(errors.NoBackendReady(None))
    assert wire.sent.endswith(b"}}\n\n")
    assert b"[DONE]" not in wire.sent


async def test_without_heartbeats_nothing_is_sent() -> None:
    """Nor is anything begun, four times a second for each client that waits."""
    wire = Wire()
    live = inflight(wire)
    live.beat("off", 10.0)
    assert len(asyncio.all_tasks()) == 1
    assert wire.messages == []


def test_heartbeats_by_mode() -> None:
    """Clients that asked for usage get an empty chunk, others a comment; off means nothing."""
    chunk = Chat().heartbeat("auto", "m", "r1", include_usage=True)
    assert chunk.startswith(b'data: {"id":"r1","object":"chat.completion.chunk"')
    assert b'"choices":[]' in chunk
    assert Chat().heartbeat("auto", "m", "r1", include_usage=False).startswith(b":")
    assert Chat().heartbeat("comment", "m", "r1", include_usage=True).startswith(b":")
    assert b"text_completion" in Completions().heartbeat("chunk", "m", "r1", include_usage=False)
    assert Chat().heartbeat("off", "m", "r1", include_usage=True) == b""


async def test_a_late_sweep_does_not_judge() -> None:
    """After a pause of the whole process, what has come meanwhile is read first."""
    times = iter([0.0, 5.0, 5.0, 5.3])
    swept: list[float] = []

    class Noted(Inflights):
        def _sweep(self, now: float) -> None:
            swept.append(now)

    one = Noted("auto", 10.0, lambda live, now: True, lambda: next(times))
    running = asyncio.create_task(one.run())
    await asyncio.wait([running], timeout=30.0)  # it ends when the clock has no more times
    assert swept == [5.3]


async def test_silence_can_be_forgiven() -> None:
    """An answer that is whole all the same is not interrupted after all; another failure stands."""
    live = inflight(Wire())
    loop = asyncio.get_running_loop()
    with inflights().serve(live):
        loop.call_soon(live.interrupt, errors.IdleTimeout(1))
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(60)
        assert live.forgive_silence()
        live.sweep(99.0)
        await asyncio.sleep(0)
    assert live.failure is None
    live.failure = errors.ClientGone()
    assert not live.forgive_silence()
