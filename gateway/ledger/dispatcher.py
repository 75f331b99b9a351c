"""The dispatcher of a gateway that shares its engines: the ledger confirms what Admission decides.

Admission knows of the others only that an engine works on requests that are not its own, and that some free
slots are not to be given. A grant that the ledger refuses goes back to its place in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping

from gateway.dispatcher import Dispatcher, Slot
from gateway.ledger.differences import Differences
from gateway.ledger.ledger import Ledger, Mode
from gateway.ledger.shadows import SharedShadows
from gateway.ledger.step import Store, Word
from policies.admission import Admission
from policies.order import OVERDUE_SECONDS
from policies.types import Backend, Call, Decision, Lease, Source, State

LAST_SECONDS = 1.0  # for what is under way at the end


class SharedSlot(Slot):
    """A slot that is this call's in the ledger too."""

    __slots__ = ("_pool", "_since")

    def __init__(self, dispatcher: SharedDispatcher, call: Call, backend: str | None = None) -> None:
        super().__init__(dispatcher, call, backend)
        self._pool = dispatcher
        self._since = 0.0

    async def __aenter__(self) -> Slot:
        self._since = self._pool.clock()
        await super().__aenter__()
        try:
            await self._confirmed()
        except BaseException:
            self._pool.finish(self.call.id)
            raise
        return self

    async def again(self, pause_seconds: float, prompt_tokens: int | None = None) -> None:
        self._pool.ledger.release(self.call.id)
        self._since = self._pool.clock()
        await super().again(pause_seconds, prompt_tokens)
        await self._confirmed()

    async def _confirmed(self) -> None:
        pool, id = self._pool, self.call.id
        while not await pool.confirmed(self.call, self.lease.backend):
            decisions = pool.admission.not_started(self.call, pool.clock(), since=self._since)
            self.lease = await pool.granted(id, decisions)
        if pool.shadows is not None:
            pool.shadows.sent(self.lease)


