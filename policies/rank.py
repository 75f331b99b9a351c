"""Waiting calls between which class and accounts make no difference, best first: by response ratio.

That is (wait + service) / service: short calls go first, but each second of waiting counts for them all, so
long ones come to their turn. All ratios grow, each at a pace of its own, so nothing stays sorted by them. But
of calls of about one length the one that came first goes first, or nearly so: they are kept by length and
arrival, and of a deep queue only as many are compared as are asked for.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from policies.types import Priority
from policies.waiting import SERVICE_SECONDS_MIN, Hold, Waiting

LENGTH_FACTOR = 1.1  # between the shortest and the longest call of a lane
LENGTHS = tuple(SERVICE_SECONDS_MIN * LENGTH_FACTOR**power for power in range(128))  # the shortest of each

Lane = list[tuple[float, str, Waiting]]  # arrivals and ids, the first first


class Group(NamedTuple):
    """Calls of one model, route and class: they find the same slots."""

    model: str
    route: str
    priority: Priority


class Rank:
    """Those of one group and hold."""

    __slots__ = ("_lane_of", "_lanes", "group", "hold")

    def __init__(self, group: Group, hold: Hold) -> None:
        self.group = group
        self.hold = hold
        self._lanes: dict[int, Lane] = {}  # by place in `LENGTHS`
        self._lane_of: dict[str, int] = {}  # by id

    def __len__(self) -> int:
        return len(self._lane_of)

    def any(self) -> Waiting:
        """One of them."""
        return next(iter(self._lanes.values()))[0][-1]

    def add(self, waiting: Waiting) -> None:
        """One more."""
        number = _lane(waiting)
        insort(self._lanes.setdefault(number, []), (waiting.call.arrived, waiting.call.id, waiting))
        self._lane_of[waiting.call.id] = number

    def remove(self, waiting: Waiting) -> None:
        """One less."""
        number = self._lane_of.pop(waiting.call.id)
        lane = self._lanes[number]
        del lane[bisect_left(lane, (waiting.call.arrived, waiting.call.id))]
        if not lane:
            del self._lanes[number]

    def right(self, waiting: Waiting) -> bool:
        """Whether it stands where one of its length does."""
        return self._lane_of[waiting.call.id] == _lane(waiting)

    def lanes(self) -> Iterator[tuple[float, Lane]]:
        """Copies of all, each with a length that none in it is below."""
        return ((LENGTHS[number], lane[:]) for number, lane in self._lanes.items())


def best_first(ranks: Iterable[Rank], now: float, skipped: Callable[[Rank], bool]) -> Iterator[Waiting]:
    """Their calls, the best first; the id decides between equals, so that runs repeat. `skipped`: whether
    none of a rank need be looked at any more."""
    lanes = [(least, lane, rank) for rank in ranks if not skipped(rank) for least, lane in rank.lanes()]
    # Of each lane its next call, by what it and all behind it are at best; and calls that were compared.
    heap = [(_bound(lane, 0, now, least), 0, "", number, 0) for number, (least, lane, _) in enumerate(lanes)]
    heapq.heapify(heap)
    while heap:
        _, compared, _, number, at = heapq.heappop(heap)
        least, lane, rank = lanes[number]
        if skipped(rank):
            continue
        arrived, id, waiting = lane[at]
        if compared:
            yield waiting
            continue
        heapq.heappush(heap, ((arrived - now) / waiting.service_seconds, 1, id, number, at))
        if at + 1 < len(lane):
            heapq.heappush(heap, (_bound(lane, at + 1, now, least), 0, "", number, at + 1))


def _bound(lane: Lane, at: int, now: float, least: float) -> float:
    """No call of the lane from there on has a smaller key."""
    return min(0.0, lane[at][0] - now) / least


def _lane(waiting: Waiting) -> int:
    return bisect_right(LENGTHS, waiting.service_seconds) - 1
