"""The requests that are being served, and the one timer that watches over all of them.

A request can be interrupted wherever it waits: in the queue, for the engine, for its client. The
interruption is a cancellation of its task that carries the failure, as `asyncio.timeout` does it.
One sweep for all requests costs less than a timer for each, and bounds every wait by construction.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

from gateway import errors
from gateway.accounting import Record
from gateway.client import Client
from gateway.request import Request
from policies.types import Call

SWEEP_SECONDS = 0.25


class Phase(enum.StrEnum):
    """How far a request has come."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Bounds on the phases of one request, in seconds."""

    total: float
    first_token: float = float("inf")
    idle: float = float("inf")


@dataclass(slots=True, eq=False)
class Inflight:
    """One request being served. `with` it, so that an interruption becomes its failure."""

    record: Record
    client: Client
    request: Request
    headers: errors.Headers  # for the engine
    limits: TimeLimits
    explains: bool = False  # the client asked why it went where it went
    may_repeat: bool = True  # once, after the engine's proven death
    call: Call | None = None
    phase: Phase = Phase.QUEUED
    phase_since: float = 0.0
    progress_at: float = 0.0  # last data event of the engine
    failure: BaseException | None = None
    _task: asyncio.Task[object] | None = None
    _beating: asyncio.Task[None] | None = None

    def __enter__(self) -> Inflight:
        self._task = asyncio.current_task()
        self.phase_since = self.record.arrived
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self.failure is not None:
            assert task is not None
            task.uncancel()
            if exc_type is asyncio.CancelledError:
                raise self.failure from None

    def interrupt(self, failure: BaseException) -> None:
        """End the request with this failure, wherever it waits; the first one counts."""
        if self._task is not None and self.failure is None:
            self.failure = failure
            self._task.cancel()

    def enter(self, phase: Phase, now: float) -> None:
        """The request is in another phase from now on."""
        self.phase, self.phase_since, self.progress_at = phase, now, now

    def sweep(self, now: float) -> bool:
        """Time passed: end it if a limit is over; False then."""
        limits = self.limits
        if now - self.record.arrived >= limits.total:
            self.interrupt(errors.TotalTimeout(limits.total))
        elif self.phase is Phase.PREFILL and now - self.phase_since >= limits.first_token:
            self.interrupt(errors.FirstTokenTimeout(limits.first_token))
        elif self.phase is Phase.DECODE and now - self.progress_at >= limits.idle:
            self.interrupt(errors.IdleTimeout(limits.idle))
        return self.failure is None

    def beat(self, now: float) -> None:
        """Send a heartbeat, unless the last one is not out yet: then the client reads nothing."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.get_running_loop().create_task(self.client.beat(now))


class Inflights:
    """All requests being served, by id.

    `may_beat` tells of a queued request whether its head may go out; while no backend of its model is
    ready, a status may still have to be sent.
    """

    def __init__(
        self,
        heartbeat_seconds: float,
        may_beat: Callable[[Inflight, float], bool],
        clock: Callable[[], float],
    ) -> None:
        self.by_id: dict[str, Inflight] = {}
        self._heartbeat_seconds = heartbeat_seconds
        self._may_beat = may_beat
        self._clock = clock
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def enter(self, live: Inflight) -> Iterator[None]:
        """Serve this request inside."""
        id = live.record.id
        self.by_id[id] = live
        self._empty.clear()
        try:
            with live:
                yield
        finally:
            del self.by_id[id]
            if not self.by_id:
                self._empty.set()

    def records(self) -> list[Record]:
        """What is known of each so far."""
        return [live.record for live in self.by_id.values()]

    async def ended(self, seconds: float) -> bool:
        """Wait until no request is left; False if the time is up first."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def interrupt(self, failure: Callable[[], BaseException]) -> None:
        """End all that is left."""
        for live in list(self.by_id.values()):
            live.interrupt(failure())

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock()
            for live in list(self.by_id.values()):
                silent = now - live.client.last_sent >= self._heartbeat_seconds
                if live.sweep(now) and live.client.streaming and silent and self._may_beat(live, now):
                    live.beat(now)
