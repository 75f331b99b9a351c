"""A call in the queue, and how long it may stay there."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.types import Call, Limits, Reason, Refusal, Rejected

UNAVAILABLE_RETRY_SECONDS = 5.0  # nobody knows when an engine comes back


@dataclass(slots=True, eq=False)
class Waiting:
    """A call that found no slot yet."""

    call: Call
    since: float  # when it came to wait, the last time: what an engine took before is no wait
    why: dict[str, Reason] = field(default_factory=dict)  # by backend, at the last look
    unavailable_since: float | None = None  # all backends of its model are down or ejected

    @property
    def parched(self) -> bool:
        """Whether it lacked nothing but kv budget somewhere: some may have been kept for it."""
        return Reason.KV_BUDGET in self.why.values()

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
