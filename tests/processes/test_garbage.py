"""Nothing of ours is left to the garbage collector, which would look for it while all stands still."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.plays import BEGUN, says
from tests.faults.raw_engine import FAILS, raw_engine
from tests.processes.asking import CHAT, ask, fault, quiet
from tests.processes.fleet import becomes
from tests.processes.harness import RawClient, chat, engine, gateway

UNCOLLECTED = ("tests.processes.uncollected", "serve")
WAYS = ("close", "reset", "half_close")


async def test_connections_requests_and_failures_let_go_of_each_other(tmp_path: Path) -> None:
    """Of requests that end well, that are refused, whose clients leave while they wait or are answered, whose
    engine fails; of connections that serve one or several, by ASGI too."""
    file = tmp_path / "uncollected"
    async with (
        engine("llamacpp", slots=1, tokens=200, decode_tps=400.0, model=["agent"]) as one,
        raw_engine() as raw,
        gateway(
            {
                "backends": [
                    {"name": "one", "url": one.url, "slots": 1},
                    {"name": "raw", "url": raw.url, "slots": 4, "models": ["raw"]},
                ]
            },
            program=UNCOLLECTED,
            environment={"UNCOLLECTED": str(file)},
        ) as front,
    ):
        await becomes(front, "one", "ready")
        await becomes(front, "raw", "ready")
        raw.play = says(BEGUN)
        wanted = chat("a question", stream=True, max_tokens=3) | {"model": "agent"}
        endless = chat("a question", stream=True, max_tokens=200) | {"model": "agent"}
        async with await RawClient.connect(front.url) as client:
            for _ in range(3):
                await client.post(CHAT, wanted, [])
                await client.head()
                await client.body()
        for stream in (True, False):
            assert (await ask(front, wanted | {"stream": stream})).head.status == 200
            await ask(front, chat(FAILS, stream=stream) | {"model": "raw"})
        fault(await ask(front, b"{"), 400, "invalid_json")
        fault(await ask(front, wanted | {"model": "none"}), 404, "model_not_found")
        for path in ("/health", "/v1/models", "/metrics", "/nothing"):
            await ask(front, b"", path=path, method="GET")
        for how in WAYS:
            async with await RawClient.connect(front.url) as running:
                await running.post(CHAT, endless, [])
                await running.head()
                async with await RawClient.connect(front.url) as waiting:
                    await waiting.post(CHAT, endless, [])
                    await one.busy()
                    await front.operator.get("/admin/queue")
                    getattr(waiting, how)()
                getattr(running, how)()
            await quiet(front)
            await one.idle()
    assert json.loads(file.read_text()) == {}
