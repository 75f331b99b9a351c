"""Tokens are those that engines counted, however many of them an event carries: the engine's own record of
each request is compared with its row of the journal."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from gateway.journal import JournalError, rows
from gateway.row import Row
from tests.fakes.routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.processes.asking import ask, metric
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, engine, gateway, until

STREAMS = 1000
AT_ONCE = 32
PACKED = range(1, 9)  # tokens in an event
LIMIT_KEYS = {
    CHAT: "max_tokens",
    COMPLETIONS: "max_tokens",
    MESSAGES: "max_tokens",
    RESPONSES: "max_output_tokens",
}
ENGINES = ("openai", "ds4", "llamacpp", "vllm", "sglang")
WAYS = ("asked", "always", "finish", "cumulative")  # in which an engine may tell usage in a stream of a chat
TIMINGS = "timings"  # a llama.cpp that tells no usage, only what took how long
ROUTES = {"openai": (CHAT, COMPLETIONS), TIMINGS: (CHAT,)}  # others: all


def body(route: str, model: str, text: str, tokens: int) -> dict[str, Any]:
    """A question of this route, to be answered with so many tokens."""
    said: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    if route in (COMPLETIONS, RESPONSES):
        said = {"prompt" if route == COMPLETIONS else "input": text}
    return {"model": model, "stream": True, LIMIT_KEYS[route]: tokens} | said


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Gateway, dict[str, Engine]]]:
    """An engine of each kind, with a model of its own, which packs tokens as the prompt says."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {}
        for name in (*ENGINES, TIMINGS):
            one = await stack.enter_async_context(
                engine(
                    "llamacpp" if name == TIMINGS else name,
                    model=name,
                    slots=8,
                    instant=True,
                    tokens=64,
                    prefix_cache=True,
                    usage_details=True,
                )
            )
            for packed in PACKED:
                for way in ("never",) if name == TIMINGS else WAYS:
                    await one.script(match=f"{way} {packed} ", times=None, tokens_per_event=packed, usage=way)
            engines[name] = one
        backends = [{"name": name, "url": one.url, "slots": 8} for name, one in engines.items()]
        front = await stack.enter_async_context(gateway({"backends": backends}))
        for name in engines:
            await becomes(front, name, "ready")
        yield front, engines


async def journalled(front: Gateway, count: int) -> dict[str, Row]:
    """Wait until so many requests stand in the journal; its rows by the id that engines saw."""
    found: dict[str, Row] = {}

    def enough() -> bool:
        try:
            found.update((row.request_id, row) for row in rows(front.config.parent / "slotgate.db"))
        except JournalError:  # not made yet
            return False
        return len(found) >= count

    await until(enough, f"{count} rows in the journal")
    return found


async def test_tokens_are_the_engines_own_whatever_an_event_carries() -> None:
    """1,000 streams of all routes and kinds of engine, 1 to 8 tokens an event: not one token is missing or
    too many in prompt, cached and completion, and the sums of the metrics are the same."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    async with fleet() as (front, engines):
        numbers = iter(range(STREAMS))

        async def client() -> None:
            for number in numbers:
                name = dice.choice((*ENGINES, TIMINGS))
                route = dice.choice(ROUTES.get(name, tuple(LIMIT_KEYS)))
                way = "never" if name == TIMINGS else dice.choice(WAYS if route == CHAT else WAYS[:1])
                text = f"{way} {dice.choice(PACKED)} of stream {number} " + "and so on " * dice.randrange(300)
                question = body(route, name, text, dice.randrange(1, 64))
                if route in (CHAT, COMPLETIONS) and dice.random() < 0.5:
                    question["stream_options"] = {"include_usage": True}
                answer = await ask(front, question, path=route)
                assert (answer.head.status, answer.ended) == (200, "clean"), answer

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())

        journal = await journalled(front, STREAMS)
        assert len(journal) == STREAMS
        seen, packed = Counter[str](), Counter[bool]()
        for name, one in engines.items():
            for record in await one.records():
                row = journal.get(record["id"])
                if row is None:  # a warm-up
                    continue
                assert (row.backend, row.outcome) == (name, "completed"), row
                assert row.source == ("engine_timings" if name == TIMINGS else "reported"), row
                assert row.completion_tokens == record["completion_tokens"], row
                assert row.prompt_tokens == record["prompt_tokens"], row
                assert row.cached_tokens in (None, record["cached_tokens"]), row
                seen[name] += 1
                packed[row.events < record["completion_tokens"]] += 1
        assert seen.total() == STREAMS
        assert set(seen) == set(engines)
        assert packed[True] > STREAMS / 2  # counted events would have been far too few
        for kind in ("prompt", "completion"):
            counted = sum(getattr(row, f"{kind}_tokens") or 0 for row in journal.values())
            assert await metric(front, "slotgate_tokens_total", kind=kind) == counted
