"""What one gateway learnt reaches others through a real Redis: how fast engines are, and which one fails."""

from __future__ import annotations

import asyncio

from tests.debian import needs
from tests.processes.asking import ask, backend, metric
from tests.processes.fleet import becomes
from tests.processes.harness import chat, until
from tests.processes.test_shared import stage

pytestmark = needs("redis-server")

PREFILL_TPS = 20_000.0  # no engine is taken to be so fast by its kind
WORDS = 1000, 4000, 12_000


async def test_a_gateway_that_starts_again_knows_how_fast_its_engines_are() -> None:
    """It takes them for what it had learnt itself, and marks that as a guess."""
    async with stage(2, gateways=1, prefill_tps=PREFILL_TPS, tokens=20) as scene:
        (front,) = scene.gateways
        prior = (await backend(front, "b0"))["rates"]
        for turn in range(8):
            for words in WORDS:
                body = chat(f"{turn} " + "word " * words, max_tokens=20)
                assert (await ask(front, body)).head.status == 200
                await asyncio.sleep(0.1)  # or the next one teaches nothing
        learnt = (await backend(front, "b0"))["rates"]
        assert (prior["source"], learnt["source"]) == ("prior", "learnt")
        assert await front.stop() == 0
        front.process.start()
        await until(lambda: front.answers("/ready"), "the gateway that was ended")

        async def known() -> bool:
            told = (await backend(front, "b0"))["rates"]
            name = "prefill_tokens_per_second"
            assert told["source"] == "prior"
            return bool(told[name] == learnt[name] != prior[name])

        await until(known, "what was learnt")


async def test_an_engine_that_fails_one_gateway_is_left_alone_by_the_other() -> None:
    """It ejects it without a failure of its own, and takes it back soon after the one does."""
    async with stage(3, 1) as scene:
        one, other = scene.gateways
        fails, works = scene.engines
        await fails.script(status=500, body="{}", times=None, match="call")
        await works.script(prefill_seconds=0.5, times=None, match="call")  # not all find room there
        await asyncio.gather(*(ask(one, chat(f"call {i}", max_tokens=1)) for i in range(8)))
        assert (await backend(one, "b0"))["state"] == "ejected"
        await becomes(other, "b0", "ejected")
        assert (await backend(other, "b0"))["reason"] == "another gateway ejected it"
        assert await metric(other, "slotgate_ejections_total", backend="b0", reason="elsewhere") == 1
        assert await metric(one, "slotgate_ejections_total", backend="b0") == 1
        for front in (one, other):  # its last engine: a request tries it at once
            await front.operator.post("/admin/backends/b1/drain", json={})
        assert (await ask(one, chat("trial", max_tokens=1))).head.status == 200
        await becomes(one, "b0", "ready")
        assert (await ask(other, chat("trial", max_tokens=1))).head.status == 200
        await becomes(other, "b0", "ready")
