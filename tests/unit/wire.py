"""The way to a client, for tests: remembers what was sent."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.edge import Head
from gateway.errors import Headers


class Wire:
    """An `Arrival` that keeps what is sent as ASGI messages."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self.fields: Headers = []
        self.messages: list[dict[str, Any]] = []

    @property
    def task(self) -> asyncio.Task[Any]:
        """Whoever asks serves it."""
        task = asyncio.current_task()
        assert task is not None
        return task

    @property
    def sent(self) -> bytes:
        """All of the answer's body."""
        return b"".join(message.get("body", b"") for message in self.messages)

    async def body(self, bytes_max: int) -> bytes:
        """Nothing was asked."""
        return b""

    def watch(self, gone: object) -> None:
        """Never leaves."""

    async def send(self, head: Head | None, body: bytes, *, last: bool) -> None:
        """Remember it."""
        if head is not None:
            self.messages.append({"type": "http.response.start", "status": head[0], "headers": head[1]})
        self.messages.append({"type": "http.response.body", "body": body, "more_body": not last})
