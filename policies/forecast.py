"""When a backend could take one more call: what runs there now, and who waits for it already.

A prompt that is being read holds up those behind it, and nearly stops every stream; so what is left of the
prefills counts for all. Nobody knows how long an answer will be: one that was expected to be over is taken
to have a part of its usual length still to come, or of the length that it has, if that is more.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from policies.types import Backend, Limits

LEFT_SHARE = 0.25  # of what an answer usually takes, or has taken, at least still to come
READ_SHARE_LEFT = 0.1  # the same of a prefill
FOREIGN_SECONDS = 30.0  # that a request of somebody else may still take
NEVER_SECONDS = 3600.0  # until a slot is free where nothing runs that could end


class Booking(NamedTuple):
    """A call that waits for this backend."""

    reserved: int  # slots that it may not take
    start_seconds: float
    prefill_seconds: float
    decode_seconds: float
    long: bool


class Forecast:
    """One backend, in seconds from now."""

    __slots__ = ("_bookings", "_ends", "_free", "_gate", "booked", "reading")

    def __init__(self, backend: Backend, limits: Limits, now: float) -> None:
        service, prefilling = backend.service, backend.prefilling
        token_seconds = service.token_seconds(max(1, len(backend.leases)))
        stopped = max(0.0, 1 - service.starved_tokens_per_second * token_seconds)
        reading = gate = 0.0
        ends: list[float] = []
        for id, lease in backend.leases.items():
            if id in prefilling:
                left = lease.prefill_seconds
                if (begun := lease.work.begun) is not None:
                    left = max(READ_SHARE_LEFT * left, left - (now - begun))
                reading += left
                if lease.long:
                    gate = reading
                ends.append(lease.decode_seconds + (1 - stopped) * reading)
            else:
                first = lease.work.first_token
                passed = now - (lease.granted if first is None else first.at)
                usual = lease.decode_seconds
                ends.append(max(LEFT_SHARE * max(usual, passed), usual - passed))
        self.reading = reading  # until the prompts that are there have been read
        self.booked = reading  # and those of the calls that wait for it
        self._ends = sorted(end + stopped * reading for end in ends)  # of those that hold slots
        self._ends += [FOREIGN_SECONDS] * backend.foreign
        self._free = backend.free
        self._gate = gate if backend.long_prefills >= limits.long_prefills_per_backend else 0.0
        self._bookings: list[Booking] = []

    def wait(self, reserved: int, *, long: bool) -> float:
        """Seconds until a slot is free beyond the reserved ones and, for a long prompt, the gate is open."""
        slot = 0.0
        if self._free <= reserved:
            ends = self._ends
            slot = ends[min(reserved - self._free, len(ends) - 1)] if ends else NEVER_SECONDS
        return max(slot, self._gate) if long else slot

    def book(self, booking: Booking) -> None:
        """A call will wait for this backend: who comes after it counts on that."""
        self._bookings.append(booking)
        if self._free > booking.reserved:
            self._free -= 1
        elif self._ends:
            del self._ends[min(booking.reserved - self._free, len(self._ends) - 1)]
        self.booked = max(self.booked, booking.start_seconds) + booking.prefill_seconds
        if booking.long:
            self._gate = max(self._gate, self.booked)
        insort(self._ends, self.booked + booking.decode_seconds)

    def again(self, backend: Backend, limits: Limits, now: float) -> Forecast:
        """The same after a call has started there."""
        forecast = Forecast(backend, limits, now)
        for booking in self._bookings:
            forecast.book(booking)
        return forecast
