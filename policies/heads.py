"""The heads that an agent's conversations begin with, and what makes each new one read its own.

Agents of one kind share tools and system prompt, so the engine has them from the conversation before. A time
or an identifier in it takes that away from every new conversation, which no turn of one conversation shows.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from policies.differences import PATH_LENGTH_MAX, Difference, of_tools, way
from policies.turn import Turn
from policies.volatility import Kind, change_at, common, is_blank

AGENTS_MAX = 1000
BYTES_MAX = 1 << 24
HEAD_BYTES_MAX = 1 << 17  # to look at a longer one would hold up all else for too long
FAMILIES_MAX = 4  # of an agent: its helpers have other heads
SEEN_MAX = 8  # latest heads of a family
SPANS_MAX = 8  # that differ between two of a family
LOST_BYTES_MIN = 1024  # behind the first of them; less is read again faster than its loss can be noticed
CHANGES_MIN = 2  # in a row: a new day is one
KEPT_SECONDS = 3600.0  # what was used longer ago has left most caches, whatever it was

Digest = Callable[[bytes], int]
Pieces = tuple[bytes, ...]


class Drift(NamedTuple):
    """What a new conversation does not share with the one before, although it might."""

    difference: Difference
    shared_bytes: int
    lost_bytes: int


@dataclass(slots=True)
class Family:
    """Heads that differ in nothing but volatile spans."""

    pieces: Pieces  # of the latest one: tools, system prompts
    seen: deque[int]  # digests of the latest ones
    used: float
    changes: int = 0  # conversations in a row that began with a head of their own
    way: tuple[int, int, str] = (-1, 0, "")  # to what differed last, by piece and byte


class SharedHeads:
    """What the latest conversations of each agent began with."""

    def __init__(self, digest: Digest, *, bytes_max: int = BYTES_MAX) -> None:
        self._digest = digest
        self._bytes_max = bytes_max
        self._agents: OrderedDict[str, list[Family]] = OrderedDict()
        self.memory_bytes = 0

    def look(self, agent: str, turn: Turn, now: float) -> Drift | None:
        """A conversation begins, or one that nobody knows goes on: what keeps it from sharing its head, if
        that was so with the one before it, too."""
        pieces = (turn.model.encode(), *map(turn.kept, range(turn.first)))
        size = sum(map(len, pieces))
        if not LOST_BYTES_MIN <= size <= HEAD_BYTES_MAX:
            return None
        digest = self._digest(b"\0".join(pieces))
        families = self._agents.setdefault(agent, [])
        self._agents.move_to_end(agent)
        for family in reversed(families):
            if digest in family.seen:
                family.changes, family.used = 0, now
                return None
        for family in reversed(families):
            drift = _drift(family, pieces, turn)
            if drift is not None:
                family.changes = family.changes + 1 if now - family.used < KEPT_SECONDS else 1
                self.memory_bytes += size - sum(map(len, family.pieces))
                family.pieces, family.used = pieces, now
                family.seen.append(digest)
                return drift if family.changes >= CHANGES_MIN else None
        families.append(Family(pieces, deque((digest,), SEEN_MAX), now))
        self.memory_bytes += size
        self._bound(families)
        return None

    def _bound(self, families: list[Family]) -> None:
        if len(families) > FAMILIES_MAX:
            oldest = min(families, key=lambda family: family.used)
            families.remove(oldest)
            self.memory_bytes -= sum(map(len, oldest.pieces))
        while len(self._agents) > AGENTS_MAX or self.memory_bytes > self._bytes_max:
            _, gone = self._agents.popitem(last=False)
            self.memory_bytes -= sum(len(piece) for family in gone for piece in family.pieces)


def _drift(family: Family, new: Pieces, turn: Turn) -> Drift | None:
    """Where a head leaves another one, if it is for the most part the same behind that; else None."""
    old = family.pieces
    if old[0] != new[0]:
        return None  # models share nothing
    first: tuple[Kind, int, int] | None = None  # kind, piece, its byte
    lost = 0
    for place, (was, now) in enumerate(zip(old[1:], new[1:], strict=False)):
        alike, kind, at = (len(now), None, 0) if was == now else _alike(was, now, is_tools=place == 0)
        if first is None and kind is not None:
            first = kind, place, at
            lost = -at
        lost += alike
        if alike < len(now):
            break
    if first is None or lost < LOST_BYTES_MIN:
        return None
    kind, place, at = first
    if family.way[:2] != (place, at):  # it stands in the same place each time, and to read it takes long
        family.way = place, at, _keys(old[place + 1], new[place + 1])
    path = (turn.path(place) + family.way[2])[:PATH_LENGTH_MAX]
    difference = Difference(kind, place, at, turn.pieces[place].place(at), path, True, True)
    return Drift(difference, turn.start(place) + at, lost)


def _alike(was: bytes, now: bytes, *, is_tools: bool) -> tuple[int, Kind | None, int]:
    """How much of a piece is the same if volatile spans do not count; what differs first, and where."""
    size, first, at = len(now), None, common(was, now)
    if is_tools:
        try:
            first = of_tools(json.loads(was), json.loads(now))
        except (ValueError, RecursionError):
            first = None
        return (size, first, at) if first in (Kind.TOOL_ORDER, Kind.TOOL_KEY_ORDER) else (at, None, at)
    start = at
    for _ in range(SPANS_MAX):
        if is_blank(was, now, at):
            return size, first or Kind.WHITESPACE, start
        change = change_at(was, now, at)
        if change is None:
            break
        first = first or change.kind
        now = now[: change.now.start] + was[change.was.start : change.was.end] + now[change.now.end :]
        if was == now:
            return size, first, start
        at = common(was, now)
    return at, first, start


def _keys(was: bytes, now: bytes) -> str:
    """The way to the value that differs."""
    try:
        return way(json.loads(was), json.loads(now))[0]
    except (ValueError, RecursionError):
        return ""
