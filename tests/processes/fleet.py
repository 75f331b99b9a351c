"""The backends of a running gateway: how they are configured, and what becomes of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.processes.asking import backend, queued
from tests.processes.harness import Engine, Gateway, until


def configured(*engines: Engine, backend: dict[str, Any] | None = None, **tables: Any) -> dict[str, Any]:
    """A configuration: backends b0, b1, ...; an engine that does not tell its slots has them configured.

    `backend` holds options of every backend.
    """
    backends = []
    for i, one in enumerate(engines):
        tells = one.options["personality"] == "llamacpp"
        slots = {} if tells else {"slots": one.options.get("slots", 1)}
        backends.append({"name": f"b{i}", "url": one.url} | slots | (backend or {}))
    return {"backends": backends} | tables


async def becomes(gateway: Gateway, name: str, state: str, seconds: float = 15.0) -> None:
    """Wait until a backend is in a state."""

    async def so() -> bool:
        return bool((await backend(gateway, name))["state"] == state)

    await until(so, f"{name} {state}", seconds)


async def settled(gateway: Gateway, *names: str) -> None:
    """Wait until no slot of these backends is taken; nobody may wait then either."""
    for name in names:

        async def free(name: str = name) -> bool:
            slots = (await backend(gateway, name))["slots"]
            return bool(slots["free"] == slots["total"])

        await until(free, f"all slots of {name} free", 10.0)
    assert await queued(gateway) == 0


def states(gateway: Gateway, name: str, *but: str) -> list[str]:
    """The states that a backend went through but for some, as the gateway's log tells them.

    The log tells a state again when its reason changes; here it is one.
    """
    messages = [json.loads(line)["message"] for line in gateway.process.errors.splitlines()]
    begin = f"{name} is "
    known = ("starting", "warming", "ready", "draining", "drained", "ejected", "down")
    words = [message.removeprefix(begin).partition(":")[0] for message in messages if begin in message]
    walk = (word for word in words if word in known and word not in but)
    return [state for state, _ in itertools.groupby(walk)]
