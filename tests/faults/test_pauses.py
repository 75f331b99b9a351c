"""The gateway itself stands still for a while: what engines sent meanwhile is in time."""

from __future__ import annotations

import asyncio
import signal

from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import ask, metric
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import chat, engine, gateway

LIMITS = {"first_token_seconds": 2.0, "idle_seconds": 2.0}


async def test_a_pause_of_the_process_is_no_fault_of_its_engines() -> None:
    """Longer than every limit, before the first token and in mid-stream; no request fails for it."""
    async with (
        engine(slots=5, tokens=60, decode_tps=20.0) as one,
        gateway(configured(one, backend={"timeouts": LIMITS})) as front,
    ):
        await becomes(front, "b0", "ready")
        await one.script(match="slow", prefill_seconds=1.0)
        keys = ["slow", "stream 1", "stream 2", "stream 3", "whole"]
        asked = [
            asyncio.create_task(
                ask(front, chat(key, stream=key != "whole", max_tokens=14 if key == "whole" else 60))
            )
            for key in keys
        ]
        await one.busy(5)
        front.process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2.6)
        finally:
            front.process.signal(signal.SIGCONT)
        for key, reply in zip(keys, await asyncio.gather(*asked), strict=True):
            assert verdict(reply, stream=key != "whole") == COMPLETED
        await settled(front, "b0")
        assert await metric(front, "slotgate_requests_total", outcome="completed") == len(keys)
