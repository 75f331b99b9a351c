"""What is decided at a glance is what a look at every waiting call and every backend would have decided.

Two gateways live through the same events: one takes every short cut, the other one none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import pytest

from policies import filters, order
from policies.admission import Admission
from policies.cost import cost, seconds_behind
from policies.forecast import Forecast
from policies.placement import WAIT_SECONDS_MIN, Offer, Place, Placement
from policies.prefix import PrefixShadow
from policies.queue import Queue, group_of
from policies.rank import Group, Rank
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Decision, Granted, Limits, Priority, Reason, Rejected, Source, State
from policies.waiting import Hold, Quote, Waiting
from tests.unit.fleet import MODEL, ROUTE, a_call, a_chain

EVENTS = 300


class WholeQueue(Queue):
    """Compares all that wait, and leaves nobody out."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.starts: dict[object, float] = {}  # the last one of each flow, while some of it wait

    def ranked(
        self,
        groups: Collection[Group],
        overdue: Mapping[str, Group],
        now: float,
        skipped: Callable[[Rank], bool] = lambda rank: False,
    ) -> Iterator[Waiting]:
        self.fairness.compare()
        ahead = self.fairness.ahead
        late = sorted((one for one in self if one.call.id in overdue), key=_arrival)
        others = [one for one in self if one not in late and group_of(one.call) in groups]

        def place(one: Waiting) -> tuple[int, int, float, str]:
            call = one.call
            ratio = (call.arrived - now) / one.service_seconds
            return call.priority, order.after(call, ahead), ratio, call.id

        return iter((*late, *sorted(others, key=place)))

    def overdue(self, now: float) -> dict[str, Group]:
        """By a look at every call: its agent's first of the class, and none started since."""
        first: dict[object, Waiting] = {}
        for one in sorted(self, key=_arrival):
            first.setdefault(_flow(one.call), one)
        late = {}
        for flow, one in first.items():
            since = max(one.call.arrived, self.starts.get(flow, -math.inf))
            if now - since > order.patience(one):
                late[one.call.id] = group_of(one.call)
        return late

    def start(self, id: str, now: float) -> None:
        flow = _flow(self._waiting[id].call)
        super().start(id, now)
        if any(_flow(one.call) == flow for one in self):
            self.starts[flow] = now

    def take(self, id: str) -> Waiting:
        waiting = super().take(id)
        if not any(_flow(one.call) == _flow(waiting.call) for one in self):
            self.starts.pop(_flow(waiting.call), None)
        return waiting


class Told(Placement):
    """Notes when each call was foreseen to start, at the last look."""

    def __init__(self, limits: Limits, backends: Mapping[str, Backend]) -> None:
        super().__init__(limits, backends)
        self.starts_at: dict[str, float] = {}  # by call id
        self._looked_at = ""

    def find(
        self, waiting: Waiting, now: float, kept: set[str], *, overdue: bool = False
    ) -> Place | Rejected | None:
        self._looked_at = waiting.call.id
        return super().find(waiting, now, kept, overdue=overdue)

    def _book(self, best: Offer, now: float) -> None:
        self.starts_at[self._looked_at] = round(now + best.wait_seconds, 6)
        super()._book(best, now)


