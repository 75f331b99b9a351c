"""A client that leaves, in every phase and in every way: nothing of it stays, anywhere."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.processes.asking import (
    CHAT,
    arrival,
    ask,
    backend,
    counted,
    ending,
    metric,
    of,
    queued,
    quiet,
    waits,
)
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until

log = logging.getLogger(__name__)
pytestmark = pytest.mark.asyncio(loop_scope="module")

LEAVE = ("close", "reset", "half_close")
KINDS = ("openai", "llamacpp")
SECONDS = 3.0  # for what takes milliseconds on an idle machine
HEARTBEAT_SECONDS = 0.4
DEPARTURES = 200


@dataclass(frozen=True)
class Stage:
    """One gateway with an engine of each kind, one slot each; a model is named by its engine's kind."""

    gateway: Gateway
    engines: dict[str, Engine]

    def body(self, kind: str, content: str, **more: Any) -> dict[str, Any]:
        """A streaming request to that engine."""
        return chat(content, **more) | {"model": kind}

    async def settled(self) -> None:
        """Wait until nothing of anybody is left, and count from here."""
        for kind, one in self.engines.items():
            await one.idle()
            await self.slots(kind, in_use=0, leaving=0)
            await one.reset()
        await quiet(self.gateway)

    async def slots(self, kind: str, **wanted: int) -> None:
        """Wait until the gateway counts so."""

        async def so() -> bool:
            slots = (await backend(self.gateway, kind))["slots"]
            return wanted.items() <= slots.items()

        await until(so, f"{kind} slots {wanted}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Stage]:
    """The processes, for all tests of this module."""
    async with engine("openai", model=["openai"]) as plain, engine("llamacpp", model=["llamacpp"]) as llama:
        engines = {"openai": plain, "llamacpp": llama}
        backends = [{"name": kind, "url": one.url, "slots": 1} for kind, one in engines.items()]
        queue = {"heartbeat_seconds": HEARTBEAT_SECONDS}
        async with gateway({"backends": backends, "queue": queue}) as one:
            stage = Stage(one, engines)
            for kind in KINDS:
                await until(lambda kind=kind: ready(one, kind), f"{kind} ready")
            yield stage


async def ready(one: Gateway, kind: str) -> bool:
    """Whether that backend takes calls."""
    return bool((await backend(one, kind))["state"] == "ready")


@pytest_asyncio.fixture(loop_scope="module")
async def stage(running: Stage) -> AsyncIterator[Stage]:
    """Nothing is left of the test before."""
    await running.settled()
    yield running
    await running.settled()


async def gone(stage: Stage) -> float:
    """How many requests ended so."""
    return await metric(stage.gateway, "slotgate_requests_total", outcome="client_gone")


async def depart(client: RawClient, how: str) -> float:
    """Leave; who only closes his side sees the gateway close the other. Returns when."""
    left: float = getattr(client, how)()
    if how == "half_close":
        assert await client.closed() - left < SECONDS
    return left


# -- every phase


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("phase", ["prefill", "heartbeat", "stream", "document"])
async def test_the_engine_sees_a_client_leave(stage: Stage, kind: str, how: str, phase: str) -> None:
    """Its connection is closed at once, whatever the phase, and the slot serves the next client."""
    one, before = stage.engines[kind], await gone(stage)
    silent = phase in ("prefill", "heartbeat")
    await one.script(prefill_seconds=60.0 if silent else 0.0, token_seconds=60.0, tokens=3)
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(CHAT, stage.body(kind, "leaves", stream=phase != "document"))
        await arrival(one, "leaves")
        if phase == "heartbeat":
            await client.head()
            assert await client.event()
        elif phase == "stream":
            await client.head()
            await client.first_token()
        left = await depart(client, how)
        record = await ending(one, "leaves")
    assert record["outcome"] == "aborted"
    assert left <= record["left"] <= left + SECONDS
    answer = await ask(stage.gateway, stage.body(kind, "next"))
    assert answer.head.status == 200
    assert answer.events[-1].done
    assert len(await of(one, "leaves")) == 1
    assert (await one.state())["over_slots"] == 0
    await counted(stage.gateway, "slotgate_requests_total", before + 1, outcome="client_gone")


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_queued_client_that_leaves_never_reaches_an_engine(
    stage: Stage, kind: str, how: str, streams: bool
) -> None:
    """Its place in the queue is free at once, and the engine never hears of it."""
    one, before = stage.engines[kind], await gone(stage)
    await one.script(match="runs", token_seconds=60.0)
    async with (
        await RawClient.connect(stage.gateway.url) as first,
        await RawClient.connect(stage.gateway.url) as client,
    ):
        await first.post(CHAT, stage.body(kind, "runs"))
        await arrival(one, "runs")
        await client.post(CHAT, stage.body(kind, "leaves", stream=streams))
        await waits(stage.gateway)
        left = await depart(client, how)
        await waits(stage.gateway, 0)
        assert time.monotonic() - left < SECONDS
        first.close()
    await ending(one, "runs")
    assert (await ask(stage.gateway, stage.body(kind, "next"))).head.status == 200
    assert not await of(one, "leaves")
    await counted(stage.gateway, "slotgate_requests_total", before + 2, outcome="client_gone")


async def test_a_client_that_neither_reads_nor_stays_is_noticed(stage: Stage) -> None:
    """With megabytes unread, a half-close still ends the engine's work, not only the client's reading."""
    one = stage.engines["openai"]
    event = "data: " + '{"choices":[{"index":0,"delta":{"content":"%s"}}]}' % ("x" * 1_000_000) + "\n\n"
    await one.script(raw=[event] * 60, token_seconds=0.02)
    body = json.dumps(stage.body("openai", "unread")).encode()
    with socket.create_connection(("127.0.0.1", urlsplit(stage.gateway.url).port)) as client:
        client.sendall(
            b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
        )
        await until(lambda: stalled(one), "a stalled stream")
        left = time.monotonic()
        client.shutdown(socket.SHUT_WR)
        record = await ending(one, "unread")
    assert record["outcome"] == "aborted"
    assert record["left"] - left < SECONDS


async def stalled(one: Engine) -> bool:
    """Whether a stream has events and no more of them come."""
    seen = [(await of(one, "unread"))[0]["events"] if await of(one, "unread") else 0]
    await asyncio.sleep(0.3)
    seen.append((await of(one, "unread"))[0]["events"] if await of(one, "unread") else 0)
    return 0 < seen[0] == seen[1] < 60


async def test_a_client_with_a_second_request_behind_the_first_is_noticed(stage: Stage) -> None:
    """What waits on the same connection hides neither the departure nor the first request."""
    one = stage.engines["openai"]
    await one.script(match="first", token_seconds=0.5, tokens=1000)
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(CHAT, stage.body("openai", "first"))
        await client.head()
        await client.first_token()
        await client.post(CHAT, stage.body("openai", "second"))
        await asyncio.sleep(0.1)
        client.reset()
        await ending(one, "first")
    await stage.slots("openai", in_use=0)
    assert not await of(one, "second")


# -- the slot


@pytest.mark.parametrize("kind", KINDS)
async def test_the_slot_is_used_again_when_the_engine_has_stopped(stage: Stage, kind: str) -> None:
    """Until then it counts as leaving, and who waits for it goes on waiting."""
    one = stage.engines[kind]
    await one.script(match="leaves", token_seconds=60.0, abort_seconds=1.0)
    async with (
        await RawClient.connect(stage.gateway.url) as client,
        await RawClient.connect(stage.gateway.url) as other,
    ):
        await client.post(CHAT, stage.body(kind, "leaves"))
        await client.head()
        await client.first_token()
        await other.post(CHAT, stage.body(kind, "waits"))
        await waits(stage.gateway)
        client.close()
        await stage.slots(kind, in_use=0, leaving=1, free=0)
        assert await queued(stage.gateway) == 1
        await other.head()
        await other.first_token()
    left, waited = (await of(one, "leaves"))[0], (await of(one, "waits"))[0]
    assert left["end"] <= waited["started"] < left["end"] + SECONDS
    assert (await one.state())["over_slots"] == 0


async def test_an_engine_that_does_not_stop_is_not_waited_for(stage: Stage) -> None:
    """After its `cancel_seconds` the connection is aborted and the slot counts as free."""
    one = stage.engines["openai"]
    await one.script(match="leaves", token_seconds=60.0, abort_seconds=8.0)
    async with await RawClient.connect(stage.gateway.url) as client:
        await client.post(CHAT, stage.body("openai", "leaves"))
        await client.head()
        await client.first_token()
        left = client.reset()
        await stage.slots("openai", leaving=1)
        await stage.slots("openai", leaving=0, free=1)
        assert 4.5 < time.monotonic() - left < 7.5


# -- how fast


async def test_200_queued_clients_leave(stage: Stage) -> None:
    """The queue is shorter soon after each departure, and the engine hears of none of them."""
    one = stage.engines["openai"]
    await one.script(match="runs", token_seconds=60.0)
    times: list[float] = []
    async with await RawClient.connect(stage.gateway.url) as first:
        await first.post(CHAT, stage.body("openai", "runs"))
        await arrival(one, "runs")
        for number in range(DEPARTURES):
            async with await RawClient.connect(stage.gateway.url) as client:
                await client.post(CHAT, stage.body("openai", "leaves", stream=number % 2 == 0))
                await waits(stage.gateway)
                left: float = getattr(client, LEAVE[number % 3])()
                while await queued(stage.gateway):
                    assert time.monotonic() - left < 30
                times.append(time.monotonic() - left)
    assert not await of(one, "leaves")
    assert percentiles(times)[0.99] < 1.0


async def test_200_running_clients_leave(stage: Stage) -> None:
    """The engine sees its connection close soon after each departure, in prefill or in the stream."""
    times: list[float] = []
    for number in range(DEPARTURES):
        kind = KINDS[number % 2]
        one = stage.engines[kind]
        streaming = number % 4 < 2
        await one.script(prefill_seconds=0.0 if streaming else 60.0, token_seconds=60.0)
        async with await RawClient.connect(stage.gateway.url) as client:
            await client.post(CHAT, stage.body(kind, f"{number} leaves", stream=streaming or number % 8 < 4))
            if streaming:
                await client.head()
                await client.first_token()
            else:
                await arrival(one, f"{number} leaves")
            left: float = getattr(client, LEAVE[number % 3])()
            record = await ending(one, f"{number} leaves")
        times.append(record["left"] - left)
    for one in stage.engines.values():
        assert (await one.state())["over_slots"] == 0
    assert percentiles(times)[0.99] < 1.0


def percentiles(times: list[float]) -> dict[float, float]:
    """The figures by share; `--log-cli-level=INFO` shows them."""
    times.sort()
    found = {share: times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.99, 1.0)}
    log.info("milliseconds: %s", {share: round(value * 1000, 1) for share, value in found.items()})
    return found
