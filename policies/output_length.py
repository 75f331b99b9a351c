"""How long answers are, by model and class: the median is what a call is expected to cost, the 90th
percentile the room that it is given.

`max_tokens` does not tell: agents send 65,536 on every call and use a few hundred.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

WINDOW = 200  # answers
LEARNT = 20  # answers until a 90th percentile means anything
KINDS_MAX = 1000  # models and classes; clients choose the names


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """Length of an answer. The defaults hold until a class's own are learnt."""

    median: int = 256
    p90: int = 2048


UNKNOWN = OutputTokens()


class OutputLength:
    """The latest answers of each model and class."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int], Window] = {}

    def of(self, model: str, priority: int) -> OutputTokens:
        """What an answer of this class has been like."""
        window = self._windows.get((model, priority))
        return UNKNOWN if window is None else window.tokens

    def learn(self, model: str, priority: int, tokens: int, limit: int | None) -> None:
        """An answer had so many tokens, reasoning included, and might have had `limit`.

        One that was cut off tells only that it would have been longer: that is news where it is longer
        than almost all others.
        """
        window = self._windows.get((model, priority))
        if window is None:
            if len(self._windows) >= KINDS_MAX:
                return
            window = self._windows[model, priority] = Window()
        if limit is None or tokens < limit or tokens >= window.tokens.p90:
            window.add(tokens)


class Window:
    """The latest answers of one kind, and their quantiles."""

    def __init__(self) -> None:
        self.tokens = UNKNOWN
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, tokens: int) -> None:
        """One more answer; the oldest one beyond the window no longer counts."""
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        if len(self._latest) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        if (count := len(self._sorted)) >= LEARNT:
            self.tokens = OutputTokens(self._sorted[count // 2], self._sorted[count * 9 // 10])
