"""An answer that ends at any byte: before the reason why it ends that is an error, behind it a success."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from tests.faults.plays import says
from tests.faults.raw_engine import FAILS, FINISH, RawEngine, answer, raw_engine
from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import ask, metric, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, chat, gateway

STREAM, WHOLE = answer(stream=True), answer(stream=False)
TOLD = STREAM.index(FINISH) + len(FINISH) + 2  # bytes of a stream that tell all
PARTS = 4  # at the same time
SHARE = 0.4  # of the bytes, by chance
WAYS = {
    f"{'stream' if streams else 'whole'}-{'reset' if resets else 'end'}-{part}": (streams, resets, part)
    for streams in (True, False)
    for resets in (True, False)
    for part in range(PARTS)
}


async def broken(front: Gateway, engine: RawEngine, name: str, share: float) -> None:
    """Break this engine's answers behind so many of their bytes."""
    stream, reset, part = WAYS[name]
    data = STREAM if stream else WHOLE
    for size in range(part, len(data) + 1, PARTS):
        if random.random() > share:
            continue
        engine.play = says(data[:size], reset=reset)
        reply = await ask(front, chat(f"{FAILS} at {size}", stream=stream) | {"model": name})
        streams = reply.head.headers["content-type"].startswith("text/event-stream")
        whole = size >= (TOLD if stream else len(data))
        assert verdict(reply, stream=streams) == (COMPLETED if whole else "backend_failed"), (name, size)
        assert engine.asked[f"{FAILS} at {size}"] == 1
        well = await ask(front, chat("well", stream=stream) | {"model": name})
        assert verdict(well, stream=stream) == COMPLETED


@pytest.mark.parametrize("share", [SHARE, pytest.param(1.0, marks=pytest.mark.long)])
async def test_an_answer_may_end_at_any_byte(share: float) -> None:
    """By a close or a reset, streamed or not: one answer, one generation, and no slot is lost."""
    async with AsyncExitStack() as stack:
        engines = {name: await stack.enter_async_context(raw_engine()) for name in WAYS}
        backends = [
            {"name": name, "url": engine.url, "slots": 1, "models": [name], "warmup": {"requests": 0}}
            for name, engine in engines.items()
        ]
        front = await stack.enter_async_context(gateway({"backends": backends}))
        for name in engines:
            await becomes(front, name, "ready")
        await asyncio.gather(*(broken(front, engine, name, share) for name, engine in engines.items()))
        await quiet(front)
        assert await metric(front, "slotgate_slots", state="in_use") == 0
        assert await metric(front, "slotgate_ejections_total") == 0
