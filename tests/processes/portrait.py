"""Pictures of the live page for the README: `python -m tests.processes.portrait docs` takes ten minutes.

Four fake engines of unlike speed and slots, and thirty agents whose conversations grow; for as long as the
lines of the page reach back.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from tests.processes.chromium import Tab, browser, tab
from tests.processes.fleet import becomes
from tests.processes.harness import Engine, Gateway, chat, engine, gateway

CODER, FLASH = "qwen3-coder-next", "deepseek-v4-flash"
ENGINES: dict[str, dict[str, Any]] = {
    "spark-1": {"personality": "llamacpp", "slots": 4, "context_tokens": 131_072, "model": [CODER]}
    | {"prefill_tps": 6000.0, "decode_tps": 22.0},
    "spark-2": {"personality": "ds4", "slots": 11, "model": [FLASH]}
    | {"prefill_tps": 6000.0, "decode_tps": 18.0},
    "tower": {"personality": "vllm", "slots": 6, "context_tokens": 262_144, "model": [FLASH]}
    | {"prefill_tps": 9000.0, "decode_tps": 40.0, "usage_details": True},
    "old-mini": {"personality": "llamacpp", "slots": 2, "model": [CODER]}
    | {"prefill_tps": 3000.0, "decode_tps": 12.0},
}
TOLD = ("llamacpp",)  # kinds that tell their slots
AGENTS = ("refactor", "docs-writer", "ci-triage", "mail-sorter", "research", "migration", "reviewer")
CLIENTS = 34
CODERS = 10  # of them; the others ask the other model
PROMPT_LETTERS_MAX = 50_000
VOLATILE: dict[str, Callable[[random.Random], str]] = {  # what stands in their system prompts
    "ci-triage": lambda _: f"It is {time.strftime('%H:%M:%S')}.",
    "mail-sorter": lambda dice: f"Request {uuid.UUID(int=dice.getrandbits(128), version=4)}.",
}
SENTENCE = "The river runs past the mill and under the old bridge. "


async def agent(front: Gateway, number: int) -> None:
    """One conversation after another, turn by turn, until cancelled."""
    dice, model = random.Random(number), CODER if number < CODERS else FLASH
    name = AGENTS[number % len(AGENTS)]
    async with httpx.AsyncClient(base_url=front.url, trust_env=False, timeout=None) as client:
        said: list[dict[str, str]] = []
        role, letters = "", 0
        for turn in itertools.count():
            if letters > PROMPT_LETTERS_MAX or not said:
                role, said = SENTENCE * dice.randrange(20, 300), []
                session, letters = f"{number}-{turn}", len(role)
            said.append({"role": "user", "content": f"Turn {turn}. " + SENTENCE * dice.randrange(20, 200)})
            letters += len(said[-1]["content"])
            headers = {
                "X-Slotgate-Agent": name,
                "X-Slotgate-Session": session,
                "X-Slotgate-Priority": dice.choice(("agent", "agent", "agent", "interactive", "batch")),
            }
            news = VOLATILE[name](dice) if name in VOLATILE else ""
            system = {"role": "system", "content": f"You are {number}. {news} {role}"}
            body = chat("", messages=[system, *said], model=model, max_tokens=dice.randrange(60, 300))
            async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                async for _ in answer.aiter_bytes():
                    pass
            said.append({"role": "assistant", "content": "It is done."})
            await asyncio.sleep(dice.random() * 4)


async def portraits(folder: Path, seconds: float) -> None:
    """Let them work for so long, then look."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {
            name: await stack.enter_async_context(engine(tokens=300, prefix_cache=True, **options))
            for name, options in ENGINES.items()
        }
        backends = [
            {"name": name, "url": one.url}
            | ({} if one.options["personality"] in TOLD else {"slots": one.options["slots"]})
            for name, one in engines.items()
        ]
        front = await stack.enter_async_context(
            gateway({"backends": backends, "accounting": {"journal": ""}})
        )
        for name in ENGINES:
            await becomes(front, name, "ready")
        agents = [asyncio.create_task(agent(front, number)) for number in range(CLIENTS)]
        chromium = await stack.enter_async_context(browser())
        url = f"{front.admin}/console"
        light = await stack.enter_async_context(tab(chromium, url, 1360, 1500))
        await asyncio.sleep(seconds)
        await light.page.get_by_role("button", name="Drain old-mini").click()
        await light.page.evaluate("document.activeElement.blur()")
        dark = await stack.enter_async_context(tab(chromium, url, 1360, 1500, dark=True))
        phone = await stack.enter_async_context(tab(chromium, url, 390, 844, phone=True))
        await asyncio.sleep(6)
        for name, one in (("light", light), ("dark", dark), ("phone", phone)):
            await shoot(one, folder / f"console-{name}.png", whole=one is not phone)
        for task in agents:
            task.cancel()
        await asyncio.wait(agents)


async def shoot(one: Tab, file: Path, *, whole: bool) -> None:
    """The page, or what of it is seen without scrolling."""
    assert one.complaints == []
    await one.page.screenshot(path=file, full_page=whole)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Take the pictures of the live page.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    chosen = parser.parse_args()
    chosen.folder.mkdir(exist_ok=True)
    asyncio.run(portraits(chosen.folder, chosen.seconds))
