"""A call in the queue, and how long it may stay there."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from policies.cost import Cost
from policies.service_model import ServiceModel
from policies.types import Backend, Call, Limits, Reason, Refusal, Rejected

UNAVAILABLE_RETRY_SECONDS = 5.0  # nobody knows when an engine comes back
SERVICE_SECONDS_MIN = 0.2


class Quote(NamedTuple):
    """What a call costs on a backend as it was."""

    backend: Backend
    changes: int  # of it until then
    service: ServiceModel
    price: Cost
    own_seconds: float  # of its slot
    floor: float  # what it costs there at least, however soon it starts


class Hold(enum.IntEnum):
    """Whether a call leaves a free slot to others, for a better one."""

    NONE = enum.auto()
    HOLDS = enum.auto()
    OVER = enum.auto()  # it does, and may do so no longer


@dataclass(slots=True, eq=False)
class Waiting:
    """A call that found no slot yet."""

    call: Call
    since: float  # when it came to wait, the last time: what an engine took before is no wait
    why: dict[str, Reason] = field(default_factory=dict)  # by backend, at the last look
    unavailable_since: float | None = None  # all backends of its model are down or ejected
    service_seconds: float = SERVICE_SECONDS_MIN  # on the backend that would be done first
    # In the queue: how far it goes after others of its class by what its accounts had, see `order`.
    rank_key: tuple[int, Hold] = (0, Hold.NONE)
    held_seconds: float = 0.0  # for which it left slots free that it could have taken
    held_since: float | None = None  # it does so now
    quotes: dict[str, Quote] = field(default_factory=dict)  # by backend

    @property
    def parched(self) -> bool:
        """Whether it lacked nothing but kv budget somewhere: some may have been kept for it."""
        return Reason.KV_BUDGET in self.why.values()

    def takes(self, seconds: Iterable[float]) -> None:
        """So long on each of the backends that may serve it."""
        self.service_seconds = max(SERVICE_SECONDS_MIN, min(seconds))

    def held(self, now: float) -> float:
        """Seconds for which it left slots free until now."""
        return self.held_seconds + (0.0 if self.held_since is None else now - self.held_since)

    def holding(self, now: float, seconds_max: float) -> Hold:
        """Whether it holds, if it may do so for so long in all."""
        if self.held_since is None:
            return Hold.NONE
        return Hold.HOLDS if self.held(now) < seconds_max else Hold.OVER

    def hold(self, now: float, *, holds: bool) -> None:
        """From now on it leaves a slot free, or there is none that it could take."""
        if holds and self.held_since is None:
            self.held_since = now
        elif not holds and self.held_since is not None:
            self.held_seconds, self.held_since = self.held(now), None

    def expired(
        self, now: float, limits: Limits, wait_seconds: float | None, *, unavailable: bool
    ) -> Rejected | None:
        """The rejection of a call that waited as long as it may; `order` calls one overdue much earlier.

        `wait_seconds`: what a newcomer would wait. `unavailable`: all its backends are down or ejected.
        """
        latest = self.since + limits.wait_seconds_max
        if self.call.start_by is not None:
            latest = min(latest, self.call.start_by)
        if now >= latest:
            return Rejected(self.call, Refusal.WAIT_TOO_LONG, wait_seconds)
        if not unavailable:
            self.unavailable_since = None
        elif self.unavailable_since is None:
            self.unavailable_since = now
        elif now - self.unavailable_since >= limits.unavailable_grace_seconds:
            return Rejected(self.call, Refusal.NO_BACKEND_READY, UNAVAILABLE_RETRY_SECONDS)
        return None
