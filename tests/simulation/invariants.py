"""What must hold after every event, told from outside: from what engines count and clients see."""

from __future__ import annotations

from collections.abc import Callable

from gateway.dispatcher import Dispatcher
from policies.admission import Admission
from policies.placement import INTERACTIVE_SEEN_SECONDS
from policies.types import Backend, Call, Decision, Granted, Lease, Limits, Priority, Reason, Rejected, State
from tests.simulation.engine import SimulatedEngine

OUTPUT_TOKENS = 2048
ESTIMATE_LOW = 0.7


class ObservedDispatcher(Dispatcher):
    """The real dispatcher; shows every decision to the invariants, and the state that follows it."""

    def __init__(self, admission: Admission, clock: Callable[[], float], invariants: Invariants) -> None:
        super().__init__(admission, clock)
        self._invariants = invariants

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
        self._admission = admission
        self._engines = engines
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._broken = broken

    def decided(self, decisions: list[Decision]) -> None:
        """These decisions were made; nobody has acted on them."""
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
        self._must(backend in self._fitting(lease.call), f"{id} is granted {backend.name}, too small for it")
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
        self._must(backend.prefilling <= held, f"{name} prefills a call that holds no slot")
        self._must(backend.leaving <= held, f"{name} is being left by a call that holds no slot")
        self._must(self._engines[name].active <= held, f"{name} works on a call that holds no slot")
        lost = (held & self.ended) - backend.leaving
        self._must(not lost, f"{name} is held by {lost} after their end")
        trials = [id for id in backend.prefilling if backend.leases[id].trial]
        self._must(len(trials) <= 1, f"{name} is tried by {trials} at once")
        self._must(backend.state is not State.DRAINED or not held, f"{name} is drained but in use")

    def _conserves_work(self) -> None:
        for waiting in self._admission.queue:
            for backend in self._fitting(waiting.call):
                self._must(
                    self._excused(waiting.call, backend, waiting.why.get(backend.name)),
                    f"{waiting.call.id} waits although {backend.name} is free",
                )

    def _excused(self, call: Call, backend: Backend, reason: Reason | None) -> bool:
        """Whether something but the lack of a decision keeps the call from this backend. What ends by
        the clock is noticed at the next tick."""
        limits = self._admission.limits
        noticed = self._clock() - self._tick_seconds
        if not backend.free or backend.paused_until > noticed:
            return True
        if backend.state is not State.READY and (not backend.half_open or backend.ejection.until > noticed):
            return True
        return gated(call, backend, limits, reason) or self._reserved(call, backend, limits, noticed)

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
        backends = [b for b in self._admission.backends.values() if b.serves(call)]
        answer = min(call.output_tokens_max or OUTPUT_TOKENS, OUTPUT_TOKENS)
        fits = [
            b for b in backends if not b.context_tokens or call.prompt_tokens + answer <= b.context_tokens
        ]
        if fits or not backends:
            return fits
        largest = max(b.context_tokens or 0 for b in backends)
        least = call.prompt_tokens if call.prompt_counted else int(call.prompt_tokens * ESTIMATE_LOW)
        return [b for b in backends if b.context_tokens == largest and least < largest]

    def _must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._broken(otherwise)


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
