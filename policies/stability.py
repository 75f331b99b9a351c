"""Where and why two turns of an agent stop sharing their prefix.

The last turn of each of the most recent conversations is held, to compare the next one with. A turn whose
chain contains that of an earlier turn continues it: that is found by a few look-ups. Any other is a new
conversation, unless what was said last stands in it, or what was said first: then it is one whose past has
changed, and the engine computes again what it knew.

Two conversations may begin alike, so where one leaves the other nothing is broken as long as nothing that
the engine had seen comes again behind that place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple

from policies.differences import ALIKE, Difference, first_difference
from policies.turn import Turn
from policies.volatility import Kind

TURNS_MAX = 10_000
BYTES_MAX = 1 << 26
TURN_BYTES_MAX = 1 << 22  # a longer one is not held
ENDS_MAX = 4  # turns of a conversation that may be continued: a second request may branch off an earlier one
SEARCHED_MAX = 64  # pieces from a turn's end among which the end of the one before is looked for
TELLING_BYTES = 128  # two messages of fewer may be the last ones of several conversations
CALLER_BYTES_MAX = 1 << 16  # of system prompts, by whose words callers are told apart
SHRUNK = 0.5  # a past that is rewritten to less than this share of its length was compacted

Digest = Callable[[bytes], int]
Key = tuple[str, int, int]


class Verdict(NamedTuple):
    """What became of the prefix that the engine had seen."""

    shared_bytes: int  # of the prompt, from its start, as they were before; 0 of a new conversation
    difference: Difference | None = None  # None: it only grew
    lost_bytes: int = 0  # behind the difference, known before and yet computed again
    new: bool = False  # it is no turn that continues another
    between: bool = False  # what differs does so between conversations


class Held:
    """The last turn of a conversation, and under what it can be found."""

    __slots__ = ("ends", "opening", "session", "tail", "turn")

    def __init__(self, session: str | None, turn: Turn, tail: Key, opening: Key) -> None:
        self.session = session
        self.turn = turn
        self.tail = tail
        self.opening = opening
        self.ends: deque[int] = deque((turn.chain[-1].digest,), ENDS_MAX)


class Stability:
    """The last turns of the most recent conversations."""

    def __init__(self, digest: Digest, *, turns_max: int = TURNS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._digest = digest
        self._turns_max = turns_max
        self._bytes_max = bytes_max
        self._held: OrderedDict[int, Held] = OrderedDict()  # by identity, the one used longest ago first
        self._ends: dict[tuple[str, int], Held] = {}  # by agent and digest of a whole prompt
        self._tails: dict[Key, Held] = {}  # by what was said last
        self._openings: dict[Key, Held] = {}  # by what was said first
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def look(self, agent: str, session: str | None, turn: Turn) -> Verdict:
        """Compare a turn with what the engine saw before, and hold it from now on.

        `session`: the conversation's name, where the client gives one.
        """
        for link in reversed(turn.chain):
            held = self._ends.get((agent, link.digest))
            if held is not None:
                latest = held.ends[-1] == link.digest
                self._hold(agent, session, turn, held if latest else None)
                return Verdict(link.end_bytes)
        if turn.first >= len(turn):  # nothing is said in it
            return Verdict(0)
        held, moved = self._predecessor(agent, session, turn)
        verdict = Verdict(0)
        if held is not None:
            verdict = _judge(held.turn, turn, moved)
            held.turn.settle()
        if verdict.difference is None:
            verdict = verdict._replace(new=True)
        self._hold(agent, session, turn, held if verdict.difference is not None else None)
        return verdict

    # -- finding the turn before ------------------------------------------------------------------

    def _predecessor(self, agent: str, session: str | None, turn: Turn) -> tuple[Held | None, int | None]:
        """The turn that this one may come from, and by how many pieces what was said last has moved; None:
        it is not in it any more."""
        key = self._opening(agent, turn)
        opening, tail = self._openings.get(key), None
        for place in range(len(turn) - 1, max(turn.first, len(turn) - SEARCHED_MAX) - 1, -1):
            held = self._tails.get(self._tail(agent, turn, place))
            if held is None or _apart(held.session, session):
                continue
            found = held, place - (len(held.turn) - 1)
            if held.opening == key:
                return found
            if turn.chain[place].end_bytes - turn.start(max(turn.first, place - 1)) >= TELLING_BYTES:
                tail = tail or found
        if opening is None or _apart(opening.session, session):
            return tail or (None, None)
        longer = len(turn) > len(opening.turn)
        return (opening, None) if longer or session == opening.session is not None else tail or (None, None)

    def _tail(self, agent: str, turn: Turn, place: int) -> Key:
        """This piece and the one before it, if both are said."""
        before = self._digest(turn.kept(place - 1)) if place > turn.first else 0
        return agent, before, self._digest(turn.kept(place))

    def _opening(self, agent: str, turn: Turn) -> Key:
        return agent, 0, self._digest(turn.kept(turn.first))

    # -- holding ----------------------------------------------------------------------------------

    def _hold(self, agent: str, session: str | None, turn: Turn, before: Held | None) -> None:
        """Hold a turn, in the place of the one that it comes from."""
        if before is not None:
            self._forget(before)
        if turn.memory_bytes > TURN_BYTES_MAX or turn.first >= len(turn):
            return
        held = Held(session, turn, self._tail(agent, turn, len(turn) - 1), self._opening(agent, turn))
        if before is not None:
            for end in (*before.ends, turn.chain[-1].digest):
                if end in held.ends:
                    held.ends.remove(end)
                held.ends.append(end)
        self._held[id(held)] = held
        self.memory_bytes += turn.memory_bytes
        for end in held.ends:
            self._ends[agent, end] = held
        self._tails[held.tail] = self._openings[held.opening] = held
        turn.settle()
        while len(self._held) > self._turns_max or self.memory_bytes > self._bytes_max:
            self._forget(next(iter(self._held.values())))

    def _forget(self, held: Held) -> None:
        del self._held[id(held)]
        self.memory_bytes -= held.turn.memory_bytes
        agent = held.tail[0]
        for end in held.ends:
            if self._ends.get((agent, end)) is held:
                del self._ends[agent, end]
        if self._tails.get(held.tail) is held:
            del self._tails[held.tail]
        if self._openings.get(held.opening) is held:
            del self._openings[held.opening]


def _apart(a: str | None, b: str | None) -> bool:
    """Whether two conversations are named, and not alike."""
    return a is not None and b is not None and a != b


def _judge(old: Turn, new: Turn, moved: int | None) -> Verdict:
    """What a turn has lost of the one that it comes from."""
    difference = first_difference(old, new)
    if difference is None:
        return Verdict(new.chain[min(len(old), len(new)) - 1].end_bytes)
    place = difference.place
    said = place >= new.first
    shared = new.start(max(0, place)) + difference.at
    in_place = moved == 0 or (moved is None and len(new) > len(old))
    if in_place:
        end = new.chain[len(old) - 1].end_bytes
        lost = end - shared
        compacted = said and end - new.start(place) < SHRUNK * (old.size - old.start(place))
        broken = moved == 0 or difference.sure or _repeated(old, new, place) > 0
    else:
        lost = _repeated(old, new, place)
        compacted = moved is None or moved < 0
        broken = lost > 0 and (said or moved is not None)
    if not broken or (difference.kind in (Kind.TOOLS, Kind.SYSTEM) and _another_caller(old, new)):
        return Verdict(shared)
    if compacted and difference.kind is not Kind.REASONING:
        difference = difference._replace(kind=Kind.COMPACTION)
    return Verdict(shared, difference, lost)


def _repeated(old: Turn, new: Turn, place: int) -> int:
    """Bytes behind this piece that stood in the old turn, too."""
    had = {old.kept(at) for at in range(max(0, place), len(old))}
    again = (at for at in range(max(0, place), len(new)) if new.kept(at) in had)
    return sum(new.chain[at].end_bytes - new.start(at) for at in again)


def _another_caller(old: Turn, new: Turn) -> bool:
    """Whether the system prompts have little in common: what names a conversation quotes it, as do other
    helpers of an agent."""
    if old.first != new.first:
        return True
    heads = [b"".join(map(turn.kept, range(1, turn.first))) for turn in (old, new)]
    if heads[0] == heads[1]:
        return False
    was, now = (set(head[:CALLER_BYTES_MAX].split()) for head in heads)
    return len(was & now) < ALIKE * max(len(was), len(now))
