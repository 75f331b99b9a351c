"""Never more at an engine than it has slots, and never a slot idle that somebody waits for."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.fakes.answer import words
from tests.processes.asking import CHAT, COMPLETIONS, Reply, ask, backend, metric, queued
from tests.processes.departures import leave
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import RawClient, chat, engine, gateway, until

REQUESTS = 2000
REQUESTS_LONG = 20_000
AT_ONCE = 96  # clients; far more than slots, so that most requests wait
LEAVING_SHARE = 0.3
CLASSES = ("interactive", "agent", "batch")
TOOL = {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}}


# -- mixed requests, leaving clients ----------------------------------------------------------------


def mixed(dice: random.Random, number: int) -> tuple[str, dict[str, Any], str, list[tuple[str, str]]]:
    """Path, body, expected text and headers of one request."""
    prompt = f"request {number} " + "x" * dice.randrange(400)
    more: dict[str, Any] = {"stream": dice.random() < 0.6, "max_tokens": 8}
    headers = [("X-Slotgate-Priority", dice.choice(CLASSES))]
    if dice.random() < 0.5:
        return CHAT, chat(prompt, **more), "".join(words(prompt, 8)), headers
    body = {"model": "fake-model", "prompt": prompt} | more
    return COMPLETIONS, body, "".join(words(prompt, 8)), headers


def answered(reply: Reply, body: dict[str, Any], text: str) -> None:
    """The answer is whole, and that to this very prompt."""
    assert reply.head.status == 200, reply
    assert reply.ended == "clean"
    assert reply.text == text
    if body["stream"]:
        assert reply.events[-1].done


@pytest.mark.parametrize("requests", [REQUESTS, pytest.param(REQUESTS_LONG, marks=pytest.mark.long)])
async def test_no_engine_ever_has_more_requests_than_slots(requests: int) -> None:
    """Mixed requests over three engines, of which 30 % of the clients leave at any moment: the engines
    count no request beyond their slots, all who stay are answered, and nothing is left over."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it when the test fails
    dice = random.Random(seed)
    options = {"decode_tps": 500.0, "prefill_tps": 50_000.0, "abort_seconds": 0.02}
    outcomes: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(engine("llamacpp", slots=1, **options)),
            await stack.enter_async_context(engine("openai", slots=2, **options)),
            await stack.enter_async_context(engine("openai", slots=4, **options)),
        ]
        names = [f"b{i}" for i in range(len(engines))]
        # Nobody holds: at the end all slots must be taken, however slow one of them has shown itself.
        routing = {"hold_seconds_max": 0}
        one = await stack.enter_async_context(gateway(configured(*engines, routing=routing)))
        for name in names:
            await becomes(one, name, "ready")
        numbers = iter(range(requests))

        async def client() -> None:
            for number in numbers:
                path, body, text, headers = mixed(dice, number)
                if dice.random() < LEAVING_SHARE:
                    done = await leave(one, dice, path, body, headers)
                    outcomes["done before it left" if done else "left"] += 1
                else:
                    answered(await ask(one, body, headers, path), body, text)
                    outcomes["stayed"] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(client())
        await settled(one, *names)
        for name, each in zip(names, engines, strict=True):
            state = await each.state()
            assert state["over_slots"] == 0, (name, state)
            assert state["max_concurrent"] == state["slots"], (name, state)
            assert state["concurrent"] == 0

        total = await metric(one, "slotgate_requests_total")
        completed = await metric(one, "slotgate_requests_total", outcome="completed")
        gone = await metric(one, "slotgate_requests_total", outcome="client_gone")
        print(dict(outcomes), {"completed": completed, "client_gone": gone})  # noqa: T201
        assert outcomes.total() == requests
        assert completed + gone == total == requests
        assert completed >= outcomes["stayed"] + outcomes["done before it left"]
        assert gone >= requests * LEAVING_SHARE / 4  # else nobody left in the middle

        # Every slot can be used again, all at the same time.
        for each in engines:
            await each.script(times=None, token_seconds=0.5, match="at once")
        slots = sum(each.options["slots"] for each in engines)
        last = [asyncio.create_task(ask(one, chat(f"at once {i}", max_tokens=3))) for i in range(slots)]
        for each in engines:
            await each.busy(each.options["slots"])
        assert [reply.head.status for reply in await asyncio.gather(*last)] == [200] * slots


# -- utilisation ------------------------------------------------------------------------------------

RAMP_SECONDS = 1.0
WINDOWS, WINDOW_SECONDS = 5, 1.2
BUSY_BEST_MIN, BUSY_ALL_MIN = 0.93, 0.75


