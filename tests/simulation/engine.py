"""An engine in virtual time that counts for itself how many requests it works on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.dispatcher import Slot
from tests.simulation.scenario import CallPlan


class NotStarted(Exception):
    """The engine provably did not begin."""

    def __init__(self, pause_seconds: float, *, failed: bool = False) -> None:
        super().__init__()
        self.pause_seconds = pause_seconds
        self.failed = failed  # counts for ejection


class Died(Exception):
    """The connection broke."""


class Sick(Exception):
    """The engine answered with a failure."""


class SimulatedEngine:
    """One engine: `active` is what it works on, whatever the gateway believes."""

    def __init__(self, name: str, unit: float) -> None:
        self.name = name
        self.alive = self.well = True
        self.overloaded = False
        self.kv_tokens: int | None = None  # what it has room for, all requests together
        self.active: set[str] = set()
        self._unit = unit
        self._running: dict[str, asyncio.Future[None]] = {}
        self._stopping: dict[str, asyncio.Future[None]] = {}

    async def generate(
        self, slot: Slot, plan: CallPlan, refuse: bool, begun: Callable[[str, SimulatedEngine], None]
    ) -> None:
        """Work on one request, as `begun` hears; a client that leaves gets `slot.stopping`."""
        id = plan.call.id
        if not self.alive:
            raise NotStarted(self._unit, failed=True)
        if refuse or self.overloaded:
            raise NotStarted(self._unit if self.overloaded else 0.0)
        self.active.add(id)
        begun(id, self)
        try:
            await self._work(id, plan.prefill)
            if not self.well:
                raise Sick
            slot.first_token()
            await self._work(id, plan.decode)
        except asyncio.CancelledError:
            slot.stopping = self._stop(id, plan.stops_after)
            raise
        except (Died, Sick):
            self.active.discard(id)
            raise
        self.active.discard(id)
        if plan.lingers:
            await asyncio.sleep(0)

    def kill(self) -> None:
        """The process ends: with it all work, at once."""
        self.alive = False
        self.active.clear()
        for running in self._running.values():
            if not running.done():
                running.set_exception(Died())
                running.exception()  # read once: a client that leaves at this instant will not
        for stopping in self._stopping.values():
            resolve(stopping)
        self._running.clear()
        self._stopping.clear()

    async def _work(self, id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        done = self._running[id] = loop.create_future()
        timer = loop.call_later(seconds, resolve, done)
        try:
            await done
        finally:
            timer.cancel()
            if self._running.get(id) is done:
                del self._running[id]

    def _stop(self, id: str, after: float | None) -> asyncio.Future[None] | None:
        if after is None or id not in self.active:
            self.active.discard(id)
            return None
        loop = asyncio.get_running_loop()
        stopping = self._stopping[id] = loop.create_future()

        def stopped() -> None:
            if not stopping.done():
                del self._stopping[id]
                self.active.discard(id)
                stopping.set_result(None)

        loop.call_later(after, stopped)
        return stopping


def resolve(future: asyncio.Future[None]) -> None:
    """Unless it was cancelled, or resolved at the same instant."""
    if not future.done():
        future.set_result(None)
