"""Cases that operators met, beside those that other tests hold: see `CASES.md`."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.plays import says
from tests.faults.raw_engine import (
    CHUNKED,
    EVENTS,
    FAILS,
    FINISH,
    Peer,
    chunk,
    completion,
    document,
    event,
    raw_engine,
    token,
)
from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import CHAT, ask, backend, metric, quiet
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import Gateway, RawClient, chat, engine, gateway, until

SECRET = b"X-Secret: of-the-engine\r\n"
HOPS = b"Connection: X-Secret, Keep-Alive\r\nKeep-Alive: timeout=5\r\nTrailer: X-Secret\r\nTE: x\r\n"
FRAMING = {"content-type", "content-length", "transfer-encoding", "date", "server"}
UNBUFFERED = {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}
STREAMS = 250
LONG_BYTES = 40_000_000
GROWTH_BYTES_MAX = 100 * 1024 * 1024


async def test_nothing_that_is_for_one_hop_passes_to_the_client() -> None:
    """What the engine says to us of its connection, or names there, is not the client's."""
    async with raw_engine() as one, gateway({"backends": [{"name": "b0", "url": one.url}]}) as front:
        await becomes(front, "b0", "ready")
        tail = chunk(event(token())) + chunk(event(FINISH)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n"
        streamed = EVENTS + HOPS + SECRET + b"Transfer-Encoding: chunked\r\n\r\n" + tail
        whole = document(completion(), fields=HOPS + SECRET)
        for answer, stream in ((streamed, True), (whole, False)):
            one.play = says(answer)
            reply = await ask(front, chat(FAILS, stream=stream), [("Accept-Encoding", "gzip, br")])
            assert verdict(reply, stream=stream) == COMPLETED
            fields = {k: v for k, v in reply.head.headers.items() if not k.startswith("x-slotgate-")}
            assert fields.keys() - FRAMING == ({*UNBUFFERED} if stream else set()) | {"x-request-id"}
            assert not stream or fields | UNBUFFERED == fields


async def test_an_engine_that_hangs_with_green_health_is_ejected_and_comes_back() -> None:
    """Its list of models answers in a millisecond; only what it was asked for tells. It serves again when one
    request was answered."""
    limits = {"first_token_seconds": 0.4}
    async with (
        raw_engine() as one,
        gateway({"backends": [{"name": "b0", "url": one.url, "slots": 2, "timeouts": limits}]}) as front,
    ):
        await becomes(front, "b0", "ready")
        one.play = says(b"", hold=True)
        for number in range(3):
            reply = await ask(front, chat(f"{FAILS} {number}"))
            assert verdict(reply, stream=False) == "first_token_timeout"
        assert (await backend(front, "b0"))["state"] == "ejected"
        assert await metric(front, "slotgate_ejections_total", reason="stall") == 1
        assert verdict(await ask(front, chat("well")), stream=True) == COMPLETED
        await becomes(front, "b0", "ready")
        await settled(front, "b0")


async def test_an_engine_that_hangs_holds_up_nobody_elsewhere() -> None:
    """Requests of another model, and of the same one that another engine serves, pass by."""
    async with raw_engine() as hangs, engine(slots=4, model=["fake-model", "other"]) as works:
        backends = [
            {"name": "hangs", "url": hangs.url, "slots": 2, "timeouts": {"first_token_seconds": 20.0}},
            {"name": "works", "url": works.url, "slots": 4},
        ]
        async with gateway({"backends": backends}) as front:
            await becomes(front, "hangs", "ready")
            await becomes(front, "works", "ready")
            await front.operator.post("/admin/backends/works/drain", json={})
            hangs.play = says(b"", hold=True)
            stuck = [asyncio.create_task(ask(front, chat(f"{FAILS} {number}"))) for number in range(2)]
            await until(lambda: hangs.asked.total() >= 2 + 2, "two requests that hang")  # two of the warm-up
            await front.operator.post("/admin/backends/works/resume")
            await becomes(front, "works", "ready")
            replies = await asyncio.gather(
                *(ask(front, chat(f"{n}") | {"model": ("fake-model", "other")[n % 2]}) for n in range(40))
            )
            assert {reply.head.headers["x-slotgate-backend"] for reply in replies} == {"works"}
            assert not any(task.done() for task in stuck)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


async def test_a_stream_that_always_goes_on_is_never_cut() -> None:
    """Several times as long as the limit between two tokens."""
    limits = {"timeouts": {"idle_seconds": 1.5, "first_token_seconds": 5.0}}
    async with (
        engine(slots=1, tokens=50, decode_tps=10.0) as one,
        gateway(configured(one, backend=limits)) as front,
    ):
        await becomes(front, "b0", "ready")
        began = time.monotonic()
        reply = await ask(front, chat("long", max_tokens=50))
        assert verdict(reply, stream=True) == COMPLETED
        assert time.monotonic() - began > 3 * limits["timeouts"]["idle_seconds"]


async def test_hundreds_of_streams_run_at_the_same_time() -> None:
    """No pool of connections has a bound of its own: 250 requests have 256 slots, and none waits."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine(slots=64, tokens=3, prefill_tps=1e6)) for _ in range(4)
        ]
        for one in engines:
            await one.script(match="many", times=None, first_token_seconds=2.0)
        front = await stack.enter_async_context(gateway(configured(*engines)))
        for number in range(4):
            await becomes(front, f"b{number}", "ready")
        replies = await asyncio.gather(*(ask(front, chat(f"many {number}")) for number in range(STREAMS)))
        assert [verdict(reply, stream=True) for reply in replies] == [COMPLETED] * STREAMS
        states = [await one.state() for one in engines]
        assert [state["over_slots"] for state in states] == [0] * 4
        assert sum(state["max_concurrent"] for state in states) > 100  # the bound of many clients


async def test_a_model_that_its_engine_does_not_list_is_served() -> None:
    """What is configured counts; a list that says something else is no sign of ill health."""
    async with raw_engine() as one:
        backends = [{"name": "b0", "url": one.url, "models": ["qwen"], "warmup": {"requests": 0}}]
        async with gateway({"backends": backends}) as front:
            await becomes(front, "b0", "ready")
            listed = (await front.client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["qwen"]
            assert verdict(await ask(front, chat("well") | {"model": "qwen"}), stream=True) == COMPLETED


async def test_proxies_of_the_environment_are_not_for_engines() -> None:
    """A proxy variable that points nowhere changes nothing: not for probes, warm-up or requests."""
    nowhere = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
    async with engine(slots=1) as one, gateway(configured(one), environment=nowhere) as front:
        await becomes(front, "b0", "ready")
        assert verdict(await ask(front, chat("x")), stream=True) == COMPLETED


async def test_what_is_streamed_is_not_kept() -> None:
    """Streams of 40 MB, several at a time, while the gateway grows by less than one of them and a half."""
    events = chunk(event(token("x" * 10_000)))
    tail = chunk(event(FINISH)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n"

    async def long(peer: Peer) -> None:
        await peer.send(CHUNKED)
        for _ in range(LONG_BYTES // len(events)):
            await peer.send(events)
        await peer.send(tail)

    async def read(front: Gateway) -> int:
        async with await RawClient.connect(front.url) as client:
            await client.post(CHAT, chat(FAILS))
            await client.head()
            size = 0
            while data := await client._read():
                size += len(data)
            assert client.ended == "clean"
            return size

    async with (
        raw_engine() as one,
        gateway({"backends": [{"name": "b0", "url": one.url, "slots": 8}]}) as front,
    ):
        await becomes(front, "b0", "ready")
        one.play = long
        before = memory(front, "VmRSS")
        sizes = await asyncio.gather(*(read(front) for _ in range(4)))
        assert min(sizes) > 0.99 * LONG_BYTES
        assert memory(front, "VmHWM") - before < GROWTH_BYTES_MAX
        await quiet(front)


def memory(front: Gateway, what: str) -> int:
    """Bytes of memory that the gateway has (VmRSS), or has had at most (VmHWM)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{front.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.long
async def test_a_thousand_streams_do_not_keep_health_waiting() -> None:
    """A thousand clients, five events a second each; `/health` is answered all the while."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine(slots=500, tokens=100, decode_tps=5.0)) for _ in range(2)
        ]
        front = await stack.enter_async_context(gateway(configured(*engines)))
        for number in range(2):
            await becomes(front, f"b{number}", "ready")
        asked = [asyncio.create_task(ask(front, chat(f"{n}", max_tokens=100))) for n in range(1000)]
        times = []
        while not all(task.done() for task in asked):
            began = time.monotonic()
            assert (await front.client.get("/health")).status_code == 200
            times.append(time.monotonic() - began)
            await asyncio.sleep(0.5)
        outcomes = [verdict(reply, stream=True) for reply in await asyncio.gather(*asked)]
        assert outcomes == [COMPLETED] * 1000
        times.sort()
        print(json.dumps({"p50": times[len(times) // 2], "max": times[-1]}))  # noqa: T201
        assert times[-1] < 5.0
