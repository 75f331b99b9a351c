"""A few short requests before a backend takes calls: the first after a start pays for graph capture
and autotuning (6 to 10 seconds on a DGX Spark), and shows whether the engine can work at all."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.client import JSON
from gateway.engines.base import CHAT, COMPLETIONS, EMBEDDINGS
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Upstream

WARMUP_SECONDS_MAX = 120.0
WARMUP_TOKENS = 4
ANSWER_BYTES_MAX = 1_048_576

# A model without a chat template refuses chat, one that embeds refuses all but that.
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (CHAT, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": WARMUP_TOKENS}),
    (COMPLETIONS, {"prompt": "Hello", "max_tokens": WARMUP_TOKENS}),
    (EMBEDDINGS, {"input": "Hello"}),
)
NOT_HERE = (400, 404, 405, 501)


async def warm_up(upstream: Upstream, model: str) -> str:
    """Have one such request answered; why it failed, or "" if it did not."""
    faults = []
    try:
        async with asyncio.timeout(WARMUP_SECONDS_MAX):
            for route, request in REQUESTS:
                body = json.dumps({"model": model} | request).encode()
                answer = await upstream.ask("POST", route, JSON, body, ANSWER_BYTES_MAX)
                if answer.status == 200:
                    return ""
                faults.append(f"warm-up request was answered with status {answer.status}")
                if answer.status not in NOT_HERE:
                    break
    except TimeoutError:
        return f"warm-up request was not answered within {WARMUP_SECONDS_MAX:g} seconds"
    except (ConnectFailed, ConnectionLost, AnswerTooLarge) as error:
        return f"warm-up request failed: {error}"
    return faults[0]
