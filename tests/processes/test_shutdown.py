"""How the gateway stops: everybody who asked is answered or told, and the process ends in time."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import time
from collections import Counter
from urllib.parse import urlsplit

import pytest

from tests.processes.asking import CHAT, Reply, ask, checked, fault, reply, waits
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until

LONG = {"tokens": 2000, "decode_tps": 20.0}  # answers that outlast every test
EXIT_SECONDS = 5.0  # from the last answer to the end of the process; uvicorn waits for its connections
PROMPT_SECONDS = 1.0  # for what happens at once


async def unready(front: Gateway) -> float:
    """Wait until /ready says 503; when it did."""

    async def so() -> bool:
        return bool((await front.client.get("/ready")).status_code == 503)

    await until(so, "503 at /ready")
    return time.monotonic()


async def ended(front: Gateway, seconds: float) -> float:
    """Wait for the end of the process, which must be a success; when it came."""
    assert await front.process.ended(seconds) == 0
    return time.monotonic()


def terminate(front: Gateway, number: signal.Signals = signal.SIGTERM) -> float:
    """Send a signal; when."""
    front.expect_end()
    front.process.signal(number)
    return time.monotonic()


async def running(front: Gateway, one: Engine, *streams: bool) -> list[asyncio.Task[Reply]]:
    """Requests that have a slot each, streaming or not."""
    tasks = [asyncio.create_task(ask(front, chat(f"runs {i}", stream=s))) for i, s in enumerate(streams)]
    await one.busy(len(streams))
    return tasks


async def waiting(front: Gateway, *streams: bool) -> list[asyncio.Task[Reply]]:
    """Requests that wait in the queue."""
    tasks = [asyncio.create_task(ask(front, chat(f"waits {i}", stream=s))) for i, s in enumerate(streams)]
    await waits(front, len(streams))
    return tasks


def told(answer: Reply) -> None:
    """The stream ended with the news of the shutdown, and without [DONE]."""
    assert answer.head.status == 200
    assert answer.ended == "clean"
    checked(answer.events[-1].json(), "shutting_down")
    assert not any(event.done for event in answer.events)


async def test_terminated_while_it_works() -> None:
    """Not ready at once, yet serving through the pause; then no new requests, but those that run or wait
    are answered in full. The process ends with 0, soon after the last of them."""
    server = {"shutdown_pause_seconds": 1.0, "shutdown_seconds": 30}
    async with (
        engine(slots=2, tokens=35, decode_tps=20.0) as one,
        gateway(configured(one, server=server)) as front,
    ):
        await becomes(front, "b0", "ready")
        tasks = [*await running(front, one, True, False), *await waiting(front, True, False)]
        sent = terminate(front)
        assert await unready(front) - sent < 0.5
        late = asyncio.create_task(ask(front, chat("in the pause", max_tokens=2)))
        await waits(front, 3)
        assert (await front.client.get("/health")).status_code == 200
        await asyncio.sleep(sent + 1.3 - time.monotonic())
        answer = await ask(front, chat("after it"))
        fault(answer, 503, "shutting_down")
        assert int(answer.head.headers["retry-after"]) > 0
        replies = await asyncio.gather(*tasks, late)
        last = time.monotonic()
        assert [reply.head.status for reply in replies] == [200] * 5
        assert all(reply.ended == "clean" and reply.text for reply in replies)
        assert replies[-1].head.headers["connection"] == "close"  # those of a balancer go elsewhere
        assert replies[0].events[-1].done and replies[2].events[-1].done and replies[4].events[-1].done
        assert await ended(front, EXIT_SECONDS) - last < EXIT_SECONDS
        assert (await one.state())["outcomes"]["completed"] >= 5


async def test_what_outlasts_the_shutdown_is_told() -> None:
    """When the time is up, streams get an error event, others a 503, and the engine's connections end."""
    async with (
        engine("llamacpp", slots=2, **LONG) as one,
        gateway(configured(one, server={"shutdown_seconds": 1.0})) as front,
    ):
        await becomes(front, "b0", "ready")
        streaming, document = await running(front, one, True, False)
        queued = await waiting(front, True, False)
        sent = terminate(front)
        replies = await asyncio.gather(streaming, document, *queued)
        assert time.monotonic() - sent <= 1.0 + PROMPT_SECONDS
        told(replies[0])
        for answer in replies[1:]:
            fault(answer, 503, "shutting_down")
        await ended(front, EXIT_SECONDS)
        await one.idle(PROMPT_SECONDS)
        assert (await one.state())["outcomes"]["aborted"] == 2