class WholeLook(Told):
    """Prices and foresees everything."""

    def skips_all(self, rank: Rank) -> bool:
        return False

    def _quote(self, waiting: Waiting, backend: Backend) -> Quote:
        price = cost(waiting.call, backend, self.returns)
        own = price.prefill_seconds + price.decode_seconds
        return Quote(backend, 0, backend.service, price, own, 0.0)

    def _all_gated(self, call: Call, now: float, *, overdue: bool) -> list[Backend]:
        every = self._backends.values()
        room = [backend for backend in every if self._has_room(call, backend, now, overdue=overdue)]
        return room if all(filters.gated(backend, self._limits) for backend in room) else []

    def _choose(
        self, waiting: Waiting, tier: Sequence[Backend], now: float, kept: set[str], *, overdue: bool
    ) -> Place | None:
        call, limits, seen = waiting.call, self._limits, self.interactive_seen(now)
        starts: list[Offer] = []
        waits: list[Offer] = []
        own: list[float] = []
        open_: list[str] = []
        for backend in tier:
            reason = filters.blocked(call, backend, limits, now, interactive_seen=seen, overdue=overdue)
            if reason in (Reason.NOT_READY, Reason.PAUSED):
                waiting.why[backend.name] = reason
                continue
            price = cost(call, backend, self.returns)
            long = price.prefill_seconds > limits.prefill_gate_seconds
            if backend.name in kept:
                reason = Reason.KV_BUDGET
            if reason is None and long and filters.gated(backend, limits):
                reason = Reason.GATE
            if reason is None and len(tier) == 1:
                return Place(backend, price, long)
            own.append(price.prefill_seconds + price.decode_seconds)
            forecast = self._forecasts.get(backend.name) or Forecast(backend, limits, now)
            self._forecasts[backend.name] = forecast
            if reason is None:
                open_.append(backend.name)
                seconds = seconds_behind(call, backend, price, forecast.reading)
                starts.append(Offer(seconds, backend.last_grant, backend, price))
                continue
            waiting.why[backend.name] = reason
            reserved = filters.reserved_slots(call, backend, limits, overdue=overdue) if seen else 0
            wait = max(WAIT_SECONDS_MIN, forecast.wait(reserved, long=long))
            seconds = seconds_behind(call, backend, price, max(wait, forecast.booked))
            waits.append(Offer(seconds, backend.last_grant, backend, price, wait, reserved))
        start = min(starts, key=_rank, default=None)
        if start is not None:
            worth = self._worth(start)
            waits = [one for one in waits if seconds_behind(call, one.backend, one.price, 0.0) < worth]
        every = sorted((*starts, *waits), key=_rank)
        if not every:
            return None
        if start is not None and (every[0].seconds >= worth or waiting.held(now) >= limits.hold_seconds_max):
            rival = next((one for one in every if one is not start), None)
            return self._place(start, rival if every[0] is start else every[0])
        waiting.takes(own)
        waiting.why.update((name, Reason.HOLD) for name in open_)
        waiting.hold(now, holds=start is not None)
        self._holds += start is not None
        self._book(every[0], now)
        return None


def _rank(offer: Offer) -> tuple[float, int]:
    return offer[:2]


def _arrival(waiting: Waiting) -> tuple[float, str]:
    return waiting.call.arrived, waiting.call.id


def _flow(call: Call) -> object:
    return call.priority, call.accounts[1]


def a_gateway(limits: Limits, look: type[Told]) -> Admission:
    """One that looks in this way."""
    admission = Admission(limits)
    admission._placement = placement = look(limits, admission.backends)
    admission.gate_waits, admission.interactive_seen = placement.gate_waits, placement.interactive_seen
    return admission


def whole(limits: Limits) -> Admission:
    """A gateway that takes no short cuts."""
    admission = a_gateway(limits, WholeLook)
    admission.queue = WholeQueue(limits)
    return admission