async def test_slots_are_busy_while_agents_wait() -> None:
    """Under a backlog of short prompts of agents, with answers of some 60 ms, the slots are busy 95 % of
    the time: measured by the engines, while somebody waits at every moment.

    On an idle machine it is 97 %. Engines, gateway and clients share theirs with whatever else runs on
    it, which can only lower the figure: with two busy loops beside them on two cores it was 94 to 96 %.
    So what is held is the best of five windows, to 93 %, and all of them together, to 75 %.
    """
    options = {"decode_tps": 40.0, "prefill_tps": 20_000.0}
    async with (
        engine("llamacpp", slots=2, **options) as small,
        engine("openai", slots=4, **options) as large,
        gateway(configured(small, large)) as one,
    ):
        for name in ("b0", "b1"):
            await becomes(one, name, "ready")
        stopped = asyncio.Event()

        async def agent(number: int) -> None:
            turn = 0
            while not stopped.is_set():
                turn += 1
                body = chat(f"agent {number} turn {turn}", tools=[TOOL])
                reply = await ask(one, body, [("X-Slotgate-Agent", f"agent-{number}")])
                assert reply.head.status == 200
                assert reply.events[-1].done

        async def look() -> list[dict[str, Any]]:
            assert await queued(one) > 0
            return [await each.state() for each in (small, large)]

        async with asyncio.TaskGroup() as group:
            for number in range(24):
                group.create_task(agent(number))
            await asyncio.sleep(RAMP_SECONDS)
            looks = [await look()]
            for _ in range(WINDOWS):
                await asyncio.sleep(WINDOW_SECONDS)
                looks.append(await look())
            stopped.set()
        shares = [busy(before, after) for before, after in itertools.pairwise(looks)]
        figures = {"windows": shares, "all": busy(looks[0], looks[-1])}
        print(json.dumps(figures))  # noqa: T201
        assert max(shares) >= BUSY_BEST_MIN, figures
        assert figures["all"] >= BUSY_ALL_MIN, figures
        assert [state["over_slots"] for state in looks[-1]] == [0, 0]


def busy(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> float:
    """The share of all slots' time that was spent on requests."""
    spent = sum(b["busy_slot_seconds"] - a["busy_slot_seconds"] for a, b in zip(before, after, strict=True))
    return spent / sum(a["slots"] * (b["now"] - a["now"]) for a, b in zip(before, after, strict=True))


# -- slots that others use, slots that are being left -----------------------------------------------


async def test_requests_of_others_at_an_engine_take_its_slots() -> None:
    """What somebody sends to llama.cpp past the gateway lowers its free slots, and counts no more when
    it has ended; the gateway's own never exceed what is left."""
    async with engine("llamacpp", slots=3, decode_tps=20.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        await one.script(times=2, match="foreign", token_seconds=30.0)

        async def foreign(number: int) -> bool:
            return bool((await backend(front, "b0"))["slots"]["foreign"] == number)

        async with await RawClient.connect(one.url) as a, await RawClient.connect(one.url) as b:
            for client in (a, b):
                await client.post(CHAT, chat("foreign"))
                await client.head()
            await until(lambda: foreign(2), "two foreign requests seen", 10.0)
            slots = (await backend(front, "b0"))["slots"]
            assert (slots["free"], slots["in_use"]) == (1, 0)
            replies = await asyncio.gather(*(ask(front, chat(f"own {i}", max_tokens=2)) for i in range(4)))
            assert [reply.head.status for reply in replies] == [200] * 4
            state = await one.state()
            assert (state["over_slots"], state["max_concurrent"]) == (0, 3)
        await until(lambda: foreign(0), "no foreign request any more", 10.0)
        assert (await backend(front, "b0"))["slots"]["free"] == 3


@pytest.mark.parametrize("personality", ["openai", "llamacpp"])
async def test_a_slot_is_used_again_when_the_engine_has_stopped(personality: str) -> None:
    """A client leaves, the engine needs a second to stop: until then the slot counts as leaving and the
    next request waits; soon after it is served. Not when the connection is closed, nor when a time is up."""
    async with (
        engine(personality, slots=1, abort_seconds=1.0) as one,
        gateway(configured(one)) as front,
    ):
        await becomes(front, "b0", "ready")
        await one.script(match="leaves", token_seconds=30.0)
        async with await RawClient.connect(front.url) as client:
            await client.post(CHAT, chat("leaves"))
            await client.head()
            await client.first_token()
            left = client.close()
        reply = asyncio.create_task(ask(front, chat("follows")))

        async def leaving() -> bool:
            slots = (await backend(front, "b0"))["slots"]
            return bool((slots["leaving"], slots["in_use"], slots["free"]) == (1, 0, 0))

        await until(leaving, "a slot that is being left", 0.9)
        assert (await reply).head.status == 200
        old, new = (await one.records())[-2:]
        assert (old["key"], old["outcome"], new["key"]) == ("leaves", "aborted", "follows")
        assert old["end"] >= left + 1.0
        assert old["end"] <= new["arrived"] <= old["end"] + 0.5
        assert (await one.state())["over_slots"] == 0
