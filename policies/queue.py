"""The one queue: the calls that wait, their order, the bounds they keep, and how fast the queue moves."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from policies import order
from policies.fairness import Fairness
from policies.flows import Flows
from policies.rank import Group, Rank, best_first
from policies.release_rate import ReleaseRate
from policies.types import Call, Limits, Priority, Refusal, Rejected
from policies.waiting import Hold, Waiting


class Queue:
    """Calls without a slot, by id. Iterating takes them as they came; `ordered` as they may start."""

    def __init__(self, limits: Limits) -> None:
        self.bytes = 0  # of their bodies
        self.fairness = Fairness()
        self.follow(limits)
        self._waiting: dict[str, Waiting] = {}
        # By group, then by how far they go after others of their class and whether they hold, since of a deep
        # queue only the first of these are looked at.
        self._groups: dict[Group, dict[tuple[int, Hold], Rank]] = {}
        self._looked: list[Waiting] = []  # since they were ranked
        self._holds: list[tuple[float, int, Waiting]] = []  # a heap, by when each would have begun in one go
        self._numbers = itertools.count()  # since a call may come to hold twice at the same moment
        self._flows = Flows()
        self._releases = ReleaseRate()
        self._paces: dict[Group, ReleaseRate] = {}  # at which calls of a group start, while some wait

    def follow(self, limits: Limits) -> None:
        """Keep these bounds from now on."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, id: str) -> bool:
        return id in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        """A copy: whoever looks at them may take some out."""
        return iter(tuple(self._waiting.values()))

    def put(self, waiting: Waiting, now: float) -> None:
        """A call begins to wait."""
        call = waiting.call
        if not self._waiting:
            self._releases.waits(now)
        self._waiting[call.id] = waiting
        self._flows.put(call)
        self.fairness.waits(call)
        if (group := group_of(call)) not in self._paces:
            self._paces[group] = ReleaseRate()
            self._paces[group].waits(now)
        self._enter(waiting, now)
        self.bytes += call.body_bytes

    def take(self, id: str) -> Waiting:
        """A call waits no more, for whatever reason."""
        waiting = self._waiting.pop(id)
        call = waiting.call
        self._flows.take(call)
        self._exit(waiting)
        if group_of(call) not in self._groups:
            del self._paces[group_of(call)]
        self.fairness.left(call)
        self.bytes -= call.body_bytes
        return waiting

    def start(self, id: str, now: float) -> None:
        """A call waits no more, since it has a slot."""
        call = self.take(id).call
        self._flows.started(call, now)
        if (pace := self._paces.get(group_of(call))) is not None:
            pace.released(now, waiting=True)

    def pace(self, group: Group, now: float) -> float:
        """Seconds from one start of such a call to the next, while they wait; 0: none was seen."""
        return self._paces[group].expected(now)

    def released(self, now: float) -> None:
        """A slot became free."""
        self._releases.released(now, waiting=bool(self._waiting))

    def groups(self) -> dict[Group, Waiting]:
        """The groups of calls that wait, each with one of them."""
        return {group: next(iter(ranks.values())).any() for group, ranks in self._groups.items()}

    def overdue(self, now: float) -> dict[str, Group]:
        """Groups of the calls, by id, that have waited so long that they go first: of each agent and class
        the one that came first, if none of them was started meanwhile."""
        waiting, services = self._waiting, order.OVERDUE_SERVICES
        return {
            id: group_of(one.call)
            for since, id in self._flows.late(now - order.OVERDUE_SECONDS)
            if now - since > services * (one := waiting[id]).service_seconds
        }

    def looked(self, waiting: Waiting) -> None:
        """It was looked at, so its length or its hold may be another."""
        self._looked.append(waiting)

    def ranked(
        self,
        groups: Collection[Group],
        overdue: Mapping[str, Group],
        now: float,
        skipped: Callable[[Rank], bool] = lambda rank: False,
    ) -> Iterator[Waiting]:
        """The overdue calls, and all of these groups, in the order in which they may claim a slot. `skipped`:
        whether none of a rank need be looked at any more."""
        changed = self.fairness.compare()
        looked, self._looked = self._looked, []
        for waiting in (*(self._waiting[id] for id in changed), *looked, *self._over(now)):
            if self._waiting.get(waiting.call.id) is waiting:
                self._settle(waiting, now)
        return self._ranked(groups, overdue, now, skipped)

    def _ranked(
        self,
        groups: Collection[Group],
        overdue: Mapping[str, Group],
        now: float,
        skipped: Callable[[Rank], bool],
    ) -> Iterator[Waiting]:
        late = [self._waiting[id] for id in overdue]
        yield from sorted(late, key=lambda waiting: (waiting.call.arrived, waiting.call.id))
        levels = {(group.priority, after) for group in groups for after, _ in self._groups.get(group, ())}
        for priority, after in sorted(levels):
            ranks = [
                rank
                for group in groups
                if group.priority is priority
                for key, rank in self._groups.get(group, {}).items()
                if key[0] == after
            ]
            for waiting in best_first(ranks, now, skipped):
                if waiting.call.id not in overdue:
                    yield waiting

    def _over(self, now: float) -> Iterator[Waiting]:
        """Those that held until now and may do so no longer."""
        holds = self._holds
        while holds:
            since, _, waiting = holds[0]
            if waiting.held_since is not None and waiting.held_since - waiting.held_seconds == since:
                if waiting.holding(now, self._limits.hold_seconds_max) is Hold.HOLDS:
                    break
                yield waiting
            heapq.heappop(holds)

    def _settle(self, waiting: Waiting, now: float) -> None:
        """Move it where it belongs by now."""
        key = self._rank_key(waiting, now)
        if key != waiting.rank_key or not self._groups[group_of(waiting.call)][key].right(waiting):
            self._exit(waiting)
            self._enter(waiting, now)

    def _rank_key(self, waiting: Waiting, now: float) -> tuple[int, Hold]:
        hold = waiting.holding(now, self._limits.hold_seconds_max)
        return order.after(waiting.call, self.fairness.ahead), hold

    def _enter(self, waiting: Waiting, now: float) -> None:
        held = waiting.rank_key[1]
        waiting.rank_key = key = self._rank_key(waiting, now)
        if key[1] is Hold.HOLDS and held is not Hold.HOLDS and waiting.held_since is not None:
            since = waiting.held_since - waiting.held_seconds
            heapq.heappush(self._holds, (since, next(self._numbers), waiting))
        group = group_of(waiting.call)
        ranks = self._groups.setdefault(group, {})
        rank = ranks.get(key) or ranks.setdefault(key, Rank(group, key[1]))
        rank.add(waiting)

    def _exit(self, waiting: Waiting) -> None:
        group = group_of(waiting.call)
        ranks = self._groups[group]
        ranks[waiting.rank_key].remove(waiting)
        if not ranks[waiting.rank_key]:
            del ranks[waiting.rank_key]
        if not ranks:
            del self._groups[group]

    def ordered(self, now: float) -> list[Waiting]:
        """All of them in that order."""
        return list(self.ranked(tuple(self._groups), self.overdue(now), now))

    def lengths(self) -> Mapping[Priority, int]:
        """Waiting calls by class."""
        lengths: Counter[Priority] = Counter()
        for group, ranks in self._groups.items():
            lengths[group.priority] += sum(map(len, ranks.values()))
        return lengths

    def predicted_wait(self, position: int) -> float | None:
        """Seconds until the call at this place starts; None until releases were seen."""
        seconds = self._releases.seconds
        return None if seconds is None else (position + 1) * seconds

    def over_bounds(self, call: Call, now: float) -> Rejected | None:
        """The rejection of the call that just came to wait: one too many, or it cannot wait that long."""
        if len(self._waiting) > self._limits.waiting_max or self.bytes > self._limits.waiting_bytes_max:
            return Rejected(call, Refusal.QUEUE_FULL, self.predicted_wait(0))
        if call.start_by is None:
            return None
        ranked = self.ranked(tuple(self._groups), self.overdue(now), now)
        position = next(i for i, waiting in enumerate(ranked) if waiting.call is call)
        wait = self.predicted_wait(position)
        late = wait is not None and now + wait > call.start_by
        return Rejected(call, Refusal.WAIT_TOO_LONG, wait) if late else None


def group_of(call: Call) -> Group:
    """The group of a call."""
    return Group(call.model, call.route, call.priority)
