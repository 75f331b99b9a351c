"""An engine of the simulator on the wall clock, some times as fast as the engine that it models."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from policies.simulation.engine import Engine, Job, Phase
from policies.simulation.workload import Turn


class Progress(NamedTuple):
    """A request at the engine, and what resolves when it gets there."""

    job: Job
    first_token: asyncio.Future[None]
    last_token: asyncio.Future[None]


class Pace:
    """Its events come when they are due by the model, however late the machine is to tell them."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self._engine = engine
        self._speed = speed
        self._start = time.monotonic()
        self._running: dict[str, Progress] = {}
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, id: str, turn: Turn) -> Progress:
        """A request arrives."""
        loop = asyncio.get_running_loop()
        now = self._catch_up()
        progress = Progress(Job(id, turn, now), loop.create_future(), loop.create_future())
        self._running[id] = progress
        self._engine.submit(progress.job, now)
        self._wait()
        return progress

    def _catch_up(self) -> float:
        """Live through all that is due; the time, on the model's clock."""
        now = (time.monotonic() - self._start) * self._speed
        while (due := self._engine.next_event()) <= now:
            for job in self._engine.advance(due):
                self._tell(job)
        return now

    def _tell(self, job: Job) -> None:
        progress = self._running[job.id]
        if not progress.first_token.done():
            progress.first_token.set_result(None)
        if job.phase is Phase.ENDED:
            del self._running[job.id]
            progress.last_token.set_result(None)

    def _wait(self) -> None:
        """Wake when the next event is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            loop = asyncio.get_running_loop()
            wall = self._start + self._engine.next_event() / self._speed
            self._timer = loop.call_later(max(0.0, wall - time.monotonic()), self._wake)

    def _wake(self) -> None:
        self._catch_up()
        self._wait()