class SharedDispatcher(Dispatcher):
    """`url_of`: of a backend by its name, the same in all gateways of the pool; `shadows`: what others sent
    to it."""

    def __init__(
        self,
        admission: Admission,
        clock: Callable[[], float],
        url_of: Callable[[str], str],
        store: Store,
        lease_seconds: float,
        shadows: SharedShadows | None = None,
    ) -> None:
        super().__init__(admission, clock)
        self.shadows = shadows
        if shadows is not None:
            self.observers.append(shadows)
            self.state_changed.append(shadows.state_changed)
        self.ledger = Ledger(self, store, lease_seconds, clock)
        self._store = store
        self._url_of = url_of
        self._degraded = False
        self._measured: dict[str, int] = {}  # requests at each engine that are not ours, since it is degraded
        self._strangers: dict[str, int] = {}  # and those of nobody whom the ledger knows
        self._drains: dict[str, str] = {}  # as they were followed last, by engine
        self._unexplained: dict[str, int] = {}  # measured since the ledger was heard last
        self._differences = Differences()
        self._peaks: dict[str, int] = {}  # the most that others held since engines were asked last

    @property
    def sharing(self) -> str:
        return self.ledger.mode.value

    @property
    def fault(self) -> str:
        return self.ledger.fault

    def slot(self, call: Call, backend: str | None = None) -> Slot:
        return SharedSlot(self, call, backend)

    def certain(self, model: str, route: str, tokens_max: int) -> Backend | None:
        return None  # others take slots, too

    def granted(self, id: str, decisions: list[Decision]) -> asyncio.Future[Lease]:
        future = super().granted(id, decisions)
        self.ledger.look()
        return future

    def finish(self, id: str) -> None:
        self.ledger.release(id)
        super().finish(id)

    def observe(self, name: str, foreign: int) -> None:
        self._measured[name] = self._unexplained[name] = foreign
        if self.ledger.mode is Mode.DEGRADED:
            self.told()

    def reported(self, name: str, foreign: int) -> None:
        ledger, held = self.ledger, self.ledger.elsewhere[self._url_of(name)]
        if ledger.mode is Mode.DEGRADED or ledger.frozen:
            return
        if self._differences.looked(name, foreign, held, self.clock()):
            ledger.resync()

    def differences(self) -> Mapping[tuple[str, str], int]:
        names = self.admission.backends.keys()
        self._differences.keep(names)
        lost = {(name, "lost"): count for name in names if (count := self.ledger.lost[self._url_of(name)])}
        return {**super().differences(), **lost, **self._differences.counts}

    async def borrow(self, name: str) -> bool:
        backend = self.admission.backends[name]
        given = bool(backend.free) and await self.ledger.take(
            _loan(name), self._url_of(name), self.clock(), backend.slots
        )
        return bool(backend.free) if given is None else given

    def unlent(self, name: str) -> str:
        if self.admission.backends[name].free and self.ledger.frozen:
            return "starts are held until the shared ledger is sure what runs"
        return super().unlent(name)

    def give_back(self, name: str) -> None:
        self.ledger.release(_loan(name))

    async def claim(self, id: str, key: str, most: int) -> bool:
        ledger, url = self.ledger, f"key:{key}"
        given = await ledger.take(_claim(id), url, self.clock(), most)
        if given is None or (not given and ledger.frozen):  # nobody can say: its share, and no fewer than one
            others = ledger.elsewhere[url] if given is False else 0
            given = ledger.holds(url) < min(-(-most // ledger.gateways), most - others)
            if given:
                ledger.keep(_claim(id), url)
        return given

    def unclaim(self, id: str) -> None:
        self.ledger.release(_claim(id))

    def warm_elsewhere(self, name: str) -> bool:
        standing = self.ledger.standings.get(self._url_of(name))
        return self.ledger.mode is Mode.SHARED and standing is not None and standing.ready_elsewhere

    def among(self, gateways: int, rank: int) -> None:
        self.ledger.among(gateways, rank)

    def slots_elsewhere(self, name: str) -> int:
        standing = self.ledger.standings.get(self._url_of(name))
        if self.ledger.mode is Mode.DEGRADED or standing is None:
            return 0
        return standing.slots or standing.tried

    def tell_drain(self, name: str, why: str | None) -> None:
        self.ledger.drain(self._url_of(name), why)

    async def run(self) -> None:
        tasks = [
            asyncio.create_task(self.ledger.run()),
            asyncio.create_task(self._store.hints(self.ledger.look)),
        ]
        if self.shadows is not None:
            tasks.append(asyncio.create_task(self.shadows.run()))
        try:
            await super().run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=LAST_SECONDS)
            await self.ledger.bye()
            await self._store.close()

    async def confirmed(self, call: Call, name: str) -> bool:
        """Whether the call that was granted this backend may start there."""
        backend, url = self.admission.backends[name], self._url_of(name)
        given = await self.ledger.take(call.id, url, _came(call), backend.slots)
        if given is None:
            given = len(backend.leases) + backend.foreign + backend.withheld <= backend.slots
            if given:
                self.ledger.keep(call.id, url)
        return given

    # -- what the ledger is told, and what it tells ---------------------------------------------------

    def waits(self) -> bool:
        """Whether calls wait here for slots."""
        return bool(self.admission.queue)

    def words(self) -> list[Word]:
        """What the ledger is told of each engine."""
        oldest: dict[Hashable, tuple[Call, float]] = {}
        for waiting in self.admission.queue:
            call, came = waiting.call, _came(waiting.call)
            kind = (call.model, call.targets, call.route)
            if kind not in oldest or came < oldest[kind][1]:
                oldest[kind] = call, came
        words = []
        for name, backend in self.admission.backends.items():
            ready = backend.state is State.READY
            url = self._url_of(name)
            waits = [came for call, came in oldest.values() if ready and backend.serves(call)]
            # What strangers keep from this gateway is not for it to claim: the others may see none.
            full = backend.slots <= len(backend.leases) + self.ledger.elsewhere[url] + backend.withheld
            came_ms = round(1000 * min(waits)) if waits and full else None
            slots = -backend.slots if backend.slots_source is Source.ASSUMED else backend.slots
            words.append(Word(url, slots if ready else 0, ready, came_ms))
        return words

    def told(self) -> None:
        """Let Admission see the engines as the ledger does."""
        ledger = self.ledger
        if ledger.mode is Mode.DEGRADED and not self._degraded:
            self._measured.clear()
        self._degraded = ledger.mode is Mode.DEGRADED
        before, self._drains = self._drains, dict(ledger.drains)
        for state in (self._measured, self._strangers, self._unexplained, self._peaks):
            for name in state.keys() - self.admission.backends.keys():
                del state[name]
        for name, backend in list(self.admission.backends.items()):
            url = self._url_of(name)
            self._explain(name, ledger.elsewhere[url])
            if (why := self._drains.get(url)) != before.get(url):
                for listener in self.drain_told:
                    listener(name, why)
            foreign, withheld = self._elsewhere(name, url, backend)
            if (foreign, withheld) != (backend.foreign, backend.withheld):
                self.apply(self.admission.observe(name, foreign, self.clock(), withheld))

    def _explain(self, name: str, known: int) -> None:
        """What was measured since, less what others held: some may begin before that is heard, or end."""
        peak = self._peaks[name] = max(self._peaks.get(name, 0), known)
        if (measured := self._unexplained.pop(name, None)) is not None:
            self._strangers[name] = max(0, measured - peak)
            self._peaks[name] = known

    def _elsewhere(self, name: str, url: str, backend: Backend) -> tuple[int, int]:
        """Requests at the engine that are not ours, and free slots that are not to be given."""
        ledger, slots = self.ledger, backend.slots
        if ledger.mode is Mode.DEGRADED:
            foreign = self._measured.get(name, ledger.elsewhere[url])
            return foreign, max(0, slots - foreign - ledger.share(url, slots))
        foreign, standing = ledger.elsewhere[url] + self._strangers.get(name, 0), ledger.standings.get(url)
        if standing is None or ledger.frozen:
            return foreign, slots
        return foreign, standing.ahead + max(0, slots - (standing.slots or slots))


def _came(call: Call) -> float:
    """When it came, for its turn among those of other gateways; see `Word`."""
    return call.arrived + OVERDUE_SECONDS * call.priority


def _claim(id: str) -> str:
    """What its request holds of a client's key, beside its slot."""
    return f"key {id}"


def _loan(backend: str) -> str:
    """A slot for a request of the gateway's own there."""
    return f"spare {backend}"
