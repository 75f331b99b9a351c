"""How long answers are, by model and class: the mean is what a call is expected to cost, since seconds grow
with tokens; the 90th percentile is the room that it is given.

`max_tokens` does not tell: agents send 65,536 on every call and use a few hundred. What a conversation's own
answers were like tells more than its class: one that writes files goes on writing files.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import NamedTuple

WINDOW = 200  # answers
LEARNT = 20  # answers until a 90th percentile means anything
KINDS_MAX = 1000  # models and classes; clients choose the names
CONVERSATIONS_MAX = 10_000
CLASS_WEIGHT = 2  # answers of the conversation's own that the class weighs as much as


class OutputTokens(NamedTuple):
    """Length of an answer. The defaults hold until a class's own are learnt."""

    mean: int = 256
    p90: int = 2048


UNKNOWN = OutputTokens()


class OutputLength:
    """The latest answers of each model and class, and the mean of each conversation's."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, int], Window] = {}
        self._conversations: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()  # answers, tokens

    def of(self, model: str, priority: int, conversation: Hashable = None) -> OutputTokens:
        """What an answer of this class, in this conversation, has been like."""
        window = self._windows.get((model, priority))
        tokens = UNKNOWN if window is None else window.tokens
        own = self._conversations.get(conversation)
        if own is None:
            return tokens
        mean = (CLASS_WEIGHT * tokens.mean + own[1]) // (CLASS_WEIGHT + own[0])
        return OutputTokens(mean, tokens.p90)

    def learn(
        self, model: str, priority: int, tokens: int, limit: int | None, conversation: Hashable = None
    ) -> None:
        """An answer had so many tokens, reasoning included, and might have had `limit`.

        One that was cut off tells only that it would have been longer: that is news where it is longer
        than almost all others.
        """
        if conversation is not None:
            answers, sum_tokens = self._conversations.pop(conversation, (0, 0))
            self._conversations[conversation] = (answers + 1, sum_tokens + tokens)
            if len(self._conversations) > CONVERSATIONS_MAX:
                self._conversations.popitem(last=False)
        window = self._windows.get((model, priority))
        if window is None:
            if len(self._windows) >= KINDS_MAX:
                return
            window = self._windows[model, priority] = Window()
        if limit is None or tokens < limit or tokens >= window.tokens.p90:
            window.add(tokens)

    def lesson(self, model: str, priority: int) -> OutputTokens | None:
        """What was learnt of a class, for another gateway's `begin`; None: nothing."""
        window = self._windows.get((model, priority))
        return window.tokens if window is not None and window.learnt else None

    def begin(self, model: str, priority: int, lesson: OutputTokens) -> None:
        """Another gateway's `lesson` holds until enough was learnt here."""
        window = self._windows.get((model, priority)) or Window()
        if not window.learnt and len(self._windows) < KINDS_MAX:
            window.tokens = lesson
            self._windows[model, priority] = window


class Window:
    """The latest answers of one kind, and what they come to."""

    def __init__(self) -> None:
        self.tokens = UNKNOWN
        self._latest: deque[int] = deque()
        self._sorted: list[int] = []
        self._sum = 0

    @property
    def learnt(self) -> bool:
        """Whether its own answers tell."""
        return len(self._sorted) >= LEARNT

    def add(self, tokens: int) -> None:
        """One more answer; the oldest one beyond the window no longer counts."""
        self._latest.append(tokens)
        insort(self._sorted, tokens)
        self._sum += tokens
        if len(self._latest) > WINDOW:
            oldest = self._latest.popleft()
            self._sum -= oldest
            del self._sorted[bisect_left(self._sorted, oldest)]
        if (count := len(self._sorted)) >= LEARNT:
            self.tokens = OutputTokens(self._sum // count, self._sorted[count * 9 // 10])
