"""The requests that are being served, and the one timer that watches over all of them.

A request can be interrupted wherever it waits: in the queue, for the engine, for its client. The
interruption is a cancellation of its task that carries the failure, as `asyncio.timeout` does it.
One sweep for all requests costs less than a timer for each, and bounds every wait by construction.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

from gateway import errors
from gateway.accounting import Record
from gateway.client import Client
from gateway.exchange import Exchange
from gateway.outgoing import Outgoing
from gateway.request import Request
from policies.stability import Verdict
from policies.types import Call

log = logging.getLogger("slotgate.inflight")

SWEEP_SECONDS = 0.25
LATE_SECONDS = 2 * SWEEP_SECONDS
# Silence after the end of the process that had the request, until it is taken for lost. A process that
# closes its port may still finish what it has: a stream shows that, a prefill or a whole answer does not.
LOST_STREAM_SECONDS = 5.0
LOST_SECONDS = 30.0


class Phase(enum.StrEnum):
    """How far a request has come."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


class Ahead(NamedTuple):
    """What was written to an engine before the request had its slot."""

    sent: Outgoing
    exchange: Exchange


@dataclass(slots=True, eq=False)
class Inflight:
    """One request being served."""

    record: Record
    client: Client
    request: Request
    headers: errors.Headers  # for the engine
    total_seconds_max: float
    first_token_seconds_max: float = float("inf")  # these two are the backend's
    idle_seconds_max: float = float("inf")
    explains: bool = False  # the client asked why it went where it went
    may_repeat: bool = True  # once, after the engine's proven death
    call: Call | None = None
    verdict: Verdict | None = None  # what became of its prefix, once it was compared
    ahead: Ahead | None = None  # until the one who has the slot takes it
    exchange: Exchange | None = None  # with the engine that it was sent to last
    phase: Phase = Phase.QUEUED
    phase_since: float = 0.0
    progress_at: float = 0.0  # last data event of the engine
    whole: bool = False  # the answer comes in one piece: nothing is heard until it is there
    failure: BaseException | None = None
    task: asyncio.Task[object] | None = None
    _beating: asyncio.Task[None] | None = None

    def interrupt(self, failure: BaseException) -> None:
        """End the request with this failure, wherever it waits; the first one counts."""
        if self.task is not None and self.failure is None:
            self.failure = failure
            self.task.cancel()

    def forgive_silence(self) -> bool:
        """Take an interruption back that was for silence alone; whether it was."""
        if self.task is None or not isinstance(self.failure, errors.IdleTimeout):
            return False
        self.failure, self.idle_seconds_max = None, float("inf")
        self.task.uncancel()
        return True

    def enter(self, phase: Phase, now: float, *, whole: bool = False) -> None:
        """The request is in another phase from now on."""
        self.phase, self.phase_since, self.progress_at, self.whole = phase, now, now, whole

    @property
    def _flows(self) -> bool:
        """Whether data comes now, one piece after the other."""
        return self.phase is Phase.DECODE and not self.whole

    def lost(self, ended_at: float, now: float) -> bool:
        """Whether it is lost with the engine's process that ended then, as far as probes tell. Killed in a
        shutdown, vLLM left streams without data, error or end for minutes while it refused connections."""
        if self.phase is Phase.QUEUED or (self.record.dispatched or now) > ended_at:
            return False
        seconds = LOST_STREAM_SECONDS if self._flows else LOST_SECONDS
        return now - max(self.progress_at, ended_at) >= seconds

    def sweep(self, now: float) -> bool:
        """Time passed: end it if a limit is over; False then."""
        if now - self.record.arrived >= self.total_seconds_max:
            self.interrupt(errors.TotalTimeout(self.total_seconds_max))
        elif self.phase is Phase.PREFILL and now - self.phase_since >= self.first_token_seconds_max:
            self.interrupt(errors.FirstTokenTimeout(self.first_token_seconds_max))
        elif self._flows and now - self.progress_at >= self.idle_seconds_max:
            self.interrupt(errors.IdleTimeout(self.idle_seconds_max))
        return self.failure is None

    def beat(self, mode: str, now: float) -> None:
        """Send a heartbeat, unless the last one is not out yet: then the client reads nothing."""
        if self._beating is None or self._beating.done():
            request = self.request
            heartbeat = request.route.heartbeat(
                mode, request.model, self.record.id, include_usage=request.include_usage
            )
            if heartbeat:
                self._beating = asyncio.get_running_loop().create_task(self.client.beat(heartbeat, now))


