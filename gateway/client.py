"""The answer to one client: its head, heartbeats while it waits, events, the error form.

Whatever is sent is whole events, so a heartbeat never lands inside one. What heartbeats and errors look
like, the route knows.
"""

from __future__ import annotations

import asyncio

from gateway.edge import Arrival
from gateway.errors import GatewayError, Headers
from gateway.routes.base import Route

EVENT_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),  # nginx in front would hold events back
]
JSON: Headers = [(b"content-type", b"application/json")]
FAREWELL_SECONDS = 5.0  # for the last words to a client that has stopped reading


class Client:
    """Who asked, as far as answering goes."""

    __slots__ = (
        "_arrival",
        "_route",
        "head_sent",
        "headers",
        "last_sent",
        "request_id",
        "streaming",
        "task",
    )

    def __init__(self, arrival: Arrival, route: Route, request_id: str, now: float) -> None:
        self._arrival = arrival
        self.task = arrival.task  # cancelled to interrupt the request
        self._route = route
        self.request_id = request_id
        self.streaming = False  # takes events; an error after the head is one too
        self.head_sent = False
        self.last_sent = now
        self.headers: Headers = []  # what the relay adds to the head

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole answer that is not a stream."""
        self.head_sent, self.streaming = True, False
        head = [*headers, *self._own_headers(), (b"content-length", b"%d" % len(body))]
        await self._arrival.send((status, head), body, last=True)

    async def stream(self, events: bytes, now: float, *, last: bool = False) -> None:
        """Whole events; the head goes out before the first ones, the end behind the last ones."""
        if not events.startswith(b":"):  # comments of an engine are not what the client waits for
            self.last_sent = now
        if last:
            self.streaming = False
        head = None if self.head_sent else (200, [*EVENT_STREAM, *self._own_headers()])
        self.head_sent = True
        await self._arrival.send(head, events, last=last)

    async def fail(self, error: GatewayError) -> None:
        """Tell the client: by status while the head has not left, else by one event and the end of
        the stream, without `[DONE]`, which would mark success."""
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                body = self._route.error_body(error)
                if not self.head_sent:
                    await self.answer(error.status, [*JSON, *error.headers()], body)
                elif self.streaming:
                    self.streaming = False
                    await self._arrival.send(None, self._route.error_event(body), last=True)
        except TimeoutError:
            pass  # it reads nothing; returning without the end of the answer closes the connection

    async def beat(self, heartbeat: bytes, now: float) -> None:
        """One heartbeat, unless the answer has ended in the meantime. A head that leaves so early tells
        no backend: another one may answer in the end."""
        if self.streaming:
            self.last_sent = now
            if not self.head_sent:
                self.headers = []
            await self.stream(heartbeat, now)

    def _own_headers(self) -> Headers:
        return [(b"x-request-id", self.request_id.encode()), *self.headers]
