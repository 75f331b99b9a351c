"""`GET /admin/advice`: from real requests, played again in a process of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.processes.asking import ask, quiet
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Gateway, chat, engine, gateway, until

REQUESTS = 24
PACE: dict[str, Any] = {"decode_tps": 40.0, "prefill_tps": 20_000.0}
SECONDS = 0.5  # of an answer of TOKENS at that pace
TOKENS = 20


async def crowd(front: Gateway) -> None:
    """All at once, on few slots."""
    one = chat("word" * 200, max_tokens=TOKENS, tools=[])
    headers = [("X-Slotgate-Priority", "agent")]
    for answer in await asyncio.gather(*(ask(front, one, headers) for _ in range(REQUESTS))):
        assert answer.head.status == 200
    await quiet(front)


async def advice(front: Gateway, requests: int = REQUESTS) -> dict[str, Any]:
    """The one group's, when all requests are in it: the journal is written a moment later."""
    found: dict[str, Any] = {}

    async def complete() -> bool:
        response = await front.operator.get("/admin/advice", timeout=90)
        assert response.status_code == 200, response.text
        found.update(response.json())
        group = found["groups"][0] if found["groups"] else {}
        return bool(group.get("advice") and group["advice"]["requests"] == requests)

    await until(complete, "advice", 60)
    return found


@pytest.mark.parametrize("journal", ["slotgate.db", ""])
async def test_more_slots_are_advised_where_requests_waited(journal: str) -> None:
    """Two slots of 65,536 tokens, and prompts that need 2,000: slots of a smaller window would have shortened
    the queue, told from the journal or, without one, from memory."""
    async with (
        engine("llamacpp", slots=2, **PACE) as one,
        gateway(configured(one, accounting={"journal": journal})) as front,
    ):
        await becomes(front, "b0", "ready")
        await crowd(front)
        found = await advice(front)
        assert (found["source"], found["problem"]) == ("journal" if journal else "memory", "")
        (group,) = found["groups"]
        assert group["backends"] == ["b0"]
        told = group["advice"]
        # Twelve rounds of half a second: about three seconds are waited on average, seen and played.
        assert told["seen_wait_mean"] > 2 * SECONDS
        assert told["present"]["wait_mean"] > 2 * SECONDS
        best = told["best"]
        assert best["backend"] == "b0"
        assert best["room"]["slots"] > 2
        assert best["room"]["context_tokens"] < 65_536
        assert best["room"]["estimate"]
        assert best["outcome"]["wait_mean"] < told["present"]["wait_mean"] / 2
        assert "b0 would have about" in told["sentences"][-1]


async def test_two_starts_of_an_engine_tell_the_slots_of_its_windows() -> None:
    """Banks: after the first start nobody knows, after one with another window the law goes through both."""
    async with (
        engine("ds4", slots=2, context_tokens=262_144, **PACE) as one,
        gateway({"backends": [{"name": "b0", "url": one.url}]}) as front,
    ):
        await becomes(front, "b0", "ready")
        await crowd(front)
        told = (await advice(front))["groups"][0]["advice"]
        assert told["alternatives"] == []
        assert "it was not seen with two" in told["sentences"][-1]
        await one.restart(slots=11, context_tokens=65_536)

        async def resized() -> bool:
            shown = (await front.operator.get("/admin/backends/b0")).json()
            return bool(shown["state"] == "ready" and shown["slots"]["total"] == 11)

        await until(resized, "the new size", 30)
        told = (await advice(front))["groups"][0]["advice"]
        rooms = {one["room"]["context_tokens"]: one["room"] for one in told["alternatives"]}
        assert rooms[32_768]["slots"] == 23
        assert rooms[32_768]["estimate"]
