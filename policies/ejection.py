"""When a backend that fails is left alone, for how long, and how it comes back.

Statistical outlier rules need more hosts and requests than a fleet of two to six engines has, so
only failures in a row count. The pause grows from 30 s to 300 s; after it exactly one request tries.
After that it gets its slots back one by one, with each first token: an engine that has just stood still may
be slow, and what fails there fails for one or two and not for all. Client errors and overload answers are not
failures.

What another gateway has ejected is left alone here as well, until it works again there, but not for much
longer than a first pause. If it has just worked here, it is not; one failure more is enough then.
"""

from __future__ import annotations

from dataclasses import dataclass

FAILURES_IN_A_ROW = 3
PAUSE_SECONDS = 30.0
PAUSE_SECONDS_MAX = 300.0
TOLD_SECONDS = 45.0  # of one that another gateway ejected, and is to try first
RAMP_SLOTS = 2  # once the one that tried has its first token


@dataclass(slots=True)
class Ejection:
    """Failures of one backend."""

    failures: int = 0
    ejections: int = 0  # since the last success
    until: float = 0.0
    worked_at: float = float("-inf")  # a request got its first token

    def failed(self, now: float, *, trial: bool = False) -> bool:
        """Count a failure; True if the backend is to be ejected (until `self.until`)."""
        self.failures += 1
        if not trial and self.failures < FAILURES_IN_A_ROW:
            return False
        self.ejections += 1
        self.until = now + min(PAUSE_SECONDS * self.ejections, PAUSE_SECONDS_MAX)
        return True

    def told(self, now: float) -> bool:
        """Another gateway has ejected it; True if it is to be ejected here, too (until `self.until`)."""
        self.failures = max(self.failures, FAILURES_IN_A_ROW - 1)
        if now - self.worked_at < PAUSE_SECONDS:
            return False
        self.ejections += 1
        self.until = now + TOLD_SECONDS
        return True

    def worked(self, now: float) -> None:
        """A request got its first token."""
        self.worked_at = now
        self.succeeded()

    def succeeded(self) -> None:
        """The record is clean again."""
        self.failures = 0
        self.ejections = 0
        self.until = 0.0
