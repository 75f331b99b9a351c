"""The engines as the gateway runs them: added, watched, drained, resumed, removed, and asked by the data
plane.

A backend leaves when nothing of ours runs there any more, and until then nothing else can have its name or
engine: who takes its place waits. So a slot is never counted twice, and a release always finds its backend.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gateway.dispatcher import Dispatcher
from gateway.inflight import Inflights
from gateway.leaving import Leaving
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.probes import Probes
from gateway.routes import ROUTES
from gateway.upstream import Exchange
from gateway.watch import HELD, Watch
from policies.shadows import SHADOWS
from policies.types import Backend, State, StateChanged

log = logging.getLogger("slotgate.fleet")


class Fleet:
    """All engines, by name."""

    def __init__(
        self, dispatcher: Dispatcher, inflights: Inflights, probes: Probes, clock: Callable[[], float]
    ) -> None:
        self.members: dict[str, Member] = {}
        self._waiting: list[Member] = []  # for those to leave whose name or engine they have
        self._started = False
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._clock = clock
        self._watch = Watch(dispatcher, inflights, probes, clock)
        self._leaving = Leaving(dispatcher.admission, probes)
        dispatcher.state_changed.append(self._state_changed)
        dispatcher.drain_told.append(self._drain_told)

    def add(self, settings: BackendSettings) -> Member:
        """An engine joins; it is probed from `start` on. Raises OSError for a file of certificates."""
        member = Member.of(settings)
        self.join(member)
        return member

    def join(self, member: Member) -> None:
        """This one joins as soon as nobody has its name or engine any more."""
        settings = member.settings
        if self.rival(settings) is not None:
            self._waiting.append(member)
            return
        self.members[settings.name] = member
        engine, capacity = member.engine, member.capacity
        shadow = SHADOWS[engine.prefix_kind]()
        shadow.resize(capacity.slots, capacity.kv_tokens.value)
        backend = Backend(
            settings.name,
            engine.service,
            shadow,
            slots=capacity.slots,
            slots_source=capacity.source,
            context_tokens=capacity.context_tokens.value,
            kv_tokens=capacity.kv_tokens.value,
            backup=settings.backup,
            models=frozenset(settings.models) or None,
            routes=engine.routes if member.known else frozenset(ROUTES),  # any may turn out to be served
        )
        self._dispatcher.apply(self._admission.add(backend, self._clock()))
        if member.hold is not None:
            self.drain(member.name, member.hold)
        if self._started:
            self._start(member)

    def rival(self, settings: BackendSettings) -> Member | None:
        """Who has the name or engine of these settings, or waits for it; None: nobody."""
        known = (*self.members.values(), *self._waiting)
        return next((one for one in known if one.clashes(settings)), None)

    def start(self) -> None:
        """Begin to probe every member."""
        self._started = True
        for member in self.members.values():
            self._start(member)

    def _start(self, member: Member) -> None:
        member.task = asyncio.get_running_loop().create_task(self._watch.run(member))

    async def close(self) -> None:
        """Stop probing, close connections."""
        for member in self.members.values():
            for task in (member.task, member.removal):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
        self._leaving.close()
        for member in self.members.values():
            await member.close()

    def accepted(self) -> dict[str, float]:
        """The share of drafted tokens that engines accepted of late, by backend, where they tell it."""
        ratios = ((name, member.acceptance.share) for name, member in self.members.items())
        return {name: ratio for name, ratio in ratios if ratio is not None}

    # -- operators --------------------------------------------------------------------------------

    def drain(self, name: str, reason: str) -> None:
        """From now on no request starts there; those that run finish, but for our own of a warm-up."""
        member = self.members[name]
        if member.warming is not None:
            member.warming.cancel()
        self._watch.enter(member, State.DRAINING, reason)

    async def drained(self, name: str, seconds: float) -> bool:
        """Wait until nothing runs there any more; False if the time is up first."""
        try:
            async with asyncio.timeout(seconds):
                await self.members[name].drained.wait()
        except TimeoutError:
            return False
        return True

    def resume(self, name: str) -> None:
        """Back through warm-up to ready, as after a restart."""
        member = self.members[name]
        if member.removal is None and self._admission.backends[name].state in HELD:
            member.away = True
            self._watch.enter(member, State.STARTING, "resumed")
            member.wake.set()

    def _drain_told(self, name: str, why: str | None) -> None:
        if why is None:
            self.resume(name)
        elif self._admission.backends[name].state not in HELD:
            self.drain(name, why)

    def remove(self, name: str) -> None:
        """It drains, then leaves; who waits under its name does not come."""
        self._waiting = [one for one in self._waiting if one.name != name]
        member = self.members[name]
        if member.removal is None:
            member.removal = asyncio.get_running_loop().create_task(self._removed(member))
            self.drain(name, "it is being removed")

    async def _removed(self, member: Member) -> None:
        await member.drained.wait()
        if member.task is not None:
            member.task.cancel()
        # One step: a call that waits for a model finds the old backend or the new one.
        del self.members[member.name]
        self._admission.remove(member.name)
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            self.join(one)
        log.info("%s is removed", member.name)
        await member.close()

    def follow(self, members: Sequence[Member]) -> None:
        """These are configured now, with what they need already made: those that run take the new settings
        as they run, others drain and leave. What operators drained stays so, what they added too, but for
        what is configured itself now."""
        wanted = {member.name: member for member in members}
        self._waiting = [
            one for one in self._waiting if not (one.configured or any(map(one.clashes, _settings(members))))
        ]
        for member in list(self.members.values()):
            new = wanted.get(member.name)
            if member.removal is None:
                if new is not None and member.is_same(new.settings):
                    before = member.settings
                    member.take(wanted.pop(member.name))
                    self._watch.reconfigured(member, before)
                    continue
                if not (member.configured or any(map(member.clashes, _settings(members)))):
                    continue
                backend = self._admission.backends[member.name]
                member.hold = backend.why if backend.state in HELD else None
                self.remove(member.name)
            here = (one for one in members if one.settings.place == member.settings.place)
            heir = next(here, new)  # a renamed engine is the same one, drained or not
            if heir is not None:
                heir.hold = member.hold
        for member in wanted.values():
            self.join(member)

    # -- the data plane asks ----------------------------------------------------------------------

    def suspect(self, member: Member) -> None:
        """Something failed there: look now, not at the next turn."""
        member.wake.set()

    def lacks(self, member: Member, route: str) -> None:
        """The engine says that it does not have this route, though others of its kind do; its next process
        may."""
        backend = self._admission.backends.get(member.name)
        if backend is not None:  # to count tokens takes no slot, and so keeps nobody from leaving
            routes = backend.routes - {route}
            self._dispatcher.apply(self._admission.serve_routes(member.name, routes, self._clock()))

    def overfilled(self, member: Member) -> None:
        """An answer failed there because the memory that all requests share was full."""
        member.experience.overfilled(member.capacity, self._clock())
        member.wake.set()

    async def is_gone(self, member: Member, ends: int) -> bool:
        """Whether the process that had the request is provably down, or another one by now.

        `ends`: the member's when the request was sent; somebody may have noticed since then.
        """
        return await self._watch.is_gone(member, ends)

    def stopped(self, member: Member, exchange: Exchange) -> asyncio.Future[None]:
        """Tell the engine that its client left; resolves when it has stopped."""
        return self._leaving.stopped(member, exchange)

    # -- events -----------------------------------------------------------------------------------

    def _state_changed(self, change: StateChanged) -> None:
        member = self.members.get(change.backend)
        if member is None:
            return
        if change.state is State.DRAINED:
            member.drained.set()
        else:
            member.drained.clear()
        level = logging.WARNING if change.state in (State.DOWN, State.EJECTED) else logging.INFO
        told = {"backend": change.backend, "state": change.state.value, "reason": change.why}
        log.log(level, "%(backend)s is %(state)s" + (": %(reason)s" if change.why else ""), told)


def _settings(members: Sequence[Member]) -> list[BackendSettings]:
    return [member.settings for member in members]
