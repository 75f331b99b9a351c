"""Which waiting call goes next: overdue ones first come first served, then by class, then those whose
accounts had less, then by response ratio.

The response ratio is (wait + service) / service: short calls go first, but each second of waiting counts for
them all, so long ones come to their turn. What is overdue goes before every class, or a steady flow of a
higher one would starve it. Of each agent and class only the call that came first can be, while none of them
is started: or whoever sends the most would soon go before all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator

from policies.fairness import Account
from policies.waiting import Waiting

OVERDUE_SECONDS = 60.0
OVERDUE_SERVICES = 4.0  # a long call may be expected to wait longer

Rank = tuple[int, int, float, str]


def rank(waiting: Waiting, now: float, ahead: set[Account], overdue: Container[str]) -> Rank:
    """The smaller goes first; the id decides between equals, so that runs repeat."""
    call = waiting.call
    if call.id in overdue:
        return (-1, 0, call.arrived, call.id)
    after = 0
    if ahead:
        for account in call.accounts:  # a key counts more than all below it
            after = 2 * after + (account in ahead)
    return (call.priority, after, (call.arrived - now) / waiting.service_seconds, call.id)


def patience(waiting: Waiting) -> float:
    """Seconds after which it is overdue."""
    return max(OVERDUE_SECONDS, OVERDUE_SERVICES * waiting.service_seconds)


def ranked(
    calls: Iterable[Waiting], overdue: Container[str], ahead: set[Account], now: float
) -> Iterator[Waiting]:
    """The calls, best first; only as many are sorted as are asked for. `overdue`: their ids."""
    heap = [(rank(waiting, now, ahead, overdue), waiting) for waiting in calls]
    heapq.heapify(heap)
    while heap:
        yield heapq.heappop(heap)[1]
