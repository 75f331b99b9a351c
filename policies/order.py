"""Which waiting call goes next: overdue ones first come first served, then by class, then those whose
accounts had less, then by response ratio.

The response ratio is (wait + service) / service: short calls go first, but each second of waiting counts for
them all, so long ones come to their turn. What is overdue goes before every class, or a steady flow of a
higher one would starve it. Of each agent and class only the call that came first can be, while none of them
is started: or whoever sends the most would soon go before all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator

from policies.fairness import Account
from policies.types import Call
from policies.waiting import Waiting

OVERDUE_SECONDS = 60.0
OVERDUE_SERVICES = 4.0  # a long call may be expected to wait longer


def patience(waiting: Waiting) -> float:
    """Seconds after which a call is overdue."""
    return max(OVERDUE_SECONDS, OVERDUE_SERVICES * waiting.service_seconds)


def ranked(
    calls: Collection[Waiting], overdue: Collection[str], ahead: set[Account], now: float
) -> Iterator[Waiting]:
    """The calls, best first; only as many are sorted as are asked for. `overdue`: their ids. The id decides
    between equals, so that runs repeat."""
    early: Iterable[Waiting] = calls
    if overdue:
        late = [(w.call.arrived, w.call.id, w) for w in calls if w.call.id in overdue]
        early = [w for w in calls if w.call.id not in overdue]
        for *_, waiting in sorted(late):
            yield waiting
    behind = ahead.isdisjoint  # of a deep queue each call passes here at each event, so every step counts
    heap = [
        (
            (call := w.call).priority,
            0 if behind(call.accounts) else _after(call, ahead),
            (call.arrived - now) / w.service_seconds,
            call.id,
            w,
        )
        for w in early
    ]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[-1]


def _after(call: Call, ahead: set[Account]) -> int:
    """How far it goes after others: a key that had more counts more than all below it."""
    after = 0
    for account in call.accounts:
        after = 2 * after + (account in ahead)
    return after