class Inflights:
    """All requests being served, by id.

    `may_beat` tells of a queued request whether its head may go out; while no backend of its model is
    ready, a status may still have to be sent.
    """

    def __init__(
        self,
        heartbeat: str,
        heartbeat_seconds: float,
        may_beat: Callable[[Inflight, float], bool],
        clock: Callable[[], float],
    ) -> None:
        self.by_id: dict[str, Inflight] = {}
        self.follow(heartbeat, heartbeat_seconds)
        self._may_beat = may_beat
        self._clock = clock
        self._empty = asyncio.Event()
        self._empty.set()

    def follow(self, heartbeat: str, heartbeat_seconds: float) -> None:
        """Send heartbeats of this mode, after so much silence, from now on."""
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds

    def serve(self, live: Inflight) -> _Serving:
        """Serve this request inside `with`, so that an interruption becomes its failure."""
        return _Serving(self, live)

    def enter(self, live: Inflight) -> None:
        """This request is being served."""
        self.by_id[live.record.id] = live
        self._empty.clear()

    def leave(self, live: Inflight) -> None:
        """It is not any more."""
        del self.by_id[live.record.id]
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

    def cut(self, backend: str, ended_at: float, now: float) -> None:
        """Break the connections that the process of this backend that ended then has left open."""
        for live in list(self.by_id.values()):
            if live.exchange is not None and live.record.backend == backend and live.lost(ended_at, now):
                live.exchange.abort("silent since the engine's process ended")

    async def run(self) -> None:
        """Sweep until cancelled.

        After a pause of the whole process, limits have passed that engines have kept: what they sent waits
        to be read. So a sweep that comes late lets the one behind it judge.
        """
        late = False
        while True:
            slept = self._clock()
            await asyncio.sleep(SWEEP_SECONDS)
            now = self._clock()
            late = not late and now - slept > LATE_SECONDS
            if late:
                continue
            try:
                self._sweep(now)
            except Exception:  # a defect of ours; without this clock no request would have a limit
                log.exception("a sweep over the requests failed inside the gateway")

    def _sweep(self, now: float) -> None:
        for live in list(self.by_id.values()):
            silent = now - live.client.last_sent >= self._heartbeat_seconds
            if live.sweep(now) and live.client.streaming and silent and self._may_beat(live, now):
                live.beat(self._heartbeat, now)


class _Serving:
    """The time in which a request can be interrupted. As in `asyncio.timeout`, the cancellation that
    was an interruption ends here."""

    __slots__ = ("_inflights", "_live", "_task")

    def __init__(self, inflights: Inflights, live: Inflight) -> None:
        self._inflights = inflights
        self._live = live
        self._task = live.client.task

    def __enter__(self) -> None:
        self._live.task = self._task
        self._live.phase_since = self._live.record.arrived
        self._inflights.enter(self._live)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        live = self._live
        live.task = None
        self._inflights.leave(live)
        if live.ahead is not None:  # it came to no slot after all
            live.ahead.exchange.abort()
        if live.failure is not None:
            self._task.uncancel()
            if exc_type is asyncio.CancelledError:
                # What is raised knows all calls that it passes, and so this request: they let go of it here,
                # or each interruption would have to be found by the garbage collector.
                failure, live.failure = live.failure, None
                try:
                    raise failure from None
                finally:
                    del failure
