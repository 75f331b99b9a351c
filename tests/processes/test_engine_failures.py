"""Engines that die, hang, fail or are not there: what their clients hear, and how the engines come back."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import Any

import pytest

from tests.fakes.answer import words
from tests.processes.asking import (
    CHAT,
    Reply,
    arrival,
    ask,
    backend,
    checked,
    fault,
    metric,
    of,
    queued,
    waits,
)
from tests.processes.fleet import becomes, configured, settled, states
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until

ROUNDS = 3
TOKENS = 45
KINDS = ("openai", "llamacpp")
GRACE_SECONDS = 1.4  # no multiple of the gateway's ticks: some must fall short of it
LONGER_THAN_A_RESET = 0.7  # a request on a connection that the engine had closed fails much sooner
TELL_SECONDS = 1.0  # within which a client must hear of the failure


async def opened(front: Gateway, content: str, **more: Any) -> tuple[RawClient, str]:
    """A stream that has its first token, and the backend that it comes from."""
    client = await RawClient.connect(front.url)
    await client.post(CHAT, chat(content, **more))
    head = await client.head()
    assert head.status == 200
    await client.first_token()
    return client, head.headers["x-slotgate-backend"]


async def broken(client: RawClient, code: str, since: float, seconds: float) -> None:
    """The rest of this stream is tokens and then exactly one error event, in time; no [DONE]."""
    events = await client.events()
    assert client.ended == "clean"
    *tokens, last = events
    checked(last.json(), code)
    assert list(last.json()) == ["error"]
    assert last.at - since <= seconds
    assert all("error" not in event.json() for event in tokens if event.data)


async def streamed(front: Gateway, content: str, **more: Any) -> Reply:
    """A whole answer that is a success."""
    answer = await ask(front, chat(content, **more))
    assert answer.head.status == 200, answer
    assert answer.events[-1].done, answer
    return answer


# -- an engine dies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_in_mid_stream(kind: str) -> None:
    """Each of its clients gets one error event and the end within a second, those of the other engine
    get their whole answers; the engine is taken back when it is up again, by way of a warm-up."""
    pace = {"slots": 4, "tokens": TOKENS, "decode_tps": 50.0}
    async with (
        engine(kind, **pace) as dies,
        engine("openai", **pace) as stays,
        gateway(configured(dies, stays)) as front,
    ):
        for number in range(ROUNDS):
            await becomes(front, "b0", "ready")
            await becomes(front, "b1", "ready")
            keys = [f"round {number} stream {i}" for i in range(8)]
            streams = [(key, *await opened(front, key)) for key in keys]
            assert {name for _, _, name in streams} == {"b0", "b1"}
            killed = time.monotonic()
            await dies.process.kill()

            async def check(key: str, client: RawClient, name: str, killed: float) -> None:
                async with client:
                    if name == "b0":
                        await broken(client, "backend_failed", killed, TELL_SECONDS)
                        return
                    events = await client.events()
                    assert events[-1].done
                    text = "".join(event.token for event in events)
                    assert "".join(words(key, TOKENS)).endswith(text)

            noticed = becomes(front, "b0", "down", TELL_SECONDS)
            await asyncio.gather(noticed, *(check(*stream, killed) for stream in streams))
            meanwhile = await streamed(front, "meanwhile", max_tokens=2)
            assert meanwhile.head.headers["x-slotgate-backend"] == "b1"
            await dies.restart()
            await becomes(front, "b0", "ready")
            await settled(front, "b0", "b1")
            assert (await dies.state())["over_slots"] == 0
        # Four failures at once may eject it before the probe sees it down; llama.cpp also tells that it
        # is another process.
        walk = states(front, "b0", "ejected", "starting")
        assert walk == ["warming", "ready"] + ["down", "warming", "ready"] * ROUNDS
        assert states(front, "b1") == ["warming", "ready"]
        assert (await stays.state())["over_slots"] == 0


async def test_killed_before_the_first_token_is_repeated_elsewhere() -> None:
    """Whoever waits for a first token never hears that the engine died: the call starts once more on
    another engine, in either form of answer."""
    async with engine(slots=2) as dies, engine(slots=2) as stays, gateway(configured(dies, stays)) as front:
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        await front.operator.post("/admin/backends/b1/drain", json={})
        for kind in ("role chunk", "nothing"):
            await dies.script(match=kind, times=None, **silence(kind))
        asked = [
            asyncio.create_task(ask(front, chat(f"{kind} {stream}", stream=stream)))
            for kind, stream in (("role chunk", True), ("nothing", False))
        ]
        await dies.busy(2)
        await front.operator.post("/admin/backends/b1/resume")
        await becomes(front, "b1", "ready")
        await dies.process.kill()
        replies = await asyncio.gather(*asked)
        for answer, key in zip(replies, ("role chunk True", "nothing False"), strict=True):
            assert answer.head.status == 200
            assert answer.head.headers["x-slotgate-backend"] == "b1"
            assert answer.text == "".join(words(key, 8))
            assert len(await of(stays, key)) == 1
        roles = [e for e in replies[0].events if e.data and not e.done and '"role"' in e.data]
        assert len(roles) == 1
        assert replies[0].events[-1].done
        assert await metric(front, "slotgate_retries_total", reason="backend_died") == 2
        await dies.restart()
        await becomes(front, "b0", "ready")


def silence(kind: str) -> dict[str, Any]:
    """A script under which no first token comes for long."""
    return {"first_token_seconds": 60.0} if kind == "role chunk" else {"prefill_seconds": 60.0}


async def test_a_request_is_repeated_only_once() -> None:
    """When the second engine dies too, the client is told, and that it may have been generated; also when
    both had the request on a connection that had served before."""
    async with (
        engine(slots=1) as first,
        engine(slots=1) as second,
        gateway(configured(first, second)) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        for each in (first, second):
            await each.script(prefill_seconds=60.0, match="unlucky")
        asked = asyncio.create_task(ask(front, chat("unlucky")))
        there = await either(first, second, "unlucky")
        await asyncio.sleep(LONGER_THAN_A_RESET)
        await there.process.kill()
        other = second if there is first else first
        await arrival(other, "unlucky")
        await asyncio.sleep(LONGER_THAN_A_RESET)
        await other.process.kill()
        answer = await asked
        fault(answer, 502, "backend_failed")
        assert answer.head.headers["x-should-retry"] == "false"
        await first.restart()
        await second.restart()


async def either(a: Engine, b: Engine, key: str) -> Engine:
    """Wait until one of two engines has such a request."""
    found: list[Engine] = []

    async def there() -> bool:
        found.extend([one for one in (a, b) if await of(one, key)])
        return bool(found)

    await until(there, f"{key!r} at one of two engines")
    return found[0]


async def test_a_refused_connection_costs_nobody_anything() -> None:
    """An engine that is gone between two probes: what is sent there goes to another one, unnoticed."""
    async with engine(slots=4) as dies, engine(slots=4) as stays, gateway(configured(dies, stays)) as front:
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        await dies.process.kill()
        replies = await asyncio.gather(*(streamed(front, f"call {i}") for i in range(8)))
        assert {answer.head.headers["x-slotgate-backend"] for answer in replies} == {"b1"}
        await becomes(front, "b0", "down")
        await dies.restart()


# -- an engine hangs ------------------------------------------------------------------------------------

LIMITS = {"first_token_seconds": 1.0, "idle_seconds": 1.0}


async def test_an_engine_that_hangs() -> None:
    """Nothing more after the first token: `idle_timeout`; nothing before it: `first_token_timeout`, within
    a second of the limit. Three streams in a row eject it, although its port is open (an answer that
    does not stream may just be long); it comes back by one request once it answers again."""
    async with (
        engine(slots=5, tokens=400, decode_tps=50.0) as one,
        gateway(configured(one, backend={"timeouts": LIMITS})) as front,
    ):
        await becomes(front, "b0", "ready")
        client, _ = await opened(front, "in mid-stream")
        one.process.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        try:
            silent = [asyncio.create_task(ask(front, chat("silent", stream=s))) for s in (True, True, False)]
            async with client:
                await broken(client, "idle_timeout", stopped, LIMITS["idle_seconds"] + 1.0)
            for answer in await asyncio.gather(*silent):
                fault(answer, 504, "first_token_timeout")
                assert answer.head.headers["x-should-retry"] == "false"
                assert answer.head.at - stopped <= LIMITS["first_token_seconds"] + 1.0
            seen = await backend(front, "b0")
            assert seen["state"] == "ejected"
            assert seen["last_error"].startswith("stall: ")
            # Nobody knows that the engine has stopped: these slots are not free yet.
            assert seen["slots"] | {"leaving": 4, "free": 1} == seen["slots"]
            waiting = asyncio.create_task(ask(front, chat("waits", max_tokens=3)))
            await waits(front)
        finally:
            one.process.signal(signal.SIGCONT)
        assert (await waiting).head.status == 200
        await becomes(front, "b0", "ready")
        await settled(front, "b0")
        assert (await one.state())["over_slots"] == 0
        assert await metric(front, "slotgate_requests_total", outcome="timeout") == 4


async def test_a_slow_engine_is_not_a_hanging_one() -> None:
    """A prefill may last longer than the pause between tokens, and tokens may come just in time."""
    limits = LIMITS | {"first_token_seconds": 5.0}
    async with (
        engine(slots=1) as one,
        gateway(configured(one, backend={"timeouts": limits})) as front,
    ):
        pace = {"prefill_seconds": 1.3, "comment_seconds": 0.2, "token_seconds": 0.7}
        await one.script(head_first=True, tokens=2, **pace)
        await streamed(front, "slow")
        assert (await backend(front, "b0"))["state"] == "ready"


# -- an engine fails ------------------------------------------------------------------------------------


async def test_failures_in_a_row_eject_and_one_request_brings_it_back() -> None:
    """After three failures a backend takes no request while another one serves its models. The last one
    of a model is probed every second and gets one request at a time until one succeeds."""
    async with engine(slots=3) as fails, engine(slots=1) as works, gateway(configured(fails, works)) as front:
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        await fails.script(status=500, body="{}", times=None)
        # One after the other they would go elsewhere after the first failure: together they need all slots.
        together = await asyncio.gather(*(ask(front, chat(f"call {i}")) for i in range(8)))
        assert 3 <= [answer.head.status for answer in together].count(502) <= 5
        assert [(await ask(front, chat(f"later {i}"))).head.status for i in range(5)] == [200] * 5
        assert (await backend(front, "b0"))["state"] == "ejected"
        assert await metric(front, "slotgate_ejections_total", backend="b0", reason="status") == 1

        await front.operator.post("/admin/backends/b1/drain", json={})
        await fails.reset()
        await fails.script(status=500, body="{}", prefill_seconds=0.3, times=2)
        began = await fails.state()
        replies = await asyncio.gather(*(ask(front, chat(f"trial {i}")) for i in range(5)))
        state = await fails.state()
        assert sorted(answer.head.status for answer in replies) == [200] * 3 + [502] * 2
        assert (await backend(front, "b0"))["state"] == "ready"
        assert await metric(front, "slotgate_ejections_total", backend="b0", reason="status") == 3
        failed = sorted((r for r in await of(fails, "trial")), key=lambda r: r["started"])[:3]
        assert failed[0]["end"] <= failed[1]["started"] <= failed[1]["end"] <= failed[2]["started"]
        seconds = state["now"] - began["now"]
        assert state["probes"]["GET /v1/models"] >= seconds / 1.5 - 2


# -- an engine is not there -----------------------------------------------------------------------------


async def test_an_engine_that_is_down_at_the_start() -> None:
    """The gateway starts; requests wait for the grace and are then told by a status, no heartbeat having
    gone out; one that waits when the engine appears is served."""
    queue = {"unavailable_grace_seconds": GRACE_SECONDS, "heartbeat_seconds": 0.2}
    async with engine(slots=1) as one:
        await one.process.kill()
        async with gateway(configured(one, queue=queue), wait_for="/health") as front:
            await becomes(front, "b0", "down")
            ready = await front.client.get("/ready")
            assert ready.status_code == 503
            assert "b0 down" in ready.json()["reason"]
            early = []
            for number in range(10):  # at all phases of the gateway's timers
                early.append(asyncio.create_task(too_early(front, stream=number % 2 == 0)))
                await asyncio.sleep(0.03)
            await asyncio.gather(*early)
            waiting = asyncio.create_task(ask(front, chat("in time")))
            await waits(front)
            await one.restart()
            answer = await waiting
            assert answer.head.status == 200
            assert answer.events[-1].done
            assert states(front, "b0") == ["down", "warming", "ready"]
            assert await metric(front, "slotgate_requests_total", outcome="no_backend") == 10


async def too_early(front: Gateway, *, stream: bool) -> None:
    """Ask where no backend is."""
    began = time.monotonic()
    answer = await ask(front, chat("too early", stream=stream))
    fault(answer, 503, "no_backend_ready")
    assert 1 <= int(answer.head.headers["retry-after"]) <= 60
    assert GRACE_SECONDS <= answer.head.at - began <= GRACE_SECONDS + 1.5


@pytest.mark.parametrize("configured_kind", [True, False])
async def test_an_engine_that_loads_is_waited_for(configured_kind: bool) -> None:
    """While it answers "Loading model" it is starting, and requests wait beyond the grace of dead ones."""
    options = {"engine": "llamacpp"} if configured_kind else {}
    async with engine("llamacpp", slots=2, loading_seconds=600.0) as one:
        config = configured(one, backend=options, queue={"unavailable_grace_seconds": 0.3})
        async with gateway(config, wait_for="/health") as front:
            asked = asyncio.create_task(streamed(front, "patient"))
            await waits(front)
            await asyncio.sleep(0.8)
            await one.loaded()
            assert int((await asked).head.headers["x-slotgate-queue-ms"]) > 600
            assert states(front, "b0", "starting") == ["warming", "ready"]
            assert (await one.state())["outcomes"].get("loading", 0) == 0


async def test_an_engine_whose_warm_up_fails_is_not_used() -> None:
    """It stays warming, says why, and is tried again until it can generate."""
    async with engine(slots=1) as one:
        await one.script(status=500, body="{}", times=1)
        async with gateway(configured(one), wait_for="/health") as front:
            await becomes(front, "b0", "warming")

            async def told() -> bool:
                return bool((await backend(front, "b0"))["reason"].endswith("answered with status 500"))

            await until(told, "the reason of the failed warm-up")
            assert await queued(front) == 0
            await streamed(front, "waits for the second try")
            assert json.loads((await ask(front, b"", path="/ready", method="GET")).body) == {"ready": True}
