"""How many repeats are allowed: a share of the requests, so that an outage is not multiplied."""

from __future__ import annotations

SHARE = 0.2  # of the requests of the window, as in Envoy's and Finagle's budgets
LEAST = 3
WINDOW_SECONDS = 60.0


class RetryBudget:
    """Counts requests and repeats of the current window."""

    def __init__(self) -> None:
        self._since = 0.0
        self._requests = 0
        self._repeats = 0

    def request(self, now: float) -> None:
        """A request arrived."""
        self._turn(now)
        self._requests += 1

    def allows(self, now: float) -> bool:
        """Whether one more repeat is within the budget; if so, it is taken."""
        self._turn(now)
        if self._repeats >= max(LEAST, SHARE * self._requests):
            return False
        self._repeats += 1
        return True

    def _turn(self, now: float) -> None:
        if now - self._since >= WINDOW_SECONDS:
            self._since, self._requests, self._repeats = now, 0, 0
