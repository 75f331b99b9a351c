"""What must hold after every event, told from outside: from what engines count and clients see."""

from __future__ import annotations

from collections.abc import Callable

from gateway.dispatcher import Dispatcher, Slot
from policies.admission import Admission
from policies.order import OVERDUE_SECONDS
from policies.placement import INTERACTIVE_SEEN_SECONDS, NEW_HOLDS_MAX
from policies.types import Backend, Call, Decision, Granted, Lease, Limits, Priority, Reason, Rejected, State
from policies.waiting import Waiting
from tests.simulation.engine import SimulatedEngine

OUTPUT_TOKENS = 2048
ESTIMATE_LOW = 0.7


class ObservedDispatcher(Dispatcher):
    """The real dispatcher; shows every decision to the invariants, and the state that follows it."""

    def __init__(self, admission: Admission, clock: Callable[[], float], invariants: Invariants) -> None:
        super().__init__(admission, clock)
        self._invariants = invariants

    def slot(self, call: Call, backend: str | None = None) -> Slot:
        """Half of the calls whose backend is certain are given it at once, the other half must get it."""
        sure = None
        if not call.targets and not call.fallbacks:
            sure = self.certain(call.model, call.route, call.prompt_tokens)
        if sure is not None:
            self._invariants.certain[call.id] = sure.name
        at_once = sure is not None and sum(call.id.encode()) % 2
        return super().slot(call, sure.name if sure is not None and at_once else None)

    def apply(self, decisions: list[Decision]) -> None:
        self._invariants.decided(decisions)
        super().apply(decisions)
        self._invariants.settled(frozenset(self._waiters))


