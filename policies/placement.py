"""Where a call may start now, and at what cost; or what keeps it waiting; or why it will never start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from policies import filters, order
from policies.cost import Cost, cost
from policies.tiers import Tiers, levels, tiers
from policies.types import Backend, Call, Limits, Priority, Reason, Refusal, Rejected, State
from policies.waiting import Waiting

INTERACTIVE_SEEN_SECONDS = 60.0  # the reserve is kept this long after an interactive call


class Place(NamedTuple):
    """A backend that can take the call now."""

    backend: Backend
    price: Cost
    long: bool  # its prefill counts for the prefill gate


class Placement:
    """Looks at all backends for one call at a time; changes nothing about them."""

    def __init__(self, limits: Limits, backends: Mapping[str, Backend]) -> None:
        self.gate_waits: Counter[str] = Counter()  # by backend
        self.interactive_at: float | None = None  # when the last interactive call came
        self._limits = limits
        self._backends = backends

    def seen(self, call: Call, now: float) -> None:
        """A call arrived."""
        if call.priority is Priority.INTERACTIVE:
            self.interactive_at = now

    def models(self) -> tuple[str, ...]:
        """All models that some backend serves."""
        return tuple(sorted({model for b in self._backends.values() for model in b.models or ()}))

    def find(self, waiting: Waiting, now: float, kept: set[str]) -> Place | Rejected | None:
        """The cheapest backend of the first tier in which one can take the call now; None: it waits.

        `kept`: backends whose kv budget is for calls that wait for it too long already; this one may add
        another.
        """
        fitting = self.fitting(waiting.call)
        if isinstance(fitting, Rejected):  # an engine told its models, or came back with a smaller context
            return fitting
        for tier in fitting:
            if place := self._cheapest(waiting, tier, now, kept):
                return place
        if order.overdue(waiting.call, now):
            kept |= _parched(waiting, fitting)
        return None

    def fitting(self, call: Call) -> Tiers | Rejected:
        """The backends that serve the call and whose slots hold the prompt, in tiers.

        A backend that is down and never told its models is waited for only if no other one told any:
        a misspelt name would else wait for it in vain.
        """
        backends = [b for b in self._backends.values() if b.serves(call)]
        dumb = all(b.models is None and b.state is State.DOWN for b in backends)
        if not backends and any(b.model_for(call) is not None for b in self._backends.values()):
            return Rejected(call, Refusal.NOT_FOUND)  # the model is there, the route is not
        if not backends or (dumb and self.models()):
            return Rejected(call, Refusal.MODEL_NOT_FOUND, models=self.models())
        return tiers(call, backends) or self._too_long(call, backends)

    def _too_long(self, call: Call, backends: Sequence[Backend]) -> Rejected:
        limit = filters.largest_context([b for level in levels(call, backends) for b in level])
        return Rejected(call, Refusal.CONTEXT_LENGTH_EXCEEDED, limit_tokens=limit)

    def _cheapest(
        self, waiting: Waiting, backends: Sequence[Backend], now: float, kept: set[str]
    ) -> Place | None:
        """The one where it costs least, if one can take the call; ties go to the one granted longest ago."""
        best: tuple[float, int, Backend, Cost] | None = None
        for backend in backends:
            offer = Reason.KV_BUDGET if backend.name in kept else self._offer(waiting.call, backend, now)
            if isinstance(offer, Cost):
                if best is None or (offer.seconds, backend.last_grant) < best[:2]:
                    best = (offer.seconds, backend.last_grant, backend, offer)
                continue
            if offer is Reason.GATE and waiting.why.get(backend.name) is not Reason.GATE:
                self.gate_waits[backend.name] += 1
            waiting.why[backend.name] = offer
        return None if best is None else Place(best[2], best[3], self._long(best[3]))

    def _offer(self, call: Call, backend: Backend, now: float) -> Cost | Reason:
        """What it would cost there now, or why it cannot start there; the cheap questions first, since
        a full queue asks them of every call at every event."""
        seen = self.interactive_at is not None and now - self.interactive_at <= INTERACTIVE_SEEN_SECONDS
        reason = filters.blocked(call, backend, self._limits, now, interactive_seen=seen)
        if reason is not None:
            return reason
        price = cost(call, backend)
        return Reason.GATE if self._long(price) and filters.gated(backend, self._limits) else price

    def _long(self, price: Cost) -> bool:
        return price.prefill_seconds > self._limits.prefill_gate_seconds


def _parched(waiting: Waiting, fitting: Tiers) -> set[str]:
    """Of the backends that lack only kv budget for this call, the one with most of it: what becomes free
    there is kept for the call, or smaller ones would pass it for ever."""
    lacking = [b for tier in fitting for b in tier if waiting.why.get(b.name) is Reason.KV_BUDGET]
    most = max(lacking, key=lambda b: (b.kv_tokens or 0) - b.held_tokens, default=None)
    return set() if most is None else {most.name}
