"""Engines that fail in every way there is: their clients get one well-formed answer, once, within its limits,
and nothing is left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.faults.plays import FAULTS
from tests.faults.raw_engine import FAILS, RawEngine, raw_engine
from tests.faults.verdict import COMPLETED, verdict
from tests.processes.asking import ask, backend, metric, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import Gateway, chat, gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {"first_token_seconds": 2.5, "idle_seconds": 2.5}  # far more than any of them takes
NAMES = {f"b{number}": fault for number, fault in enumerate(FAULTS)}
Heard = dict[str, list[str] | BaseException]


async def hears(front: Gateway, engine: RawEngine, name: str) -> list[str]:
    """What clients of an engine hear that fails for every second one, streamed and not."""
    heard = []
    for stream in (True, False):
        for key in (f"{FAILS}: {stream}", "well"):
            reply = await ask(front, chat(key, stream=stream) | {"model": name})
            streams = reply.head.headers["content-type"].startswith("text/event-stream")
            assert streams <= stream, reply
            heard.append(verdict(reply, stream=streams))
        assert engine.asked[f"{FAILS}: {stream}"] == 1, engine.asked
    return heard


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def heard() -> AsyncIterator[Heard]:
    """What each of them made of it, all at the same time before one gateway."""
    async with AsyncExitStack() as stack:
        engines = {}
        for name, fault in NAMES.items():
            engines[name] = await stack.enter_async_context(raw_engine())
            engines[name].play = FAULTS[fault].play
        backends = [
            {"name": name, "url": engine.url, "slots": 4, "timeouts": LIMITS, "models": [name]}
            for name, engine in engines.items()
        ]
        config = {"backends": backends, "queue": {"total_seconds_max": 6.0}}
        front = await stack.enter_async_context(gateway(config))
        for name in engines:
            await becomes(front, name, "ready")
        heard = await asyncio.gather(
            *(hears(front, engine, name) for name, engine in engines.items()), return_exceptions=True
        )
        await quiet(front)
        assert await metric(front, "slotgate_slots", state="in_use") == 0
        assert await metric(front, "slotgate_ejections_total") == 0
        assert await metric(front, "slotgate_requests_total", outcome="internal_error") == 0
        for name in engines:
            assert (await backend(front, name))["state"] == "ready"
        yield dict(zip(NAMES.values(), heard, strict=True))


@pytest.mark.parametrize("name", FAULTS)
async def test_one_answer_whatever_the_engine_does(heard: Heard, name: str) -> None:
    """Streamed or not, one success or one error, after one generation; and the next request is served."""
    outcome, fault = heard[name], FAULTS[name]
    if isinstance(outcome, BaseException):
        raise outcome
    assert outcome == [fault.stream, COMPLETED, fault.whole, COMPLETED]