class Invariants:
    """Checks decisions and states; `broken` hears of the first violation."""

    def __init__(
        self,
        admission: Admission,
        engines: dict[str, SimulatedEngine],
        clock: Callable[[], float],
        tick_seconds: float,
        broken: Callable[[str], None],
    ) -> None:
        self.ended: set[str] = set()
        self.slots_at_grant: dict[str, int] = {}  # by call id
        self.certain: dict[str, str] = {}  # the backend of a call that was just submitted, by its id
        self._admission = admission
        self._engines = engines
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._broken = broken
        self._behind: dict[
            str, int
        ] = {}  # events for which a call was not looked at, as others began to hold

    def decided(self, decisions: list[Decision]) -> None:
        """These decisions were made; nobody has acted on them."""
        for id, name in self.certain.items():
            lease = self._admission.lease(id)
            self._must(lease is not None and lease.backend == name, f"{id} does not start on {name}")
        self.certain.clear()
        for decision in decisions:
            if isinstance(decision, Granted):
                self._granted(decision.lease)
            elif isinstance(decision, Rejected):
                id = decision.call.id
                self._must(id not in self.ended, f"{id} is rejected after its end")
                self._must(self._admission.lease(id) is None, f"{id} is rejected but holds a slot")

    def _granted(self, lease: Lease) -> None:
        id, backend = lease.call.id, self._admission.backends[lease.backend]
        engine = self._engines[lease.backend]
        self._must(id not in self.ended, f"{id} is granted a slot after its end")
        self._must(
            len(engine.active) + backend.foreign < backend.slots,
            f"{id} is granted {backend.name}, where {len(engine.active)} + {backend.foreign} foreign "
            f"run in {backend.slots} slots",
        )
        self._must(
            backend.state is State.READY or (backend.state is State.EJECTED and lease.trial),
            f"{id} is granted {backend.name}, which is {backend.state}",
        )
        self._must(
            backend in self._fitting(lease.call),
            f"{id} is granted {backend.name}, which is too small for it or not its turn",
        )
        names = (*(lease.call.targets or (lease.call.model,)), *lease.call.fallbacks)
        self._must(
            lease.model in names and lease.model in (backend.models or names),
            f"{id} is granted {backend.name} for {lease.model}",
        )
        long = sum(other.long for other in backend.leases.values() if other.call.id in backend.prefilling)
        gate = self._admission.limits.long_prefills_per_backend
        self._must(not lease.long or long <= gate, f"{backend.name} reads {long} long prompts at once")
        budget, held = engine.kv_tokens, [expected(other.call) for other in backend.leases.values()]
        self._must(
            budget is None or len(held) == 1 or sum(held) <= budget,
            f"{id} is granted {backend.name}, where {held} tokens do not fit in {budget}",
        )
        self.slots_at_grant[id] = backend.slots

    def begun(self, id: str, engine: SimulatedEngine) -> None:
        """The engine has begun to work on a call."""
        allowed = max(self._admission.backends[engine.name].slots, self.slots_at_grant[id])
        self._must(
            len(engine.active) <= allowed, f"{engine.name} works on {len(engine.active)}, allowed {allowed}"
        )

    def settled(self, waiters: frozenset[str]) -> None:
        """The event and all its effects are done."""
        admission = self._admission
        waiting, leases = {w.call.id: w for w in admission.queue}, admission._leases
        self._must(not waiting.keys() & leases.keys(), "a call waits and holds a slot")
        self._must(waiters == waiting.keys(), f"futures {set(waiters)} but waiting {set(waiting)}")
        self._must(not waiting.keys() & self.ended, "a call waits after its end")
        self._must(
            admission.queue.bytes == sum(w.call.body_bytes for w in waiting.values()),
            "the sum of waiting bytes is wrong",
        )
        held = {id: lease for b in admission.backends.values() for id, lease in b.leases.items()}
        self._must(held == leases, "backends and calls disagree on who holds what")
        for backend in admission.backends.values():
            self._backend(backend)
        self._conserves_work()

    def _backend(self, backend: Backend) -> None:
        held, name = backend.leases.keys(), backend.name
        self._must(backend.free >= 0 and backend.in_use >= 0, f"{name} has less than nothing")
        tokens = sum(expected(lease.call) for lease in backend.leases.values())
        self._must(backend.held_tokens == tokens, f"{name} counts {backend.held_tokens} of {tokens} tokens")
        self._must(backend.prefilling <= held, f"{name} prefills a call that holds no slot")
        long = sum(backend.leases[id].long for id in backend.prefilling & held)
        told = backend.long_prefills
        self._must(told == long, f"{name} reads {long} long prompts, not {told}")
        self._must(backend.leaving <= held, f"{name} is being left by a call that holds no slot")
        self._must(self._engines[name].active <= held, f"{name} works on a call that holds no slot")
        lost = (held & self.ended) - backend.leaving
        self._must(not lost, f"{name} is held by {lost} after their end")
        trials = [id for id in backend.prefilling if backend.leases[id].trial]
        self._must(len(trials) <= 1, f"{name} is tried by {trials} at once")
        self._must(backend.state is not State.DRAINED or not held, f"{name} is drained but in use")

    def _conserves_work(self) -> None:
        before, self._behind = self._behind, {}
        for waiting in self._admission.queue:
            for backend in self._fitting(waiting.call):
                self._must(
                    self._excused(waiting.call, backend, waiting.why.get(backend.name))
                    or self._holds(waiting, backend)
                    or self._has_its_turn(waiting, before),
                    f"{waiting.call.id} waits although {backend.name} is free",
                )

    def _has_its_turn(self, waiting: Waiting, before: dict[str, float]) -> bool:
        """Whether so many hold, or did when it was left out, that only one more at each event may begin to: a
        tick is an event."""
        id, now, queue = waiting.call.id, self._clock(), self._admission.queue
        others = sum(other.held_since is not None for other in queue if other is not waiting)
        if others < NEW_HOLDS_MAX and id not in before:
            return False
        self._behind[id] = before.get(id, now)
        return now - self._behind[id] <= self._tick_seconds * len(queue)

    def _excused(self, call: Call, backend: Backend, reason: Reason | None) -> bool:
        """Whether something but the lack of a decision keeps the call from this backend. What ends by
        the clock is noticed at the next tick."""
        limits = self._admission.limits
        noticed = self._clock() - self._tick_seconds
        if not backend.free or backend.paused_until > noticed:
            return True
        if backend.resting and len(backend.leases) >= backend.slots - backend.resting:
            return True  # it comes back from an ejection
        if backend.state is not State.READY and (not backend.half_open or backend.ejection.until > noticed):
            return True
        return (
            gated(call, backend, limits, reason)
            or self._reserved(call, backend, limits, noticed)
            or (reason is Reason.KV_BUDGET and (parched(call, backend) or self._kept(call, backend)))
        )

    def _holds(self, waiting: Waiting, backend: Backend) -> bool:
        """Whether the call leaves this slot free for a better one: that one must be out of reach now, and the
        time for which a call may do so not over."""
        others = [b for b in self._fitting(waiting.call) if b is not backend]
        return (
            waiting.why.get(backend.name) is Reason.HOLD
            and waiting.held_since is not None
            and waiting.held(self._clock()) <= self._admission.limits.hold_seconds_max + self._tick_seconds
            and any(
                waiting.why.get(b.name) not in (None, Reason.HOLD, Reason.NOT_READY, Reason.PAUSED)
                for b in others
            )
        )

    def _kept(self, call: Call, backend: Backend) -> bool:
        """Whether the token budget is kept for another call, which has waited for it too long."""
        return any(
            self._clock() - other.call.arrived > OVERDUE_SECONDS
            and other.call.id != call.id
            and parched(other.call, backend)
            for other in self._admission.queue
            if other.why.get(backend.name) is Reason.KV_BUDGET
        )

    def _reserved(self, call: Call, backend: Backend, limits: Limits, noticed: float) -> bool:
        seen = self._admission._placement.interactive_at
        return (
            call.priority is not Priority.INTERACTIVE
            and backend.slots > 2
            and backend.free <= limits.interactive_reserve_slots
            and seen is not None
            and noticed - seen <= INTERACTIVE_SEEN_SECONDS
        )

    def _fitting(self, call: Call) -> list[Backend]:
        """Where the call may start: by model, then backups after others, each only for want of the one
        before; among those of one kind, where it fits best."""
        left = [b for b in self._admission.backends.values() if b.serves(call)]
        found: list[Backend] = []
        for names in (call.targets or (call.model,), *((name,) for name in call.fallbacks)):
            of_model = [b for b in left if b.models is None or set(names) & b.models]
            left = [b for b in left if b not in of_model]
            for backup in (False, True):
                fits = holding(call, [b for b in of_model if b.backup == backup])
                found += fits
                if any(b.state is State.READY for b in fits):
                    return found
            if any(b.state is State.READY for b in of_model):
                return found
        return found

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._broken(otherwise)


