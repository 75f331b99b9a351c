"""Backends that are drained and resumed while everybody keeps asking: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from tests.processes.asking import CHAT, ask, backend, of, waits
from tests.processes.fleet import becomes, configured, settled, states
from tests.processes.harness import PATHS, Engine, Gateway, RawClient, chat, engine, gateway, until
from tests.processes.load import PACE, load, worked

UNDERWAY_SECONDS = 0.25  # a request that had its slot before the answer may reach the engine so much later


async def drain(front: Gateway, wait: float = 0.0) -> dict[str, object]:
    """Drain b0; the answer."""
    response = await front.operator.post("/admin/backends/b0/drain", json={"wait_seconds": wait})
    assert response.status_code == 200
    answer: dict[str, object] = response.json()
    return answer


async def command(front: Gateway, *arguments: str) -> str:
    """Run a command of the gateway's operator; what it printed."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", *arguments, "--admin", front.admin),
        env=os.environ | {"PYTHONPATH": PATHS},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 0
    return out.decode()


async def arrivals_since(one: Engine, moment: float) -> list[str]:
    """Keys of the requests that reached the engine after a moment."""
    return [record["key"] for record in await one.records() if record["arrived"] > moment]


@pytest.mark.parametrize("by", ["http", "command"])
async def test_a_drained_engine_gets_nothing_until_it_is_resumed(by: str) -> None:
    """When the answer comes nothing runs there, nothing new arrives, all requests go to the other engine;
    resumed, it works again by way of a warm-up. Nobody notices any of it."""
    async with (
        engine("openai", slots=3, **PACE) as one,
        engine("llamacpp", slots=2, **PACE) as other,
        gateway(configured(one, other)) as front,
    ):
        for name in ("b0", "b1"):
            await becomes(front, name, "ready")
        async with load(front) as clients:
            for _ in range(2):
                await worked(one, 30)
                if by == "http":
                    assert await drain(front, 20) == {"state": "drained", "in_flight": 0}
                else:
                    said = await command(front, "drain", "b0", "--wait")
                    assert said == "b0 is drained: safe to stop\n"
                drained = time.monotonic()
                assert (await one.state())["concurrent"] == 0
                before = clients.answered
                await until(lambda before=before: clients.answered > before + 30, "answers of the other one")
                assert await arrivals_since(one, drained) == []
                if by == "http":
                    await front.operator.post("/admin/backends/b0/resume")
                else:
                    await command(front, "resume", "b0")
                await becomes(front, "b0", "ready")
                await one.reset()
        assert clients.lost.total() == 0
        await settled(front, "b0", "b1")
        walk = states(front, "b0")
        assert walk[:2] == ["warming", "ready"]
        cycle = ["drained", "starting", "warming", "ready"]
        assert [state for state in walk[2:] if state != "draining"] == cycle * 2
        for each in (one, other):
            assert (await each.state())["over_slots"] == 0


async def test_from_the_answer_on_no_request_starts() -> None:
    """Without waiting, too: those that run finish, the rest waits or goes elsewhere; time and again."""
    async with (
        engine("openai", slots=4, **PACE) as one,
        engine("openai", slots=1, **PACE) as other,
        gateway(configured(one, other, backend={"warmup": {"requests": 0}})) as front,
    ):
        async with load(front) as clients:
            for _ in range(7):
                await becomes(front, "b0", "ready")
                await worked(one, 12)
                answer = await drain(front)
                moment = time.monotonic()
                assert answer["state"] in ("draining", "drained")
                await becomes(front, "b0", "drained")
                await asyncio.sleep(UNDERWAY_SECONDS)
                assert await arrivals_since(one, moment + UNDERWAY_SECONDS / 2) == []
                assert len(await arrivals_since(one, moment)) <= 1
                await front.operator.post("/admin/backends/b0/resume")
                await one.reset()
        assert clients.lost.total() == 0
        assert (await one.state())["over_slots"] == (await other.state())["over_slots"] == 0


async def test_the_only_backend_drained() -> None:
    """Requests wait, longer than for dead engines, and are served after the resume; the gateway is not
    ready meanwhile. Draining twice, or resuming what is not drained, changes nothing."""
    queue = {"unavailable_grace_seconds": 0.3, "heartbeat_seconds": 0.3}
    async with engine(slots=2, **PACE) as one, gateway(configured(one, queue=queue)) as front:
        await becomes(front, "b0", "ready")
        assert await drain(front) == {"state": "drained", "in_flight": 0}
        assert await drain(front) == {"state": "drained", "in_flight": 0}
        asked = [asyncio.create_task(ask(front, chat(f"waits {i}", stream=i % 2 == 0))) for i in range(8)]
        await waits(front, 8)
        assert (await front.client.get("/ready")).status_code == 503
        assert (await front.client.get("/health")).status_code == 200
        await asyncio.sleep(1.0)
        await waits(front, 8)
        assert await of(one, "waits") == []
        for _ in range(2):
            assert (await front.operator.post("/admin/backends/b0/resume")).status_code == 200
        replies = await asyncio.gather(*asked)
        assert [answer.head.status for answer in replies] == [200] * 8
        assert all(answer.events[-1].done for answer in replies[::2])
        assert (await front.client.get("/ready")).status_code == 200
        assert (await one.state())["over_slots"] == 0


async def test_resumed_before_it_was_drained() -> None:
    """The warm-up of an engine that is still full would be a request too many: it waits for a slot."""
    async with engine(slots=1, tokens=400, decode_tps=200.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        async with await RawClient.connect(front.url) as client:
            await client.post(CHAT, chat("runs on"))
            await client.head()
            await client.first_token()
            assert await drain(front, 0.2) == {"state": "draining", "in_flight": 1}
            await front.operator.post("/admin/backends/b0/resume")
            await becomes(front, "b0", "warming")

            async def told() -> bool:
                return bool((await backend(front, "b0"))["reason"] == "no slot is free")

            await until(told, "why it does not warm up")
            follows = asyncio.create_task(ask(front, chat("follows", max_tokens=2)))
            events = await client.events()
            assert events[-1].done
        assert (await follows).head.status == 200
        await becomes(front, "b0", "ready")
        assert (await one.state())["over_slots"] == 0


async def test_an_engine_that_dies_while_it_drains() -> None:
    """What ran there is told; the backend is drained, stays so over the restart, and is resumed as ever."""
    async with engine(slots=2, tokens=400, decode_tps=50.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        asked = asyncio.create_task(ask(front, chat("dies")))
        await one.busy()
        assert (await drain(front))["state"] == "draining"
        waiting = asyncio.create_task(drain(front, 20))
        await asyncio.sleep(0.3)
        await one.process.kill()
        assert await waiting == {"state": "drained", "in_flight": 0}
        assert not (await asked).events[-1].done
        await one.restart()
        await asyncio.sleep(1.5)
        assert (await backend(front, "b0"))["state"] == "drained"
        assert (await one.state())["received"] == 0
        await front.operator.post("/admin/backends/b0/resume")
        assert (await ask(front, chat("again", max_tokens=2))).head.status == 200
        assert states(front, "b0")[-4:] == ["drained", "starting", "warming", "ready"]
