"""How many slots an engine has that keeps their number to itself: seen when they are all taken.

As many requests run in it then as it has slots, and others wait. Until that was seen, it is given as many as
it was seen to run and one more: so the search ends with one request that waits in the engine for two looks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SlotSearch:
    """What one process of an engine has shown.

    A request that has just arrived waits for one step, too, and one that ends runs until the next look: of
    two looks in a row the smaller counts.
    """

    found: int | None = None  # the most requests that ran while others waited
    tried: int = 1  # given to it at a time while nobody knows
    _full: int = 0  # requests that ran at the last look, if others waited
    _roomy: int = 0  # the same if none did

    def look(self, running: int, waiting: int) -> None:
        """So many requests run in it, and so many wait."""
        full, roomy = (running, 0) if waiting else (0, running)
        if seen := min(full, self._full):
            self.found = max(seen, self.found or 0)
        self.tried = max(self.tried, min(roomy, self._roomy) + 1)
        self._full, self._roomy = full, roomy
