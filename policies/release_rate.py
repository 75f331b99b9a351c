"""How often a slot frees, or a call starts, while calls wait: what Retry-After and predicted starts are told
from."""

from __future__ import annotations

WEIGHT = 0.2  # of the newest interval


class ReleaseRate:
    """A moving average of the seconds between two releases. An idle hour says nothing about it."""

    def __init__(self) -> None:
        self.seconds: float | None = None  # None: not seen yet
        self._last = 0.0  # release, or since when calls wait, if that is later

    def waits(self, now: float) -> None:
        """The first call begins to wait."""
        self._last = now

    def expected(self, now: float) -> float:
        """Seconds from one to the next, with the time since the last one, if that is longer already; 0: none
        was seen."""
        if self.seconds is None:
            return 0.0
        return self.seconds + WEIGHT * max(0.0, now - self._last - self.seconds)

    def released(self, now: float, *, waiting: bool) -> None:
        """A slot was released; `waiting`: calls waited for it."""
        if waiting:
            seconds = now - self._last
            self.seconds = (
                seconds if self.seconds is None else self.seconds + WEIGHT * (seconds - self.seconds)
            )
        self._last = now
