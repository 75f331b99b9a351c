"""Which conversations will ask again soon: a prompt that gives way in a cache costs nothing if nobody comes
back for it, and all of its seconds if somebody does.

A conversation that came back after each of its answers so far is expected for twice its usual pause. One that
had a single answer may be a question and no conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from policies.types import Call

WEIGHT = 0.3  # of the newest pause
PAUSES = 2.0  # for so many usual pauses somebody is expected
SLACK_SECONDS = 1.0  # and for a second
SOON_SECONDS = 60.0  # who usually takes longer is not: too much happens to a cache meanwhile
CONVERSATIONS_MAX = 10_000


class Talk:
    """One conversation."""

    __slots__ = ("ended", "pause_seconds")

    def __init__(self) -> None:
        self.pause_seconds: float | None = None  # usually, between an answer and the next question
        self.ended: float | None = None  # its last answer; None: it asks again already


class Returns:
    """The latest conversations, by name and by what a cache holds of them."""

    def __init__(self) -> None:
        self._talks: OrderedDict[Hashable, Talk] = OrderedDict()  # the one that asked longest ago first
        self._held: OrderedDict[int, Talk] = OrderedDict()  # by the last digests of their prompts
        self._now = 0.0

    def asks(self, call: Call, now: float) -> None:
        """A call arrived."""
        self._now = now
        talk = self._talks.get(call.conversation)
        if talk is None or talk.ended is None:
            return
        pause, usual = now - talk.ended, talk.pause_seconds
        talk.pause_seconds = pause if usual is None else usual + WEIGHT * (pause - usual)
        talk.ended = None

    def answered(self, call: Call, now: float) -> None:
        """A call left its slot."""
        self._now = now
        if call.conversation is None or not call.chain:
            return
        talk = self._talks.pop(call.conversation, None) or Talk()
        talk.ended = now
        self._talks[call.conversation] = talk
        digest = call.chain[-1].digest
        self._held.pop(digest, None)
        self._held[digest] = talk
        for known in (self._talks, self._held):
            if len(known) > CONVERSATIONS_MAX:
                known.popitem(last=False)

    def expected(self, digest: int) -> bool:
        """Whether the conversation whose prompt ends in this digest will go on, or does already; as of the
        last event."""
        talk = self._held.get(digest)
        if talk is None or talk.pause_seconds is None:
            return False
        if talk.ended is None:
            return True
        until = PAUSES * talk.pause_seconds + SLACK_SECONDS
        return self._now - talk.ended <= until <= SOON_SECONDS


NOBODY = Returns()  # is known
