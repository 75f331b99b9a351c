"""Every kind of engine behind one gateway, and every kind of request to them at once."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.fakes.routes import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from tests.processes.asking import ask, backend, metric
from tests.processes.departures import leave
from tests.processes.fleet import becomes, settled
from tests.processes.harness import Engine, Gateway, RawClient, chat, engine, gateway, until
from tests.processes.mixture import TOKENS, mixed

REQUESTS = 5000
AT_ONCE = 96  # clients, for 30 slots
LEAVING_SHARE = 0.1
PACE: dict[str, Any] = {
    "tokens": TOKENS,
    "decode_tps": 50.0,  # with the time that this machine takes for a request, slots are what is short
    "prefill_tps": 1_000_000.0,
    "abort_seconds": 0.02,
}
# Slots and context of each; ds4 and SGLang tell their slots, llama.cpp too, but its operator sets them.
ENGINES: dict[str, dict[str, Any]] = {
    "ds4": {"model": ["flash"], "slots": 11, "context_tokens": 65_536},
    "ds4-upstream": {"model": ["flash"], "slots": 1, "context_tokens": 32_768},
    "llamacpp": {"model": ["flash"], "slots": 4, "context_tokens": 16_384},
    "vllm": {"model": ["large"], "slots": 6, "context_tokens": 49_152, "kv_tokens": 150_000},
    "sglang": {"model": ["large"], "slots": 8, "context_tokens": 24_576, "kv_tokens": 120_000},
}
CONFIGURED = {"llamacpp": 4}
HELD = {"flash": 65_536, "large": 49_152, "agent": 65_536}  # the longest prompt by model
SOURCES = {
    "ds4": (11, "reported", {"reported": 11}),
    "ds4-upstream": (1, "assumed", {}),
    "llamacpp": (4, "configured", {"configured": 4, "reported": 4}),
    "vllm": (6, "learnt", {"learnt": 6}),
    "sglang": (8, "reported", {"reported": 8}),
}
GENERATING = {CHAT, COMPLETIONS, RESPONSES, MESSAGES}
EMBEDDING = {"vllm", "sglang"}


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Gateway, dict[str, Engine]]]:
    """One engine of each kind, two models between them, and an alias for both."""
    async with AsyncExitStack() as stack:
        engines = {
            kind: await stack.enter_async_context(
                engine(kind, embeddings=kind in EMBEDDING, **options, **PACE)
            )
            for kind, options in ENGINES.items()
        }
        backends = [
            {"name": kind, "url": one.url} | ({"slots": CONFIGURED[kind]} if kind in CONFIGURED else {})
            for kind, one in engines.items()
        ]
        alias = {"agent": {"targets": ["flash", "large"]}}
        front = await stack.enter_async_context(gateway({"backends": backends, "models": alias}))
        for kind in engines:
            await becomes(front, kind, "ready")
        yield front, engines


async def capacity(front: Gateway) -> dict[str, tuple[int, str, dict[str, int]]]:
    """The slots of each backend, who told them, and what each source says."""
    backends = (await front.operator.get("/admin/backends")).json()
    slots = {one["name"]: one["slots"] for one in backends}
    return {name: (one["total"], one["source"], one["sources"]) for name, one in slots.items()}


async def fill(front: Gateway, vllm: Engine) -> None:
    """Others fill vLLM, so that its slots show; then they are gone and it counts from here."""
    more = ENGINES["vllm"]["slots"] + 2
    await vllm.script(times=more, match="foreign", token_seconds=30.0)

    async def learnt() -> bool:
        return bool((await backend(front, "vllm"))["slots"]["source"] == "learnt")

    async with AsyncExitStack() as others:
        for _ in range(more):
            other = await others.enter_async_context(await RawClient.connect(vllm.url))
            await other.post(CHAT, chat("foreign", model="large"))
        await until(learnt, "slots of vLLM that are learnt", 15.0)
    await vllm.idle()
    await vllm.reset()

    async def left_alone() -> bool:
        return bool((await backend(front, "vllm"))["slots"]["foreign"] == 0)

    await until(left_alone, "nobody else at vLLM", 15.0)


async def test_a_mixed_fleet_serves_every_kind_of_request_within_its_slots() -> None:
    """5,000 requests of all routes, short and long, of which a tenth of the clients leaves: no engine has
    more than its slots or a prompt that it cannot hold, all their slots are used, and whoever stays has an
    answer, the right one, or is told that nothing holds the prompt."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    outcomes: Counter[str] = Counter()
    async with fleet() as (front, engines):
        await fill(front, engines["vllm"])
        assert await capacity(front) == SOURCES
        numbers = iter(range(REQUESTS))

        async def client() -> None:
            for number in numbers:
                asked = mixed(dice, number)
                if dice.random() < LEAVING_SHARE:
                    await leave(front, dice, asked.path, asked.body, asked.headers)
                    outcomes["left"] += 1
                    continue
                reply = await ask(front, asked.body, asked.headers, asked.path)
                asked.check(reply, HELD[asked.body["model"]])
                outcomes["answered" if reply.head.status == 200 else "too long"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        await settled(front, *engines)

        assert await capacity(front) == SOURCES
        states = {kind: await one.state() for kind, one in engines.items()}
        for kind, state in states.items():
            assert (state["over_slots"], state["overlength"]) == (0, 0), (kind, state)
            assert state["max_concurrent"] == state["slots"], (kind, state)
            assert state["concurrent"] == 0
            assert set(state["routes"]) == GENERATING | ({EMBEDDINGS} if kind in EMBEDDING else set()), kind
        for kind in ("vllm", "sglang"):
            assert states[kind]["max_held"] <= ENGINES[kind]["kv_tokens"], (kind, states[kind])
            assert {f"POST {TOKENIZE}", f"POST {COUNT_TOKENS}"} <= set(states[kind]["probes"])

        by_outcome = {
            outcome: await metric(front, "slotgate_requests_total", outcome=outcome)
            for outcome in ("completed", "client_gone", "rejected")
        }
        figures = {kind: (state["received"], state["max_concurrent"]) for kind, state in states.items()}
        print(json.dumps({"clients": outcomes, "gateway": by_outcome, "engines": figures}))  # noqa: T201
        assert outcomes.total() == REQUESTS == sum(by_outcome.values())
        assert await metric(front, "slotgate_requests_total") == REQUESTS
        assert outcomes["too long"] > 0
        assert by_outcome["client_gone"] > 0
