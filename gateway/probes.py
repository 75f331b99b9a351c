"""Asking engines how they are. A probe never judges: it says what was answered, or that nothing was."""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Iterable

from gateway.engines.base import Answer
from gateway.upstream import AnswerTooLarge, ConnectFailed, ConnectionLost, Upstream

PROBE_SECONDS = 5.0  # for one path
PROBE_BYTES_MAX = 8_388_608
BROKEN_MAX = 4  # answers that break off, before that counts as none
BROKEN_PAUSE_SECONDS = 0.1
ACCEPT = ((b"accept", b"application/json, */*;q=0.5"),)  # ds4 writes its figures for people else


class NoAnswer(enum.Enum):
    """Why an engine did not answer a probe."""

    REFUSED = "connection refused"
    UNREACHABLE = "no connection: its host name, the network or TLS fails"
    SILENT = "no answer"


def probing(url: str, api_key: str = "", tls: ssl.SSLContext | None = None) -> Upstream:
    """The way to an engine for probes: each on a connection of its own, never one of the data plane."""
    return Upstream(url, connect_seconds=PROBE_SECONDS, reuse=False, tls=tls, api_key=api_key)


class Probes:
    """How engines are asked."""

    def __init__(self, seconds: float = PROBE_SECONDS) -> None:
        self._seconds = seconds

    async def ask(self, engine: Upstream, paths: Iterable[str]) -> dict[str, Answer] | NoAnswer:
        """GET each path. An engine that accepts but says nothing may only be busy: `SILENT`."""
        answers: dict[str, Answer] = {}
        for path in paths:
            answer = await self._get(engine, path)
            if isinstance(answer, NoAnswer):
                return answer
            answers[path] = answer
        return answers

    async def _get(self, engine: Upstream, path: str) -> Answer | NoAnswer:
        for _ in range(BROKEN_MAX):
            try:
                exchange = await engine.send("GET", path, ACCEPT, b"")
                try:
                    async with asyncio.timeout(self._seconds):
                        head = await exchange.head()
                        body = await exchange.body(PROBE_BYTES_MAX)
                finally:
                    exchange.abort()
            except ConnectFailed as failed:
                return NoAnswer.REFUSED if failed.refused else NoAnswer.UNREACHABLE
            except (TimeoutError, AnswerTooLarge):
                return NoAnswer.SILENT
            except ConnectionLost:
                # A process that ends breaks its connections first and closes its port a moment later.
                await asyncio.sleep(BROKEN_PAUSE_SECONDS)
            else:
                return Answer(head.status, head.headers, body)
        return NoAnswer.SILENT
