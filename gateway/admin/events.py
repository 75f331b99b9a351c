"""What happens, as server-sent events: changes of states at once, figures each second, lines each five.

All listeners hear the same bytes from one producer, which runs only while somebody listens. One that does
not take what it is sent is dropped: a laptop that sleeps keeps its connection open for a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from gateway import errors
from gateway.admin.history import STEP_SECONDS
from gateway.admin.operations import Source
from gateway.client import EVENT_STREAM
from gateway.edge import ABORT, AsgiArrival
from policies.types import State, StateChanged

log = logging.getLogger("slotgate.events")

TICK_SECONDS = 1.0
LISTENERS_MAX = 32  # one more, and the first one goes
EVENTS_MAX = 64  # that a listener may be behind: most of a minute


class StateEvent(BaseModel):
    """A backend is in another state."""

    at: float
    backend: str
    state: State
    reason: str


class Listener:
    """One page: what it has not taken yet."""

    def __init__(self, abort: Callable[[], None] | None = None) -> None:
        self.dropped = False
        self._abort = abort  # closes its connection, where the server can do that
        self._events: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._over = False
        self._task = asyncio.current_task()  # that writes to it

    def tell(self, event: bytes) -> bool:
        """One more event; False if it has not taken those before."""
        if len(self._events) >= EVENTS_MAX:
            return False
        self._events.append(event)
        self._news.set()
        return True

    def end(self) -> None:
        """Nothing follows."""
        self._over = True
        self._news.set()

    def drop(self) -> None:
        """End it wherever it hangs: as if it had left itself, since an answer that breaks off is an error in
        the server's log; by cancelling it, where the server has no way to do that."""
        self.dropped = True
        if self._abort is not None:
            self.end()
            self._events.clear()
            self._abort()
        elif self._task is not None:
            self._task.cancel()

    def caught(self) -> bool:
        """Whether a cancellation was `drop`'s; then it ends here, as in `asyncio.timeout`."""
        if self.dropped and self._task is not None:
            self._task.uncancel()
        return self.dropped

    async def events(self) -> AsyncIterator[bytes]:
        """All that it is told, until the end."""
        while self._events or not self._over:
            if self._events:
                yield self._events.popleft()
            else:
                self._news.clear()
                await self._news.wait()


class Events:
    """Everybody who listens, and the one producer."""

    def __init__(self, source: Source, tick_seconds: float = TICK_SECONDS) -> None:
        self.listeners: list[Listener] = []
        self._source = source
        self._tick_seconds = tick_seconds
        self._producer: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def runs(self) -> bool:
        """Whether figures are being read."""
        return self._producer is not None

    async def join(self, abort: Callable[[], None] | None = None) -> Listener:
        """A new listener, which is told everything at once; `abort` closes its connection. Raises
        ShuttingDown."""
        listener = Listener(abort)
        listener.tell(event("lines", await self._source.lines()))
        listener.tell(event("figures", await self._source.figures()))
        if self._closed:
            raise errors.ShuttingDown
        if len(self.listeners) == LISTENERS_MAX:
            self._drop(self.listeners[0])
        self.listeners.append(listener)
        if self._producer is None:
            self._producer = asyncio.get_running_loop().create_task(self._run())
        return listener

    def leave(self, listener: Listener) -> None:
        """It listens no more."""
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners and self._producer is not None:
            self._producer.cancel()
            self._producer = None

    def state_changed(self, change: StateChanged) -> None:
        """Tell it at once."""
        if self.listeners:
            told = StateEvent(
                at=round(time.time(), 1), backend=change.backend, state=change.state, reason=change.why
            )
            self._tell(event("state", told))

    def close(self) -> None:
        """The gateway ends: so does every stream of events."""
        self._closed = True
        for listener in list(self.listeners):
            listener.end()
            self.leave(listener)

    async def _run(self) -> None:
        drawn = time.monotonic()
        while True:
            await asyncio.sleep(self._tick_seconds)
            try:
                self._tell(event("figures", await self._source.figures()))
                if time.monotonic() - drawn >= STEP_SECONDS:
                    drawn = time.monotonic()
                    self._tell(event("lines", await self._source.lines()))
            except Exception:  # a defect of ours; pages would show it as a lost connection, for ever
                log.exception("the figures of this second failed inside the gateway")

    def _tell(self, told: bytes) -> None:
        for listener in list(self.listeners):
            if not listener.tell(told):
                log.info("a page that takes no events was dropped")
                self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        listener.drop()
        self.leave(listener)


class EventStream(Response):
    """The answer to one listener."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = AsgiArrival(scope, receive, send)
        listener = await self._events.join(scope.get("extensions", {}).get(ABORT))
        try:
            arrival.watch(listener.end)
            await arrival.send((200, EVENT_STREAM), b"", last=False)
            async for told in listener.events():
                await arrival.send(None, told, last=False)
            await arrival.send(None, b"", last=True)
        except asyncio.CancelledError:
            if not listener.caught():
                raise
        finally:
            self._events.leave(listener)


def event(name: str, told: BaseModel) -> bytes:
    """A server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), told.model_dump_json(by_alias=True).encode())
