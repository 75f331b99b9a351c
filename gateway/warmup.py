"""A few short requests before a backend takes calls: the first after a start pays for graph capture
and autotuning (6 to 10 seconds on a DGX Spark), and shows whether the engine can generate at all."""

from __future__ import annotations

import asyncio
import json

from gateway.engines.base import CHAT
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Upstream

WARMUP_SECONDS_MAX = 120.0
WARMUP_TOKENS = 4
ANSWER_BYTES_MAX = 1_048_576


async def warm_up(upstream: Upstream, model: str) -> str:
    """Send one such request; why it failed, or "" if it did not."""
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": WARMUP_TOKENS}
    ).encode()
    try:
        async with asyncio.timeout(WARMUP_SECONDS_MAX):
            exchange = await upstream.send("POST", CHAT, [(b"content-type", b"application/json")], body)
            try:
                head = await exchange.head()
                await exchange.body(ANSWER_BYTES_MAX)
            finally:
                exchange.abort()
    except TimeoutError:
        return f"warm-up request was not answered within {WARMUP_SECONDS_MAX:g} seconds"
    except (ConnectFailed, ConnectionLost, AnswerTooLarge) as error:
        return f"warm-up request failed: {error}"
    return "" if head.status == 200 else f"warm-up request was answered with status {head.status}"