class World:
    """One fleet and its calls, as chance has it, before both gateways."""

    def __init__(self, seed: int, look: type[Told] = Told) -> None:
        self._chance = chance = random.Random(seed)
        self.now = 0.0
        limits = Limits(
            hold_seconds_max=chance.choice((2.0, 10.0, 60.0)),
            interactive_reserve_slots=chance.choice((0, 1)),
            prefill_gate_seconds=chance.choice((0.2, 1.0)),
        )
        self.gateways = a_gateway(limits, look), whole(limits)
        self._running: list[str] = []
        self._reading: list[str] = []
        self._calls = 0
        for number in range(chance.choice((1, 3, 6, 12))):
            self._join(f"backend-{number}")

    def step(self) -> None:
        """Something happens."""
        chance = self._chance
        self.now += chance.choice((0.0, 0.0, 0.25, 1.0, chance.expovariate(0.5)))
        waiting = [one.call.id for one in self.gateways[0].queue]
        kind = chance.random()
        if kind < (0.45 if len(waiting) < 40 else 0.2):
            call = self._call()
            self.tell(lambda gateway: gateway.submit(call, self.now))
        elif kind < 0.65 and self._reading:
            id = self._reading.pop(chance.randrange(len(self._reading)))
            self._running.append(id)
            self.tell(lambda gateway: gateway.first_token(id, self.now))
        elif kind < 0.85 and self._running:
            id = self._running.pop(chance.randrange(len(self._running)))
            self.tell(lambda gateway: gateway.finish(id, self.now))
        elif kind < 0.88 and waiting:
            id = chance.choice(waiting)
            self.tell(lambda gateway: gateway.finish(id, self.now))
        elif kind < 0.9 and self._reading:
            id = self._reading.pop(0)
            lease = self.gateways[0].lease(id)
            assert lease is not None
            again, pause = lease.call, chance.choice((0.0, 3.0))
            self.tell(lambda gateway: gateway.not_started(again, self.now, pause))
        elif kind < 0.95:
            self._backend_changes()
        else:
            self.tell(lambda gateway: gateway.tick(self.now))

    def tell(self, event: Callable[[Admission], list[Decision]]) -> None:
        """Both gateways hear of it, and decide the same."""
        quick, full = (event(gateway) for gateway in self.gateways)
        assert list(map(_decision, quick)) == list(map(_decision, full))
        for told in (_state, _foreseen):
            assert told(self.gateways[0]) == told(self.gateways[1])
        assert self.gateways[0].gate_waits == self.gateways[1].gate_waits
        self._reading += [decision.lease.call.id for decision in quick if isinstance(decision, Granted)]

    def _backend_changes(self) -> None:
        chance = self._chance
        name = chance.choice(list(self.gateways[0].backends))
        foreign, state = chance.choice((0, 0, 1)), chance.choice((State.READY, State.READY, State.DOWN))
        if chance.random() < 0.5:
            self.tell(lambda gateway: gateway.observe(name, foreign, self.now))
        else:
            self.tell(lambda gateway: gateway.set_state(name, state, self.now))

    def _join(self, name: str) -> None:
        chance = self._chance
        service = ServiceModel(
            setup_seconds=chance.choice((0.05, 0.1)),
            prefill_tokens_per_second=chance.choice((500.0, 2000.0)),
            decode_base_seconds=chance.choice((0.01, 0.03)),
            starved_tokens_per_second=chance.choice((0.0, 3.0)),
        )
        slots, kv_tokens = chance.choice((1, 2, 4)), chance.choice((None, None, 30_000))
        context, backup = chance.choice((None, 16_000, 64_000)), chance.random() < 0.1
        for gateway in self.gateways:
            backend = Backend(
                name, service, PrefixShadow(), models=frozenset({MODEL}), routes=frozenset({ROUTE})
            )
            backend.backup = backup
            gateway.add(backend, self.now)
            gateway.resize(
                name,
                self.now,
                slots=slots,
                source=Source.REPORTED,
                context_tokens=context,
                kv_tokens=kv_tokens,
            )
            gateway.set_state(name, State.READY, self.now)

    def _call(self) -> Call:
        chance = self._chance
        self._calls += 1
        agent, thread, turns = chance.randrange(8), chance.randrange(3), chance.randrange(1, 12)
        long = chance.random() < 0.3
        return a_call(
            f"{self._calls}",
            arrived=self.now,
            priority=chance.choice((Priority.AGENT, Priority.AGENT, Priority.AGENT, *Priority)),
            accounts=(("k",), ("k", agent), ("k", agent, thread)),
            prompt_tokens=turns * (1200 if long else 100),
            output_tokens_max=chance.choice((50, 400)),
            chain=a_chain(1, *(10_000 + 100 * agent + 1000 * thread + turn for turn in range(turns))),
        )


def _decision(decision: Decision) -> tuple[object, ...]:
    if isinstance(decision, Granted):
        lease = decision.lease
        seconds = (lease.cost_seconds, lease.rival_seconds, lease.held_seconds)
        return lease.call.id, lease.backend, lease.rival, *(round(value, 6) for value in seconds)
    if isinstance(decision, Rejected):
        return decision.call.id, decision.refusal
    return decision.backend, decision.state


def _state(gateway: Admission) -> list[tuple[object, ...]]:
    return [
        (one.call.id, one.why, one.held_since, one.held_seconds, round(one.service_seconds, 6))
        for one in gateway.queue
    ]


def _foreseen(gateway: Admission) -> list[float | None]:
    placement = gateway._placement
    assert isinstance(placement, Told)
    return [placement.starts_at.get(one.call.id) for one in gateway.queue]


@pytest.mark.parametrize("seed", range(8))
def test_a_glance_decides_as_a_look_at_everything_would(seed: int) -> None:
    """And knows the same of everybody who waits on."""
    world = World(seed)
    for _ in range(EVENTS):
        world.step()


class Hasty(Told):
    """Looks at nobody again who holds."""

    def skips_all(self, rank: Rank) -> bool:
        return rank.hold is not Hold.NONE or super().skips_all(rank)


def test_would_find_a_planted_bug() -> None:
    """It is no use otherwise."""

    def live() -> None:
        for seed in range(10):
            world = World(seed, Hasty)
            for _ in range(EVENTS):
                world.step()

    with pytest.raises(AssertionError):
        live()
