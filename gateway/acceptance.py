"""How many drafted tokens an engine accepts, where only the engine tells: of late, not of its whole life.

A draft model that stops to fit hides in totals since the start for as long as it once fitted.
"""

from __future__ import annotations

from gateway.engines.base import Drafts, Report
from gateway.recent import Ratio


class Acceptance:
    """The share at one engine, as long as its process lives."""

    def __init__(self) -> None:
        self._last: Drafts | None = None
        self._told: float | None = None  # by an engine that tells a share itself
        self._ratio = Ratio()

    def hear(self, report: Report) -> None:
        """The engine said this; what its totals have grown by counts."""
        self._told = report.spec_accept_ratio
        now, before = report.drafts, self._last
        if now is not None:
            if before is not None and now.drafted > before.drafted and now.accepted >= before.accepted:
                self._ratio.add([(now.accepted - before.accepted, now.drafted - before.drafted)])
            self._last = now

    @property
    def share(self) -> float | None:
        """Of late; of the engine's whole life until that grew; None while nothing was drafted."""
        if self._last is None:
            return self._told
        return self._last.share if self._ratio.value is None else self._ratio.value