async def test_an_engine_that_hangs_delays_nobody() -> None:
    """Neither an engine that answers nothing nor one that does not stop keeps the process alive."""
    async with (
        engine("llamacpp", slots=2, **LONG) as one,
        gateway(configured(one, server={"shutdown_seconds": 0.5})) as front,
    ):
        await becomes(front, "b0", "ready")
        tasks = await running(front, one, True, False)
        one.process.signal(signal.SIGSTOP)
        try:
            terminate(front)
            stream, document = await asyncio.gather(*tasks)
            told(stream)
            fault(document, 503, "shutting_down")
            await ended(front, EXIT_SECONDS)
        finally:
            one.process.signal(signal.SIGCONT)


async def test_a_client_that_reads_nothing_delays_the_end_by_a_bound() -> None:
    """It holds its connection open with both buffers full; the process ends all the same."""
    async with (
        engine(slots=1) as one,
        gateway(configured(one, server={"shutdown_seconds": 0.5})) as front,
    ):
        await becomes(front, "b0", "ready")
        event = 'data: {"choices":[{"index":0,"delta":{"content":"' + "x" * 1_000_000 + '"}}]}\n\n'
        await one.script(raw=[event] * 40)
        body = json.dumps(chat("deaf")).encode()
        with socket.create_connection(("127.0.0.1", urlsplit(front.url).port)) as deaf:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            deaf.sendall(head.encode() + body)
            await one.busy()
            await asyncio.sleep(1.0)
            assert (await one.state())["running"] == 1
            sent = terminate(front)
            assert await ended(front, 20.0) - sent < 15.0


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(first: signal.Signals) -> None:
    """Whoever is impatient is obeyed: clients are told, the exit code is 0."""
    server = {"shutdown_pause_seconds": 30, "shutdown_seconds": 60}
    async with engine(slots=1, **LONG) as one, gateway(configured(one, server=server)) as front:
        await becomes(front, "b0", "ready")
        tasks = [*await running(front, one, True), *await waiting(front, False)]
        terminate(front, first)
        await unready(front)
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in tasks)
        sent = terminate(front)
        stream, document = await asyncio.gather(*tasks)
        told(stream)
        fault(document, 503, "shutting_down")
        assert await ended(front, EXIT_SECONDS) - sent < EXIT_SECONDS


async def test_interrupted_it_does_not_pause() -> None:
    """Ctrl-C: no new requests from then on, what runs is finished, and that is the end."""
    server = {"shutdown_pause_seconds": 30, "shutdown_seconds": 60}
    async with (
        engine(slots=1, tokens=30, decode_tps=20.0) as one,
        gateway(configured(one, server=server)) as front,
    ):
        await becomes(front, "b0", "ready")
        (task,) = await running(front, one, True)
        terminate(front, signal.SIGINT)
        await unready(front)
        fault(await ask(front, chat("late")), 503, "shutting_down")
        assert (await task).events[-1].done
        await ended(front, EXIT_SECONDS)


async def test_whoever_has_not_sent_all_is_told_so() -> None:
    """On the short way and on ASGI (a query stands behind the path); for the log it is no defect."""
    async with engine(slots=1) as one, gateway(configured(one)) as front:
        async with (
            await RawClient.connect(front.url) as short,
            await RawClient.connect(front.url) as asgi,
        ):
            for client, query in ((short, ""), (asgi, "?beta=true")):
                head = f"POST {CHAT}{query} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
                await client.write(head.encode() + b"{")
            terminate(front)
            for client in (short, asgi):
                fault(await reply(client), 503, "shutting_down")
            await ended(front, EXIT_SECONDS)
        (left,) = [line for line in front.process.errors.splitlines() if '"stopped"' in line]
        assert "Cancel" not in front.process.errors, left  # uvicorn did not have to


async def test_nobody_who_was_let_in_is_cut_off() -> None:
    """Terminated at a random moment under load: each request is answered in full, refused with a 503, or
    finds the port closed. None ends in the middle."""
    dice = random.Random()
    async with engine(slots=4, tokens=6, decode_tps=200.0) as one:
        for _ in range(3):
            async with gateway(configured(one, backend={"warmup": {"requests": 0}})) as front:
                await becomes(front, "b0", "ready")
                seen: Counter[str] = Counter()

                async def client(number: int, front: Gateway, seen: Counter[str]) -> None:
                    while True:
                        try:
                            answer = await ask(front, chat(f"client {number}", stream=number % 2 == 0))
                        except OSError:
                            seen["closed"] += 1
                            return
                        assert answer.ended == "clean"
                        if answer.head.status == 503:
                            fault(answer, 503, "shutting_down")
                        else:
                            assert answer.head.status == 200
                            assert number % 2 or answer.events[-1].done
                        seen[str(answer.head.status)] += 1

                async with asyncio.TaskGroup() as group:
                    for number in range(12):
                        group.create_task(client(number, front, seen))
                    await asyncio.sleep(dice.uniform(0.3, 0.8))
                    terminate(front)
                await ended(front, EXIT_SECONDS)
                assert seen["closed"] == 12
                assert seen["200"] > 12
        assert (await one.state())["over_slots"] == 0
        assert set((await one.state())["outcomes"]) == {"completed"}
