"""When each waiting call will probably start: for people to read. Admission itself looks anew at every event.

The calls are placed in the order in which they may start, each where it costs least with its wait; those
after it count on that, as they do in life. Who will come meanwhile and go before them, nobody knows: that
shows in the pace at which calls of their group have started since some wait; none starts sooner than at that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from policies import filters
from policies.admission import Admission
from policies.cost import Cost, cost, seconds_behind
from policies.forecast import NEVER_SECONDS, Booking, Forecast
from policies.queue import group_of
from policies.rank import Group
from policies.tiers import tiers
from policies.types import Backend, State
from policies.waiting import Waiting


def starts(calls: Iterable[Waiting], admission: Admission, now: float) -> Iterator[float | None]:
    """Seconds from now until each of the calls starts, which come in the order of the queue; None: nothing
    runs whose end could make room for it."""
    limits, seen = admission.limits, admission.interactive_seen(now)
    ready = [backend for backend in admission.backends.values() if backend.state is State.READY]
    places: Counter[Group] = Counter()
    forecasts = {backend.name: Forecast(backend, limits, now) for backend in ready}
    for waiting in calls:
        call = waiting.call
        best: tuple[float, Booking, Forecast] | None = None
        for backend in next(iter(tiers(call, [b for b in ready if b.serves(call)])), ()):
            price, forecast = _price(waiting, backend), forecasts[backend.name]
            long = filters.long(price, limits)
            reserved = filters.reserved_slots(call, backend, limits, overdue=False) if seen else 0
            wait = max(forecast.wait(reserved, long=long), backend.paused_until - now)
            seconds = seconds_behind(call, backend, price, max(wait, forecast.booked))
            if best is None or seconds < best[0]:
                booking = Booking(reserved, wait, price.prefill_seconds, price.decode_seconds, long)
                best = seconds, booking, forecast
        if best is None or best[1].start_seconds >= NEVER_SECONDS:
            yield None
            continue
        _, booking, forecast = best
        forecast.book(booking)
        group = group_of(call)
        places[group] += 1
        yield max(booking.start_seconds, places[group] * admission.queue.pace(group, now))


def _price(waiting: Waiting, backend: Backend) -> Cost:
    """What the call cost there at the last look, which is never long ago."""
    known = waiting.quotes.get(backend.name)
    return cost(waiting.call, backend) if known is None else known.price
