"""Prompts and contexts: long prompts go where they fit, and only there."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.processes.asking import CHAT, COMPLETIONS, ask, fault, metric
from tests.processes.fleet import becomes, configured
from tests.processes.harness import Engine, Gateway, chat, engine, gateway

SMALL, LARGE = 1000, 8000  # tokens of context; to the fake engines four bytes are a token
CODE = "context_length_exceeded"


def prompt(tokens: int) -> str:
    """Text of so many tokens."""
    return "word" * tokens


@asynccontextmanager
async def two(small: str, large: str, **more: Any) -> AsyncIterator[tuple[Gateway, Engine, Engine]]:
    """A gateway with an engine of a small context and three slots, and one of a large context."""
    async with (
        engine(small, slots=3, context_tokens=SMALL, prefill_tps=1e5) as b0,
        engine(large, slots=1, context_tokens=LARGE, prefill_tps=1e5) as b1,
    ):
        config = configured(b0, b1, **more)
        for backend, one in zip(config["backends"], (b0, b1), strict=True):
            if one.options["personality"] == "openai":  # it does not tell
                backend["context_tokens"] = one.options["context_tokens"]
        async with gateway(config) as front:
            for name in ("b0", "b1"):
                await becomes(front, name, "ready")
            yield front, b0, b1


@pytest.mark.parametrize("kind", ["llamacpp", "vllm", "sglang"])
async def test_an_engine_that_counts_is_never_sent_what_it_cannot_hold(kind: str) -> None:
    """Short prompts, long ones and those within a few tokens of a limit, all at once: each is answered by
    an engine that holds it, and no engine has to refuse one."""
    dice = random.Random()
    sizes = [dice.randrange(10, 700) for _ in range(15)]
    sizes += [dice.randrange(SMALL - 20, SMALL + 20) for _ in range(15)]
    sizes += [dice.randrange(2 * SMALL, LARGE - 100) for _ in range(10)]
    dice.shuffle(sizes)
    async with two(kind, kind) as (front, small, large):
        bodies = [
            (CHAT, chat(prompt(size), max_tokens=8))
            if dice.random() < 0.5
            else (COMPLETIONS, {"model": "fake-model", "prompt": prompt(size), "max_tokens": 8})
            for size in sizes
        ]
        replies = await asyncio.gather(*(ask(front, body, path=path) for path, body in bodies))
        assert [reply.head.status for reply in replies] == [200] * len(sizes)
        for reply, size in zip(replies, sizes, strict=True):
            assert size < SMALL or reply.head.headers["x-slotgate-backend"] == "b1", size
        for one in (small, large):
            state = await one.state()
            assert "refused" not in state["outcomes"], state
            assert state["over_slots"] == 0
        assert 500 < max(record["prompt_tokens"] for record in await small.records()) < SMALL


async def test_an_engine_counts_for_an_alias_too() -> None:
    """It is asked by the name that it knows: a count near the limit is exact."""
    aliases = {"models": {"alias": {"targets": ["fake-model"]}}}
    async with two("vllm", "vllm", **aliases) as (front, small, _):
        answer = await ask(front, chat(prompt(SMALL - 50), model="alias", max_tokens=8))
        assert answer.head.status == 200
        (record,) = [record for record in await small.records() if record["prompt_tokens"] > 100]
        assert answer.head.headers["x-slotgate-prompt-tokens"] == str(record["prompt_tokens"])


@pytest.mark.parametrize("kind", ["llamacpp", "openai"])
@pytest.mark.parametrize("tokens", [LARGE, LARGE + 1, 5 * LARGE])
async def test_what_no_engine_holds_is_refused_with_figures(kind: str, tokens: int) -> None:
    """By the engine's own count where it can count; else by an estimate, which says so, and near the limit
    by the engine's refusal."""
    async with two(kind, kind) as (front, small, large):
        for stream in (True, False):
            answer = await ask(front, chat(prompt(tokens), stream=stream))
            error = fault(answer, 400, CODE)
            assert error["n_ctx"] == LARGE
            assert f"maximum context length is {LARGE} tokens" in error["message"]
            assert error["param"] == "messages"
            estimated = kind == "openai" and tokens > 2 * LARGE
            assert error.get("estimated", False) is estimated
            assert error["n_prompt_tokens"] == tokens or kind == "openai"
        for one in (small, large):
            served = [record for record in await one.records() if record["prompt_tokens"] > 100]
            assert not served or (kind == "openai" and one is large and tokens < 2 * LARGE)


@pytest.mark.parametrize("count", ["", "However, your messages resulted in 1200 tokens. "])
async def test_a_prompt_that_one_engine_refuses_is_served_by_a_larger_one(count: str) -> None:
    """Where the estimate was too low and no engine counts beforehand, the refusal itself tells: the call
    goes on to the larger engine, waits there for its turn, and the client never knows."""
    message = f"This model's maximum context length is {SMALL} tokens. {count}Please shorten them."
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": CODE}})
    async with two("openai", "openai") as (front, small, large):
        await small.script(status=400, body=body, match="dense", times=None)
        await large.script(match="wordword", token_seconds=0.1, tokens=8)
        first = asyncio.create_task(ask(front, chat(prompt(2 * SMALL))))
        await large.busy()
        answer = await ask(front, chat("dense " + prompt(SMALL // 3), stream=False, max_tokens=50))
        assert answer.head.status == 200
        assert answer.head.headers["x-slotgate-backend"] == "b1"
        assert (await first).events[-1].done
        assert (await small.state())["outcomes"]["scripted"] == 1
        assert await metric(front, "slotgate_retries_total", reason="over_length") == 1
        assert (await large.state())["over_slots"] == 0


async def test_a_limit_lowered_by_an_estimate_is_lowered_again_by_the_engines_count() -> None:
    """SGLang refuses what prompt and limit have too much together. The estimate of a prompt of short words
    is too low, and so is the room that is left for it: the refusal tells, and the client never knows."""
    async with (
        engine("sglang", context_tokens=LARGE, prefill_tps=1e5) as one,
        gateway(configured(one)) as front,
    ):
        await becomes(front, "b0", "ready")
        answer = await ask(front, chat(prompt(6000), max_tokens=65_536))
        assert answer.head.status == 200, answer
        assert answer.events[-1].done
        assert (await one.state())["outcomes"]["refused"] == 1
        assert await metric(front, "slotgate_retries_total", reason="no_room") == 1


async def test_an_engine_that_has_no_room_in_any_case_is_asked_twice() -> None:
    """The second refusal brings no news: the client gets it as it is."""
    message = (
        f"Requested token count exceeds the model's maximum context length of {LARGE} tokens. You requested "
        "a total of 71536 tokens: 6000 tokens from the input messages and 65536 tokens for the completion."
    )
    refused = json.dumps({"object": "error", "message": message, "type": "BadRequestError", "code": 400})
    async with engine("sglang", context_tokens=LARGE) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await one.script(times=None, match="wordword", status=400, body=refused)
        answer = await ask(front, chat(prompt(6000), max_tokens=65_536))
        assert (answer.head.status, answer.body) == (400, refused.encode())
        assert (await one.state())["outcomes"]["scripted"] == 2
