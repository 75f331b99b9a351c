"""May a call start on a backend now, and if not, why not.

The room for an answer is never reserved by `max_tokens`: agents send 65,536 on every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from policies.cost import Cost
from policies.types import Backend, Call, Limits, Priority, Reason, State

ESTIMATE_LOW = 0.7  # an estimate from bytes may be this far too high; only engines refuse what lies between
ESTIMATE_HIGH = 1.4  # or too low


def fitting(call: Call, backends: Sequence[Backend]) -> Sequence[Backend]:
    """The backends whose slots hold this call.

    Those that hold the prompt and a usual answer; if there is none, those with the largest context,
    provided that it holds the prompt; empty if not. An unknown context holds everything; a kv budget
    bounds it like a context.
    """
    if len(backends) == 1 and backends[0].window is None:
        return backends
    tokens = expected_tokens(call)
    fits = [b for b in backends if (window := b.window) is None or tokens <= window]
    if fits:
        return fits
    largest = largest_context(backends)
    least = call.prompt_tokens if call.prompt_counted else int(call.prompt_tokens * ESTIMATE_LOW)
    if largest is None or least >= largest:  # a prompt that fills the context leaves no room for a token
        return []
    return [b for b in backends if b.window == largest]


def expected_tokens(call: Call) -> int:
    """What the call will probably hold at its end: its prompt and a usual answer."""
    limit, usual = call.output_tokens_max, call.outputs.p90
    return call.prompt_tokens + (usual if limit is None else min(limit, usual))


def largest_context(backends: Sequence[Backend]) -> int | None:
    """The largest known context of one call, in tokens."""
    return max((window for b in backends if (window := b.window) is not None), default=None)


def any_larger(call: Call, context_tokens: int, backends: Iterable[Backend]) -> bool:
    """Whether a backend of this call is known to have a larger context than this."""
    return any(b.serves(call) and (b.window or 0) > context_tokens for b in backends)


def blocked(
    call: Call,
    backend: Backend,
    limits: Limits,
    now: float,
    *,
    interactive_seen: bool,
    overdue: bool = False,
) -> Reason | None:
    """Why `call` cannot start on `backend` now, whatever it costs there; None if nothing is in the way.

    `interactive_seen`: interactive calls came lately. `overdue`: this one has waited too long.
    """
    if backend.state is not State.READY and not (backend.half_open and now >= backend.ejection.until):
        return Reason.NOT_READY
    if now < backend.paused_until:
        return Reason.PAUSED
    free = backend.free
    if not free or (backend.resting and len(backend.leases) >= backend.slots - backend.resting):
        return Reason.SLOTS
    if backend.kv_tokens is not None and parched(call, backend):
        return Reason.KV_BUDGET
    if interactive_seen and free <= reserved_slots(call, backend, limits, overdue=overdue):
        return Reason.RESERVE
    return None


def reserve_max(backend: Backend, limits: Limits) -> int:
    """Slots there that are for interactive calls alone, at most. With two slots a reserve would halve the
    backend, so it starts above two."""
    return limits.interactive_reserve_slots if backend.slots > 2 else 0


def reserved_slots(call: Call, backend: Backend, limits: Limits, *, overdue: bool) -> int:
    """Slots there that are not for this call while interactive ones come.

    Before an overdue call those interactive ones that run count as having had it: or a flood of them would
    have every slot for ever.
    """
    reserve = reserve_max(backend, limits)
    if not reserve or call.priority is Priority.INTERACTIVE:
        return 0
    if overdue:
        had = sum(lease.call.priority is Priority.INTERACTIVE for lease in backend.leases.values())
        return max(0, reserve - had)
    return reserve


def parched(call: Call, backend: Backend) -> bool:
    """Whether what runs there leaves too little of the kv budget. A call alone may always start: if it
    outgrows the budget, there is nobody whom the engine would have to put aside for it."""
    budget = backend.kv_tokens
    return (
        budget is not None and bool(backend.leases) and backend.held_tokens + expected_tokens(call) > budget
    )


def long(price: Cost, limits: Limits) -> bool:
    """Whether a prefill of this price counts for the prefill gate."""
    return price.prefill_seconds > limits.prefill_gate_seconds


def gated(backend: Backend, limits: Limits) -> bool:
    """Whether a long prefill must wait for another one's first token: prefill is serial in an engine,
    so side by side they only freeze everybody else."""
    return backend.long_prefills >= limits.long_prefills_per_backend
