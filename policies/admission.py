"""The state machine of admission: events go in, decisions come out.

Every method is synchronous and returns the decisions that its event caused. Choosing a backend and
taking its slot is one step, so two calls can never pass on the same free slot. The giver records a
grant before the waiter hears of it; `finish` is total, so a caller that was cancelled at that very
instant gives the slot back by the same call that it makes in any case.

A call is in exactly one place: waiting, or holding one lease, or forgotten.
"""

from __future__ import annotations

from policies import filters
from policies.cost import cost
from policies.ejection import RAMP_SLOTS
from policies.placement import Place, Placement
from policies.queue import Queue, group_of
from policies.rank import Group, Rank
from policies.roster import Roster
from policies.tiers import Tiers
from policies.types import (
    Call,
    Decision,
    Granted,
    Lease,
    Limits,
    Refusal,
    Rejected,
    State,
)
from policies.waiting import Waiting


class Admission(Roster):
    """All leases and the one queue, beside all backends."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.queue = Queue(limits)
        self._placement = placement = Placement(limits, self.backends)
        self.gate_waits, self.interactive_seen = placement.gate_waits, placement.interactive_seen
        self._leases: dict[str, Lease] = {}  # by call id
        self._grants = 0
        self.closed = False

    # -- calls ----------------------------------------------------------------------------------

    def submit(self, call: Call, now: float) -> list[Decision]:
        """A call arrives: it starts, waits or is rejected."""
        assert call.id not in self.queue and call.id not in self._leases
        if self.closed:
            return [Rejected(call, Refusal.SHUTTING_DOWN)]
        self._placement.seen(call, now)
        waiting, alone = Waiting(call, now), not self.queue
        if alone:
            self._placement.begin()
            if (decision := self._try(waiting, now, set())) is not None:
                return [decision]
        else:
            fitting = self._placement.fitting(call)
            if isinstance(fitting, Rejected):
                return [fitting]
            self._placement.estimate(waiting, fitting[0])
        self.queue.put(waiting, now)
        decisions = [] if alone else self._dispatch(now)
        if call.id in self.queue and (rejected := self.queue.over_bounds(call, now)):
            self.queue.take(call.id)
            decisions.append(rejected)
        return decisions

    def start(self, call: Call, name: str, now: float) -> list[Decision]:
        """A call arrives that gets this backend, as `certainty` has found since the last event."""
        assert call.id not in self._leases and not self.queue
        backend, placement = self.backends[name], self._placement
        placement.seen(call, now)
        price = cost(call, backend, placement.returns)
        return [Granted(self._grant(call, Place(backend, price, filters.long(price, self.limits)), now))]

    def first_token(self, id: str, now: float) -> list[Decision]:
        """The engine produced something: its prefill is over and it works."""
        lease = self._leases.get(id)
        if lease is None:
            return []
        backend = self.backends[lease.backend]
        backend.has_read(lease)
        backend.turn(now)
        lease.work.first_token = lease.work.first_token or backend.load.read(now)
        if backend.prefilling and not backend.foreign:
            backend.next_prefill(now)
        backend.ejection.worked(now)
        decisions: list[Decision] = []
        if lease.trial and backend.state is State.EJECTED:
            backend.resting = max(0, backend.slots - RAMP_SLOTS)
            decisions += self._enter(backend, State.READY, "", now)
        elif backend.resting:
            backend.resting -= 1
        return decisions + self._dispatch(now)

    def prefilled(self, id: str, now: float) -> list[Decision]:
        """The prefill of an answer that does not stream must be over by now: the gate opens. It proves
        nothing else, so a trial goes on."""
        lease = self._leases.get(id)
        if lease is None or lease.trial:
            return []
        self.backends[lease.backend].has_read(lease)
        self.backends[lease.backend].turn(now)
        return self._dispatch(now)

    def not_started(
        self, call: Call, now: float, pause_seconds: float = 0.0, since: float | None = None
    ) -> list[Decision]:
        """The engine provably did not begin: the call returns to its place in the queue, its prompt counted
        if the engine did that; the backend has a pause. `since`: it was not asked, and waits since then."""
        lease = self._leases.get(call.id)
        if lease is None:
            return []
        backend = self.backends[lease.backend]
        backend.paused_until = max(backend.paused_until, now + pause_seconds)
        decisions = self._release(lease, now)
        self.queue.put(Waiting(call, now if since is None else since), now)
        return decisions + self._dispatch(now)

    def leave(self, id: str, now: float) -> list[Decision]:
        """The client left: a waiting call is forgotten, a running one holds its slot until `finish`."""
        lease = self._leases.get(id)
        if lease is None:
            return self.finish(id, now)
        self.backends[lease.backend].leaving.add(id)
        return []

    def finish(self, id: str, now: float) -> list[Decision]:
        """The call is over, whatever it was: queued, running, leaving or long gone."""
        if id in self.queue:  # what was kept for it is for others then
            return self._dispatch(now) if self.queue.take(id).parched else []
        lease = self._leases.get(id)
        if lease is None:
            return []
        self.queue.released(now)
        return self._release(lease, now) + self._dispatch(now)

    def tick(self, now: float) -> list[Decision]:
        """Time passed: pauses end, waits become too long."""
        decisions, parched = self._dispatch(now), False
        wait = self.queue.predicted_wait(len(self.queue))
        unavailable = {group: self.unavailable(one.call) for group, one in self.queue.groups().items()}
        for waiting in self.queue:
            down = unavailable[group_of(waiting.call)]
            if rejected := waiting.expired(now, self.limits, wait, unavailable=down):
                parched |= self.queue.take(waiting.call.id).parched
                decisions.append(rejected)
        return decisions + self._dispatch(now) if parched else decisions

    def follow(self, limits: Limits, now: float) -> list[Decision]:
        """Keep these bounds from now on; who waits already is not turned away by them at once."""
        self.limits = limits
        self.queue.follow(limits)
        self._placement.follow(limits)
        return self._dispatch(now)

    def close(self) -> None:
        """No new calls from now on; those that wait or run go on."""
        self.closed = True

    def remove(self, name: str) -> None:
        super().remove(name)
        self._placement.forget(name)

    # -- what people and metrics look at ----------------------------------------------------------

    def lease(self, id: str) -> Lease | None:
        """The slot that this call holds."""
        return self._leases.get(id)

    def serving(self, call: Call) -> Tiers | Rejected:
        """The backends that serve the call, in tiers, whether or not they can now; or why none does."""
        if self.closed:
            return Rejected(call, Refusal.SHUTTING_DOWN)
        return self._placement.fitting(call)

    def models(self) -> tuple[str, ...]:
        """All models that some backend serves."""
        return self._placement.models()

    # -- inside -----------------------------------------------------------------------------------

    def _dispatch(self, now: float) -> list[Decision]:
        """Start every waiting call that can start, in order."""
        decisions: list[Decision] = []
        if not self.queue or not any(backend.free for backend in self.backends.values()):
            return decisions
        groups, others = self._with_room(now)
        if not groups and not others:  # what is free is not for them, so the queue need not even be sorted
            return decisions
        overdue = self.queue.overdue(now)
        late = others.intersection(overdue.values())
        if not groups and not late:
            return decisions

        def skipped(rank: Rank) -> bool:
            return rank.group not in groups or self._placement.skips_all(rank)

        ranked = self.queue.ranked(groups, overdue, now, skipped)
        self._placement.begin(crowded=len(self.queue) > 1, thorough=self._unsettled)
        self._unsettled = False
        kept: set[str] = set()  # backends whose kv budget an overdue call waits for
        for waiting in ranked:
            id, group = waiting.call.id, group_of(waiting.call)
            if group not in groups and not (group in late and id in overdue):
                continue
            self.queue.looked(waiting)
            if self._placement.skips(waiting, now, overdue=id in overdue):
                continue
            decision = self._try(waiting, now, kept, overdue=id in overdue)
            if decision is None:
                continue
            decisions.append(decision)
            if isinstance(decision, Rejected):
                self.queue.take(id)
                continue
            self.queue.start(id, now)
            self._placement.started(self.backends[decision.lease.backend], now)
            groups, others = self._with_room(now)
            late = others.intersection(overdue.values())
            if not groups and not late:
                break
        return decisions

    def _with_room(self, now: float) -> tuple[set[Group], set[Group]]:
        """The groups of waiting calls for which some backend has a free slot; and those for whose overdue
        calls alone one has."""
        groups, others = set[Group](), set[Group]()
        for group, one in self.queue.groups().items():
            if self._placement.room(one.call, now, overdue=False):
                groups.add(group)
            elif self._placement.room(one.call, now, overdue=True):
                others.add(group)
        return groups, others

    def _try(
        self, waiting: Waiting, now: float, kept: set[str], *, overdue: bool = False
    ) -> Granted | Rejected | None:
        place = self._placement.find(waiting, now, kept, overdue=overdue)
        if not isinstance(place, Place):
            return place
        lease = self._grant(waiting.call, place, now)
        if place.rival is not None:
            lease.rival, lease.rival_seconds = place.rival.backend.name, place.rival.seconds
            lease.held_seconds = waiting.held(now)
        return Granted(lease)

    def _grant(self, call: Call, place: Place, now: float) -> Lease:
        backend, price = place.backend, place.price
        assert backend.free > 0
        self._grants += 1
        lease = Lease(
            call,
            backend.name,
            backend.model_for(call) or call.model,
            now,
            filters.expected_tokens(call),
            price.cached_tokens,
            price.prefill_seconds,
            price.decode_seconds,
            price.seconds,
            place.long,
            trial=backend.state is State.EJECTED,
        )
        if not backend.prefilling and not backend.foreign:
            lease.work.alone, lease.work.begun = True, now
        lease.work.booking = backend.shadow.book(call.chain, call.prompt_tokens, call.inside)
        self._leases[call.id] = backend.leases[call.id] = lease
        backend.held_tokens += lease.tokens
        backend.reads(lease)
        backend.turn(now)
        backend.last_grant = self._grants
        return lease

    def _release(self, lease: Lease, now: float) -> list[Decision]:
        id = lease.call.id
        backend = self.backends[lease.backend]
        lease.work.ended = backend.load.read(now)
        self.queue.fairness.charge(lease.call, now - lease.granted)
        del self._leases[id], backend.leases[id]
        backend.held_tokens -= lease.tokens
        backend.leaving.discard(id)
        backend.has_read(lease)
        backend.turn(now)
        backend.shadow.ended(lease.call.chain)
        self._placement.ended(lease.call, now)
        if backend.state is State.DRAINING and not backend.leases:
            return self._enter(backend, State.DRAINED, backend.why, now)
        return []
