"""Asking engines how they are. A probe never judges: it says what was answered, or that nothing was."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable

import httpx

from gateway.engines.base import Answer

PROBE_SECONDS = 5.0
BROKEN_MAX = 4  # answers that break off, before that counts as none
BROKEN_PAUSE_SECONDS = 0.1


class NoAnswer(enum.Enum):
    """Why an engine did not answer a probe."""

    REFUSED = "connection refused"
    SILENT = "no answer"


class Probes:
    """One HTTP client for all probes; never the data plane's connections.

    `trust_env` is off: proxy variables of the environment would carry the fleet's own traffic away.
    """

    def __init__(self, seconds: float = PROBE_SECONDS) -> None:
        self._http = httpx.AsyncClient(
            timeout=seconds,
            trust_env=False,
            # An engine that closes an idle connection just as it is used again would look broken.
            headers={"accept-encoding": "identity", "connection": "close"},
        )

    async def ask(self, url: str, api_key: str, paths: Iterable[str]) -> dict[str, Answer] | NoAnswer:
        """GET each path. An engine that accepts but says nothing may only be busy: `SILENT`."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        answers: dict[str, Answer] = {}
        for path in paths:
            answer = await self._get(url + path, headers)
            if isinstance(answer, NoAnswer):
                return answer
            answers[path] = answer
        return answers

    async def close(self) -> None:
        """Close idle connections."""
        await self._http.aclose()

    async def _get(self, url: str, headers: dict[str, str]) -> Answer | NoAnswer:
        for _ in range(BROKEN_MAX):
            try:
                response = await self._http.get(url, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                return NoAnswer.REFUSED
            except httpx.TimeoutException:
                return NoAnswer.SILENT
            except httpx.RequestError:
                # A process that ends breaks its connections first and closes its port a moment later.
                await asyncio.sleep(BROKEN_PAUSE_SECONDS)
            else:
                return Answer(response.status_code, dict(response.headers), response.content)
        return NoAnswer.SILENT
