"""What a backend was busy with, as sums over time: two readings tell what went on between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from policies.prefix import NOTHING, Booking


class Reading(NamedTuple):
    """Sums since the beginning."""

    at: float
    prefill_seconds: float  # in which a prompt was being read
    sequence_seconds: float  # of sequences that decoded, side by side


class Load:
    """The running sums of one backend."""

    __slots__ = ("_at", "_decoding", "_prefill_seconds", "_prefilling", "_sequence_seconds")

    def __init__(self) -> None:
        self._at = 0.0
        self._decoding = 0
        self._prefilling = False
        self._prefill_seconds = 0.0
        self._sequence_seconds = 0.0

    def change(self, now: float, decoding: int, prefilling: bool) -> None:
        """From now on so many sequences decode, and a prompt is being read or not."""
        passed = now - self._at
        if passed:
            self._at = now
            self._sequence_seconds += self._decoding * passed
            if self._prefilling:
                self._prefill_seconds += passed
        self._decoding, self._prefilling = decoding, prefilling

    def read(self, now: float) -> Reading:
        """The sums up to now."""
        self.change(now, self._decoding, self._prefilling)
        return Reading(now, self._prefill_seconds, self._sequence_seconds)


@dataclass(slots=True, eq=False)
class Work:
    """How a lease's call fared, as far as admission can see: the one part of a lease that changes."""

    alone: bool = False  # when it was granted, the backend was reading no other prompt
    begun: float | None = None  # when the engine came to read it, which it does one by one; None: unknown
    booking: Booking = NOTHING
    first_token: Reading | None = None
    ended: Reading | None = None  # when its slot was given back
