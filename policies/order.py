"""Which waiting call goes next: overdue ones first come first served, then by class, then by arrival.

The overdue tier is what keeps a lower class alive under a steady flow of a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable

from policies.types import Call

OVERDUE_SECONDS = 60.0


def ordered(calls: Iterable[Call], now: float) -> list[Call]:
    """The calls in the order in which they may claim a slot."""
    return sorted(calls, key=lambda call: rank(call, now))


def rank(call: Call, now: float) -> tuple[int, float, str]:
    """The smaller goes first; the id decides between calls of one instant, so that runs repeat."""
    return (-1 if overdue(call, now) else call.priority, call.arrived, call.id)


def overdue(call: Call, now: float) -> bool:
    """Whether it has waited so long that it goes before every class."""
    return now - call.arrived > OVERDUE_SECONDS
