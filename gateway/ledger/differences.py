"""Where the ledger and the engines do not agree on what runs: by more than one request, for some seconds, at
every look. One look alone may fall between a slot that is taken and its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

DIFFERENCE_MAX = 1  # requests; one may be on its way
LASTS_SECONDS = 5.0


class Differences:
    """Of the engines of one gateway, by the names of their backends."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # by backend and kind
        self._since: dict[str, tuple[str, float]] = {}  # kind, and when it was seen first
        self._counted: set[str] = set()  # those that last

    def looked(self, name: str, running: int, held: int, now: float) -> bool:
        """The engine runs so many requests that are not this gateway's, and others hold so many slots there.
        True when these have not agreed for too long, once until they do.

        More run than are held: `unknown`; fewer: `idle`.
        """
        if abs(running - held) <= DIFFERENCE_MAX:
            self._since.pop(name, None)
            self._counted.discard(name)
            return False
        kind = "unknown" if running > held else "idle"
        if self._since.get(name, ("", 0.0))[0] != kind:
            self._since[name] = kind, now
            self._counted.discard(name)
        if name in self._counted or now - self._since[name][1] <= LASTS_SECONDS:
            return False
        self._counted.add(name)
        self.counts[name, kind] += 1
        return True

    def keep(self, names: Collection[str]) -> None:
        """Forget all other backends."""
        for name in self._since.keys() - names:
            del self._since[name]
            self._counted.discard(name)
        for key in [key for key in self.counts if key[0] not in names]:
            del self.counts[key]
