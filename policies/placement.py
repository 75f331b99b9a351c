"""Where a call may start now, and at what cost; or what keeps it waiting; or why it will never start.

Waiting costs seconds like everything else. A call that would start later on another backend, and be done
sooner all the same, holds: it is foreseen there, those who come after it count on that, and it is looked at
again at every event. So a warm prefix, or a faster engine, is waited for as long as that pays, and no longer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from policies import filters, order
from policies.cost import WEIGHTS, Cost, Occupancy, cost, occupancy, seconds_behind
from policies.forecast import Booking, Forecast
from policies.rank import Rank
from policies.returns import Returns
from policies.service_model import ServiceModel
from policies.tiers import Tiers, levels, tiers
from policies.types import Backend, Call, Limits, Priority, Reason, Refusal, Rejected, State
from policies.waiting import Hold, Quote, Waiting

INTERACTIVE_SEEN_SECONDS = 60.0  # the reserve is kept this long after an interactive call
HOLD_SHARE = 0.9  # of what it would cost to start now: less must be promised by waiting, as promises may fail
HOLDS_MAX = 4  # at one event: whoever held before them still does, since each look costs as much as a start
NEW_HOLDS_MAX = 5  # the same where those that begin to hold count too
PEOPLE_HOLDS_MAX = 24  # the same of interactive calls, which wait for nobody's turn if it can be helped
GATES_MAX = 64  # calls that the gate keeps, at one event: those behind them do not pass all of them
WAIT_SECONDS_MIN = 0.1  # of a call that cannot start now

FLOOR = attrgetter("floor")


class Offer(NamedTuple):
    """What a backend would cost a call, the wait for it included."""

    seconds: float
    last_grant: int  # ties go to the one granted longest ago
    backend: Backend
    price: Cost
    wait_seconds: float = 0.0
    reserved: int = 0  # slots that are not for this call


class View(NamedTuple):
    """Backends as they are for all calls of a kind."""

    why: dict[str, Reason]  # what keeps them from a backend
    full: list[Backend]  # those that may take one later
    clear: list[Backend]  # those that may take one now
    reserved: dict[str, int]  # slots that are not for them


class Place(NamedTuple):
    """A backend that can take the call now."""

    backend: Backend
    price: Cost
    long: bool  # its prefill counts for the prefill gate
    rival: Offer | None = None  # the next best, or a better one that was not worth the wait


class Placement:
    """Looks at all backends for one call at a time; changes nothing about them."""

    def __init__(self, limits: Limits, backends: Mapping[str, Backend]) -> None:
        self.gate_waits: Counter[str] = Counter()  # by backend
        self.interactive_at: float | None = None  # when the last interactive call came
        self.follow(limits)
        self._backends = backends
        self._forecasts: dict[str, Forecast] = {}  # as of this event
        self.returns = Returns()
        self._occupancies: dict[str, tuple[int, ServiceModel, Occupancy]] = {}  # by backend, as of when
        self._views: dict[tuple[object, ...], View] = {}  # at this event
        self._crowded = False  # more than one call waits
        self._thorough = False  # all calls that hold are looked at, at this event
        self._holds = 0  # calls that hold, at this event
        self._gates = 0  # calls that the gate kept, at this event
        # Those with room, if all of them read long prompts: for people or not, overdue or not.
        self._gated: dict[tuple[bool, bool], list[Backend]] = {}

    def follow(self, limits: Limits) -> None:
        """Keep these bounds from now on."""
        self._limits = limits

    def forget(self, name: str) -> None:
        """A backend left."""
        self.gate_waits.pop(name, None)
        self._occupancies.pop(name, None)

    def seen(self, call: Call, now: float) -> None:
        """A call arrived."""
        self.returns.asks(call, now)
        if call.priority is Priority.INTERACTIVE:
            self.interactive_at = now

    def ended(self, call: Call, now: float) -> None:
        """A call left its slot: its conversation may come back."""
        self.returns.answered(call, now)

    def interactive_seen(self, now: float) -> bool:
        """Whether interactive calls came lately."""
        return self.interactive_at is not None and now - self.interactive_at <= INTERACTIVE_SEEN_SECONDS

    def models(self) -> tuple[str, ...]:
        """All models that some backend serves."""
        return tuple(sorted({model for b in self._backends.values() for model in b.models or ()}))

    def begin(self, *, crowded: bool = False, thorough: bool = False) -> None:
        """An event: what was foreseen before it no longer holds. `crowded`: more than one call waits, so a
        conversation that gives way now will have to wait for its turn to be read again. `thorough`: what
        calls hold for may be gone, so all of them are looked at."""
        self._crowded, self._thorough = crowded, thorough
        self._holds = self._gates = 0
        if self._forecasts:
            self._forecasts = {}
        self._gated = {}
        self._views = {}

    def started(self, backend: Backend, now: float) -> None:
        """A call has just started there; those that wait for this backend still do."""
        forecast = self._forecasts.get(backend.name)
        if forecast is not None:
            self._forecasts[backend.name] = forecast.again(backend, self._limits, now)
        self._gated = {}
        self._views = {}

    def skips_all(self, rank: Rank) -> bool:
        """Whether none of them need be looked at any more: `skips` would say so of each."""
        person, over = rank.group.priority is Priority.INTERACTIVE, rank.hold is Hold.OVER
        gated = self._gates >= GATES_MAX and not person and not over
        return gated or self._holds >= self._holds_max(rank.group.priority, rank.hold)

    def skips(self, waiting: Waiting, now: float, *, overdue: bool) -> bool:
        """Whether it need not be looked at now: it holds behind others, or the gate keeps it."""
        return self._holds_on(waiting, now) or self._gated_off(waiting, now, overdue=overdue)

    def _holds_on(self, waiting: Waiting, now: float) -> bool:
        """Behind so many others that hold, one that held at the last look still does, and one that nobody
        looked at yet has its turn at one of the next events."""
        hold = waiting.holding(now, self._limits.hold_seconds_max)
        return self._holds >= self._holds_max(waiting.call.priority, hold)

    def _holds_max(self, priority: Priority, hold: Hold) -> float:
        """Behind how many that hold such a call need not be looked at."""
        if hold is Hold.OVER or self._thorough:
            return math.inf
        if priority is Priority.INTERACTIVE:
            return PEOPLE_HOLDS_MAX
        return HOLDS_MAX if hold is Hold.HOLDS else NEW_HOLDS_MAX

    def _gated_off(self, waiting: Waiting, now: float, *, overdue: bool) -> bool:
        """Whether all that has room for it reads long prompts, and this one is long there: then nothing else
        about it need be known, which spares a deep queue most of the work. But an overdue call must be looked
        at where it may lack kv budget, which is kept for it then."""
        gated = self._all_gated(waiting.call, now, overdue=overdue)
        if not gated or any(
            (overdue and b.kv_tokens is not None)
            or not b.serves(waiting.call)
            or not filters.long(self._quote(waiting, b).price, self._limits)
            for b in gated
        ):
            return False
        for backend in gated:
            if waiting.why.get(backend.name) is not Reason.GATE:
                self.gate_waits[backend.name] += 1
                waiting.why[backend.name] = Reason.GATE
        waiting.hold(now, holds=False)
        self._gates += 1
        return True

    def _all_gated(self, call: Call, now: float, *, overdue: bool) -> list[Backend]:
        """The backends with room for the call's class, if all of them read long prompts."""
        kind = call.priority is Priority.INTERACTIVE, overdue
        if kind not in self._gated:
            room = [b for b in self._backends.values() if self._has_room(call, b, now, overdue=overdue)]
            self._gated[kind] = room if all(filters.gated(b, self._limits) for b in room) else []
        return self._gated[kind]

    def _has_room(self, call: Call, backend: Backend, now: float, *, overdue: bool) -> bool:
        free = backend.free
        if not free or not self.interactive_seen(now):
            return free > 0
        return free > filters.reserved_slots(call, backend, self._limits, overdue=overdue)

    def room(self, call: Call, now: float, *, overdue: bool) -> bool:
        """Whether a backend of the call's model has a slot for its class; or none serves it any more."""
        serving = False
        for backend in self._backends.values():
            if (not serving or backend.free) and backend.serves(call):
                serving = True
                if self._has_room(call, backend, now, overdue=overdue):
                    return True
        return not serving and any(backend.free for backend in self._backends.values())

    def estimate(self, waiting: Waiting, backends: Sequence[Backend]) -> None:
        """How long the call would take, to rank it by."""
        waiting.takes(self._quote(waiting, backend).own_seconds for backend in backends)

    def find(
        self, waiting: Waiting, now: float, kept: set[str], *, overdue: bool = False
    ) -> Place | Rejected | None:
        """The best backend of the first tier in which one should take the call now; None: it waits.

        `kept`: backends whose kv budget is for calls that wait for it too long already; this one may add
        another.
        """
        fitting = self.fitting(waiting.call)
        if isinstance(fitting, Rejected):  # an engine told its models, or came back with a smaller context
            return fitting
        before, waiting.why = waiting.why, {}
        for tier in fitting:
            if place := self._choose(waiting, tier, now, kept, overdue=overdue):
                return place
        for name, reason in waiting.why.items():
            if reason is Reason.GATE and before.get(name) is not Reason.GATE:
                self.gate_waits[name] += 1
        if now - waiting.call.arrived > order.patience(waiting):
            kept |= _parched(waiting, fitting)
        return None

    def fitting(self, call: Call) -> Tiers | Rejected:
        """The backends that serve the call and whose slots hold the prompt, in tiers.

        A backend that is down and never told its models is waited for only if no other one told any:
        a misspelt name would else wait for it in vain.
        """
        backends = [b for b in self._backends.values() if b.serves(call)]
        if not backends and any(b.model_for(call) is not None for b in self._backends.values()):
            return Rejected(call, Refusal.NOT_FOUND)  # the model is there, the route is not
        dumb = not backends or (
            backends[0].models is None and all(b.models is None and b.state is State.DOWN for b in backends)
        )
        if dumb and (not backends or self.models()):
            return Rejected(call, Refusal.MODEL_NOT_FOUND, models=self.models())
        return tiers(call, backends) or self._too_long(call, backends)

    def _too_long(self, call: Call, backends: Sequence[Backend]) -> Rejected:
        limit = filters.largest_context([b for level in levels(call, backends) for b in level])
        return Rejected(call, Refusal.CONTEXT_LENGTH_EXCEEDED, limit_tokens=limit)

    def _choose(
        self, waiting: Waiting, tier: Sequence[Backend], now: float, kept: set[str], *, overdue: bool
    ) -> Place | None:
        """Where the call costs least, its wait included, if that can take it now; else the best of those
        that can, unless the other one is worth the wait."""
        call, view = waiting.call, self._view(waiting.call, tier, now, overdue=overdue)
        waiting.why.update(view.why)
        best: Offer | None = None
        second: Offer | None = None
        full = [self._quote(waiting, backend) for backend in view.full]  # where it cannot start now
        startable: list[Quote] = []  # and where it can
        for backend in view.clear:
            reason = None
            if backend.kv_tokens is not None:
                reason = self._blocked(call, backend, now, overdue=overdue)
                if reason is Reason.NOT_READY or reason is Reason.PAUSED:
                    waiting.why[backend.name] = reason
                    continue
                if backend.name in kept:
                    reason = Reason.KV_BUDGET
            quote = self._quote(waiting, backend)
            long = filters.long(quote.price, self._limits)
            if reason is None and long and filters.gated(backend, self._limits):
                reason = Reason.GATE
            if reason is not None:
                waiting.why[backend.name] = reason
                full.append(quote)
                continue
            if len(tier) == 1:
                return Place(backend, quote.price, long)
            startable.append(quote)
            ahead = self._forecast(backend, now).reading if backend.prefilling else 0.0
            seconds = quote.floor + WEIGHTS[call.priority] * ahead
            offer = Offer(seconds, backend.last_grant, backend, quote.price)
            if _better(offer, best):
                second, best = best, offer
            elif _better(offer, second):
                second = offer
        start = best  # the best of those that can take it
        may_hold = start is None or waiting.held(now) < self._limits.hold_seconds_max
        worth = math.inf if start is None else self._worth(start)
        promising = [quote for quote in full if quote.floor < worth]  # if there were no wait
        for quote in sorted(promising, key=FLOOR):
            # What can start no sooner than at once need not be foreseen where that is too late.
            waits = best is not None and best is not start and may_hold and best.seconds < worth
            settled = best if waits else second
            if settled is not None and quote.floor > settled.seconds:
                break
            offer = self._later(call, quote, view, now)
            if _better(offer, best):
                second, best = best, offer
            elif _better(offer, second):
                second = offer
        if best is None:
            return None
        if start is not None and (best.seconds >= worth or not may_hold):
            return self._place(start, second if start is best else best)
        waiting.takes(quote.own_seconds for quote in (*full, *startable))
        waiting.why.update((quote.backend.name, Reason.HOLD) for quote in startable)
        waiting.hold(now, holds=start is not None)
        self._holds += start is not None
        self._book(best, now)
        return None

    def _later(self, call: Call, quote: Quote, view: View, now: float) -> Offer:
        """What the call would cost on a backend that cannot take it now."""
        backend, price, forecast = quote.backend, quote.price, self._forecast(quote.backend, now)
        reserved = view.reserved[backend.name]
        wait = max(WAIT_SECONDS_MIN, forecast.wait(reserved, long=filters.long(price, self._limits)))
        seconds = quote.floor + WEIGHTS[call.priority] * max(wait, forecast.booked)
        return Offer(seconds, backend.last_grant, backend, price, wait, reserved)

    def _view(self, call: Call, tier: Sequence[Backend], now: float, *, overdue: bool) -> View:
        """Which of these backends could take the call, whatever it costs there."""
        kind = call.priority is Priority.INTERACTIVE, overdue, *tier
        if (view := self._views.get(kind)) is None:
            view = self._views[kind] = View({}, [], [], {})
            seen = self.interactive_seen(now)
            for backend in tier:
                view.reserved[backend.name] = (
                    filters.reserved_slots(call, backend, self._limits, overdue=overdue) if seen else 0
                )
                if backend.kv_tokens is not None:  # how much it may hold is a matter of each call
                    view.clear.append(backend)
                elif reason := self._blocked(call, backend, now, overdue=overdue):
                    view.why[backend.name] = reason
                    if reason is not Reason.NOT_READY and reason is not Reason.PAUSED:
                        view.full.append(backend)
                else:
                    view.clear.append(backend)
        return view

    def _blocked(self, call: Call, backend: Backend, now: float, *, overdue: bool) -> Reason | None:
        seen = self.interactive_seen(now)
        return filters.blocked(call, backend, self._limits, now, interactive_seen=seen, overdue=overdue)

    def _place(self, start: Offer, rival: Offer | None) -> Place:
        return Place(start.backend, start.price, filters.long(start.price, self._limits), rival)

    def _worth(self, start: Offer) -> float:
        """What it must cost elsewhere, the wait included, to be waited for."""
        displaced = 0.0 if self._crowded else start.price.displaced_seconds
        return HOLD_SHARE * (start.seconds - displaced)

    def _book(self, best: Offer, now: float) -> None:
        """A call will start there, as far as can be foreseen."""
        price = best.price
        self._forecast(best.backend, now).book(
            Booking(
                best.reserved,
                best.wait_seconds,
                price.prefill_seconds,
                price.decode_seconds,
                long=filters.long(price, self._limits),
            )
        )

    def _quote(self, waiting: Waiting, backend: Backend) -> Quote:
        """What the call costs there, worked out again only if something has changed."""
        known = waiting.quotes.get(backend.name)
        if known is not None and known.changes == backend.changes and known.service is backend.service:
            return known
        price = cost(waiting.call, backend, self.returns, self._occupancy(backend))
        own = price.prefill_seconds + price.decode_seconds
        floor = seconds_behind(waiting.call, backend, price, 0.0)
        quote = Quote(backend, backend.changes, backend.service, price, own, floor)
        waiting.quotes[backend.name] = quote
        return quote

    def _occupancy(self, backend: Backend) -> Occupancy:
        known = self._occupancies.get(backend.name)
        if known is not None and known[0] == backend.changes and known[1] is backend.service:
            return known[2]
        beside = occupancy(backend)
        self._occupancies[backend.name] = backend.changes, backend.service, beside
        return beside

    def _forecast(self, backend: Backend, now: float) -> Forecast:
        forecast = self._forecasts.get(backend.name)
        if forecast is None:
            forecast = self._forecasts[backend.name] = Forecast(backend, self._limits, now)
        return forecast


def _better(offer: Offer, than: Offer | None) -> bool:
    return than is None or offer[:2] < than[:2]


def _parched(waiting: Waiting, fitting: Tiers) -> set[str]:
    """Of the backends that lack only kv budget for this call, the one with most of it: what becomes free
    there is kept for the call, or smaller ones would pass it for ever."""
    lacking = [b for tier in fitting for b in tier if waiting.why.get(b.name) is Reason.KV_BUDGET]
    most = max(lacking, key=lambda b: (b.kv_tokens or 0) - b.held_tokens, default=None)
    return set() if most is None else {most.name}
