"""An engine's own tokenizer, asked for the length of a prompt. It takes no slot."""

from __future__ import annotations

import asyncio

from gateway.engines.base import Answer, Count, Engine
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Upstream

COUNT_SECONDS_MAX = 2.0  # where the estimate decides whether a prompt is refused
GATE_COUNT_SECONDS_MAX = 0.25  # where it decides whether a prompt waits for another one's prefill
COUNT_BYTES_MAX = 4_194_304  # llama.cpp answers with the ids of all tokens


async def ask_tokenizer(
    upstream: Upstream, engine: Engine, counting: Count, seconds_max: float
) -> int | None:
    """The prompt's tokens; None if the engine does not answer in time, or not with a count."""
    try:
        async with asyncio.timeout(seconds_max):
            exchange = await upstream.send(
                "POST", counting.path, [(b"content-type", b"application/json")], counting.body
            )
            try:
                head = await exchange.head()
                body = await exchange.body(COUNT_BYTES_MAX)
            finally:
                exchange.abort()
    except (TimeoutError, ConnectFailed, ConnectionLost, AnswerTooLarge):
        return None
    return engine.counted(Answer(head.status, head.headers, body))
