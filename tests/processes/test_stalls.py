"""The event loop never stands still for long, whatever comes in: everybody else's stream hangs on it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any

from tests.faults.plays import says
from tests.faults.raw_engine import CHUNKED, FAILS, FINISH, chunk, event, raw_engine, token
from tests.processes.asking import CHAT, ask, quiet
from tests.processes.departures import leave
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, chat, engine, gateway
from tests.processes.mixture import mixed
from tests.processes.watched import seen

WATCHED = ("tests.processes.watched", "serve")
STALL_SECONDS_MAX = 0.3  # of the processor; on a machine that does nothing else, 0.05 is not reached
SEED = 7
BODY_BYTES = 20_000_000
PACE: dict[str, Any] = {
    "context_tokens": 2_000_000,
    "tokens": 6,
    "model": ["agent"],
    "prefill_tps": 1e6,
    "decode_tps": 1000.0,
}


def stalls(file: Path) -> list[str]:
    """Each turn of the loop over 50 ms, and what it was at."""
    return [f"{one['stall']} s: {' < '.join(reversed(one['at']))}" for one in seen(file, "stall")]


async def everything(front: Gateway, dice: random.Random) -> None:
    """Of all that clients and operators do, some, at the same time."""

    async def conversation(number: int) -> None:
        for turn in range(10):
            one = mixed(dice, 100 * number + turn)
            body = one.body | {"model": "agent"}
            await ask(front, body, one.headers, one.path)

    async def leaver() -> None:
        for number in range(20):
            await leave(front, dice, CHAT, chat(f"leaves {number}") | {"model": "agent"}, [])

    async def operator() -> None:
        for _ in range(15):
            for path in ("/metrics", "/admin/backends", "/admin/requests", "/admin/queue", "/admin/prefix"):
                await front.operator.get(path)
            front.process.signal(signal.SIGHUP)
            await asyncio.sleep(0.05)

    async def large(number: int) -> None:
        body = json.dumps(chat(f"{number} " + "word " * (BODY_BYTES // 5)) | {"model": "agent"})
        await ask(front, body.encode())

    await asyncio.gather(*(conversation(number) for number in range(8)), leaver(), operator())
    for number in range(3):
        await large(number)


async def test_the_loop_does_not_stand_still(tmp_path: Path) -> None:
    """Bodies of 20 MB, events of 3 MB, thousands of events in one read, leaving clients, scrapes, reloads."""
    file = tmp_path / "watched"
    flood = chunk(event(token()) * 5000)
    burst = CHUNKED + flood * 20 + chunk(event(FINISH)) + chunk(event(b"[DONE]")) + b"0\r\n\r\n"
    large = CHUNKED + chunk(event(token("x" * 3_000_000))) * 3 + chunk(event(FINISH)) + b"0\r\n\r\n"
    async with (
        engine("llamacpp", slots=4, **PACE) as one,
        raw_engine() as raw,
        gateway(
            {
                "backends": [
                    {"name": "one", "url": one.url},
                    {"name": "raw", "url": raw.url, "slots": 4, "models": ["raw"]},
                ]
            },
            program=WATCHED,
            environment={"WATCHED": str(file)},
        ) as front,
    ):
        await becomes(front, "one", "ready")
        await becomes(front, "raw", "ready")
        await everything(front, random.Random(SEED))
        for play in (says(burst), says(large)):
            raw.play = play
            for stream in (True, False):
                await ask(front, chat(f"{FAILS} {stream}", stream=stream) | {"model": "raw"})
        await quiet(front)
        found = stalls(file)
        print("\n".join(found) or "none")  # noqa: T201 - `-s` lists them
        assert seen(file, "tasks")
        assert not [one["stall"] for one in seen(file, "stall") if one["stall"] > STALL_SECONDS_MAX], found
