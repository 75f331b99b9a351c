"""Clients that keep a gateway busy, and lose nothing silently."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.answer import words
from tests.processes.asking import ask, checked
from tests.processes.harness import Engine, Gateway, chat, until

CLIENTS = 20
TOKENS = 6
PACE: dict[str, Any] = {"decode_tps": 100.0, "tokens": TOKENS}  # of the engines: answers of some 50 ms


class Load:
    """Clients that keep asking; one whose request was lost with its engine asks again, as agents do."""

    def __init__(self, front: Gateway) -> None:
        self._front = front
        self._stopped = False
        self.answered = 0
        self.lost: Counter[str] = Counter()  # by error code

    def stop(self) -> None:
        """Finish what is asked already."""
        self._stopped = True

    async def client(self, number: int) -> None:
        """Ask one thing after another, each until it is answered."""
        turn = 0
        while not self._stopped:
            turn += 1
            key, stream = f"client {number} turn {turn}", turn % 3 > 0
            while not await self.asked(key, stream):
                pass
            self.answered += 1

    async def asked(self, key: str, stream: bool) -> bool:
        """Ask once; False if the engine took the request with it. Anything else is a failure."""
        answer = await ask(self._front, chat(key, stream=stream))
        assert answer.ended == "clean", answer
        if answer.head.status == 502:
            self.lost["status"] += 1
            return False
        assert answer.head.status == 200, answer
        if stream and not answer.events[-1].done:
            checked(answer.events[-1].json(), "backend_failed")
            self.lost["event"] += 1
            return False
        assert answer.text == "".join(words(key, TOKENS))
        return True


@asynccontextmanager
async def load(front: Gateway) -> AsyncIterator[Load]:
    """Keep the gateway busy; at the end every request has been answered."""
    clients = Load(front)
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(clients.client(number))
        yield clients
        clients.stop()


async def worked(one: Engine, requests: int) -> dict[str, Any]:
    """Wait until the engine has completed so many requests since its start; its counts."""

    async def enough() -> bool:
        return bool((await one.state())["outcomes"].get("completed", 0) >= requests)

    await until(enough, f"{requests} requests at the engine")
    state: dict[str, Any] = await one.state()
    return state
