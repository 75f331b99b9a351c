"""An engine restarts with another number of slots while everybody keeps asking."""

from __future__ import annotations

import asyncio

from tests.processes.asking import ask, backend
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import Gateway, chat, engine, gateway, until
from tests.processes.load import PACE, load, worked


async def total(front: Gateway, slots: int) -> None:
    """Wait until the gateway knows so many slots of b0, and uses them."""

    async def so() -> bool:
        seen = await backend(front, "b0")
        return bool(seen["state"] == "ready" and seen["slots"]["total"] == slots)

    await until(so, f"{slots} slots in use")


async def test_an_engine_that_crashes_and_returns_with_other_slots() -> None:
    """8, 2, 8 slots: from its first moment on the new process never has more requests than it has slots,
    soon uses them all, and everybody gets an answer in the end."""
    async with engine("llamacpp", slots=8, **PACE) as one, gateway(configured(one)) as front:
        await total(front, 8)
        async with load(front) as clients:
            await worked(one, 60)
            for slots in (2, 8, 2, 8):
                await one.restart(slots=slots)
                await total(front, slots)
                state = await worked(one, 10 * slots)
                assert state["over_slots"] == 0, (slots, state)
                assert state["max_concurrent"] == slots
                seen = (await backend(front, "b0"))["slots"]
                assert (seen["total"], seen["source"]) == (slots, "reported")
        await settled(front, "b0")
        assert clients.lost.total() <= 8 + 2 + 8 + 2
        assert (await one.state())["over_slots"] == 0


async def test_a_restart_between_drain_and_resume_loses_nothing() -> None:
    """Drained first, an engine can be restarted with other slots without a single failure; the requests
    go to the other engine meanwhile."""
    async with (
        engine("llamacpp", slots=8, **PACE) as one,
        engine("openai", slots=2, **PACE) as other,
        gateway(configured(one, other)) as front,
    ):
        await total(front, 8)
        await becomes(front, "b1", "ready")
        async with load(front) as clients:
            for slots in (2, 8):
                await worked(one, 30)
                answer = await front.operator.post("/admin/backends/b0/drain", json={"wait_seconds": 20})
                assert answer.json() == {"state": "drained", "in_flight": 0}
                assert (await one.state())["concurrent"] == 0
                await one.restart(slots=slots)
                before = clients.answered
                await until(lambda before=before: clients.answered > before + 5, "answers of the other one")
                assert (await one.state())["received"] == 0
                await front.operator.post("/admin/backends/b0/resume")
                await total(front, slots)
                state = await worked(one, 10 * slots)
                assert state["over_slots"] == 0
                assert state["max_concurrent"] == slots
        assert clients.lost.total() == 0
        assert (await other.state())["over_slots"] == 0


async def test_fewer_slots_take_effect_as_requests_end() -> None:
    """An engine that says it has fewer slots than are in use gets nothing new until it has room."""
    async with (
        engine("llamacpp", slots=4, tokens=20, decode_tps=10.0) as one,
        gateway(configured(one)) as front,
    ):
        await total(front, 4)
        running = [asyncio.create_task(ask(front, chat(f"long {i}"))) for i in range(4)]
        await one.busy(4)
        await one.resize(2)
        await until(lambda: less(front, 2), "2 slots", 10.0)
        next_ones = [asyncio.create_task(ask(front, chat(f"next {i}", max_tokens=2))) for i in range(6)]
        replies = await asyncio.gather(*running, *next_ones)
        assert [answer.head.status for answer in replies] == [200] * 10
        assert (await one.state())["over_slots"] == 0


async def less(front: Gateway, slots: int) -> bool:
    """Whether the gateway knows of so few slots."""
    return bool((await backend(front, "b0"))["slots"]["total"] == slots)
