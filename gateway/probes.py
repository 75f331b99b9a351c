"""Asking engines how they are. A probe never judges: it says what was answered, or that nothing was."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import httpx

from gateway.engines.base import Answer

PROBE_SECONDS = 5.0


class NoAnswer(enum.Enum):
    """Why an engine did not answer a probe."""

    REFUSED = "connection refused"
    SILENT = "no answer"


class Probes:
    """One HTTP client for all probes; never the data plane's connections.

    `trust_env` is off: proxy variables of the environment would carry the fleet's own traffic away.
    """

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            timeout=PROBE_SECONDS,
            trust_env=False,
            # An engine that closes an idle connection just as it is used again would look broken.
            headers={"accept-encoding": "identity", "connection": "close"},
        )

    async def ask(self, url: str, api_key: str, paths: Iterable[str]) -> dict[str, Answer] | NoAnswer:
        """GET each path. An engine that accepts but says nothing may only be busy: `SILENT`."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        answers: dict[str, Answer] = {}
        for path in paths:
            try:
                response = await self._http.get(url + path, headers=headers)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                return NoAnswer.REFUSED
            except httpx.RequestError:
                return NoAnswer.SILENT
            answers[path] = Answer(response.status_code, dict(response.headers), response.content)
        return answers

    async def close(self) -> None:
        """Close idle connections."""
        await self._http.aclose()
