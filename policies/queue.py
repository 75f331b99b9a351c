"""The one queue: the calls that wait, their order, the bounds they keep, and how fast the queue moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from policies import order
from policies.release_rate import ReleaseRate
from policies.types import Call, Limits, Priority, Refusal, Rejected
from policies.waiting import Waiting


class Queue:
    """Calls without a slot, by id. Iterating takes them as they came; `ordered` as they may start."""

    def __init__(self, limits: Limits) -> None:
        self.bytes = 0  # of their bodies
        self._limits = limits
        self._waiting: dict[str, Waiting] = {}
        self._releases = ReleaseRate()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: str) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        """A copy: whoever looks at them may take some out."""
        return iter(tuple(self._waiting.values()))

    def put(self, waiting: Waiting, now: float) -> None:
        """A call begins to wait."""
        if not self._waiting:
            self._releases.waits(now)
        self._waiting[waiting.call.id] = waiting
        self.bytes += waiting.call.body_bytes

    def take(self, id: str) -> Waiting:
        """A call waits no more, for whatever reason."""
        waiting = self._waiting.pop(id)
        self.bytes -= waiting.call.body_bytes
        return waiting

    def released(self, now: float) -> None:
        """A slot became free."""
        self._releases.released(now, waiting=bool(self._waiting))

    def ordered(self, now: float) -> list[Waiting]:
        """Those who wait, in the order in which they may claim a slot."""
        calls = order.ordered([waiting.call for waiting in self._waiting.values()], now)
        return [self._waiting[call.id] for call in calls]

    def lengths(self) -> Counter[Priority]:
        """Waiting calls by class."""
        return Counter(waiting.call.priority for waiting in self._waiting.values())

    def predicted_wait(self, position: int) -> float | None:
        """Seconds until the call at this place starts; None until releases were seen."""
        seconds = self._releases.seconds
        return None if seconds is None else (position + 1) * seconds

    def over_bounds(self, call: Call, now: float) -> Rejected | None:
        """The rejection of the call that just came to wait: one too many, or it cannot wait that long."""
        if len(self._waiting) > self._limits.waiting_max or self.bytes > self._limits.waiting_bytes_max:
            return Rejected(call, Refusal.QUEUE_FULL, self.predicted_wait(0))
        if call.start_by is None:
            return None
        rank = order.rank(call, now)
        wait = self.predicted_wait(sum(order.rank(w.call, now) < rank for w in self._waiting.values()))
        late = wait is not None and now + wait > call.start_by
        return Rejected(call, Refusal.WAIT_TOO_LONG, wait) if late else None
