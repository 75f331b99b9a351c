"""What is a client's fault is not held against an engine, and what cannot be seen holds nobody up."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import urlsplit

from tests.processes.asking import CHAT, ask, backend, metric
from tests.processes.fleet import becomes, configured, settled
from tests.processes.harness import chat, engine, gateway, until

EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"' + "x" * 1_000_000 + '"}}]}\n\n'


async def test_clients_that_read_nothing_do_not_eject_their_engine() -> None:
    """Their buffers fill, nothing moves for `idle_seconds`, and they are ended as gone; the engine, which
    has sent more than they took, stays ready, and their sockets do not stay open."""
    body = json.dumps(chat("deaf")).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    limits = {"timeouts": {"idle_seconds": 1.0}}
    async with engine(slots=4) as one, gateway(configured(one, backend=limits), clean=False) as front:
        await becomes(front, "b0", "ready")
        await one.script(raw=[EVENT] * 40, times=4)
        port = urlsplit(front.url).port
        deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        try:
            for client in deaf:
                client.sendall(head + body)

            async def gone() -> bool:
                return await metric(front, "slotgate_requests_total", outcome="client_gone") == 4

            await until(gone, "four clients that are given up", 30.0)
            assert (await backend(front, "b0"))["state"] == "ready"
            await settled(front, "b0")
            assert await metric(front, "slotgate_ejections_total") == 0
        finally:
            for client in deaf:
                client.close()


async def test_an_answer_that_does_not_stream_does_not_hold_the_gate_to_its_end() -> None:
    """Nothing tells its first token: the gate opens when its prefill must be over, so that long prompts
    run side by side."""
    prompt = "word " * 8000  # 10,000 tokens by the estimate: seconds of prefill by the prior rates
    async with engine(slots=3, tokens=400, decode_tps=20.0) as one, gateway(configured(one)) as front:
        await becomes(front, "b0", "ready")
        asked = [
            asyncio.create_task(ask(front, chat(f"{i} {prompt}", stream=False, max_tokens=400)))
            for i in range(2)
        ]

        async def both() -> bool:
            return bool((await one.state())["running"] == 2)

        await until(both, "both long prompts at the engine", 20.0)  # each takes 20 s to answer
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await settled(front, "b0")