def expected(call: Call) -> int:
    """Tokens that a call will probably hold."""
    return call.prompt_tokens + min(call.output_tokens_max or OUTPUT_TOKENS, OUTPUT_TOKENS)


def room(backend: Backend) -> float:
    """Tokens that one call may hold there."""
    return min(backend.context_tokens or float("inf"), backend.kv_tokens or float("inf"))


def holding(call: Call, backends: list[Backend]) -> list[Backend]:
    """Those that hold the call and its answer; if none does, the largest, if that holds the prompt."""
    if fits := [b for b in backends if expected(call) <= room(b)]:
        return fits
    largest = max(map(room, backends), default=0.0)
    least = call.prompt_tokens if call.prompt_counted else int(call.prompt_tokens * ESTIMATE_LOW)
    return [b for b in backends if room(b) == largest and least < largest]


def parched(call: Call, backend: Backend) -> bool:
    """Whether those that run there leave the call too little of the token budget."""
    held = [expected(lease.call) for lease in backend.leases.values()]
    return bool(held) and backend.kv_tokens is not None and sum(held) + expected(call) > backend.kv_tokens


def gated(call: Call, backend: Backend, limits: Limits, reason: Reason | None) -> bool:
    """Whether long prefills in progress keep the call away, which is on record; never a call whose
    whole prompt is short."""
    long = [id for id in backend.prefilling if backend.leases[id].long]
    whole = backend.service.prefill_seconds(call.prompt_tokens)
    return (
        len(long) >= limits.long_prefills_per_backend
        and whole > limits.prefill_gate_seconds
        and reason is Reason.GATE
    )
