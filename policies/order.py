"""Which waiting call goes next: overdue ones first come first served, then by class, then those whose
accounts had less, then by response ratio (see `rank`).

What is overdue goes before every class, or a steady flow of a higher one would starve it. Of each agent and
class only the call that came first can be, while none of them is started: or whoever sends the most would
soon go before all others.
"""

from __future__ import annotations

from policies.fairness import Account
from policies.types import Call
from policies.waiting import Waiting

OVERDUE_SECONDS = 60.0
OVERDUE_SERVICES = 4.0  # a long call may be expected to wait longer


def patience(waiting: Waiting) -> float:
    """Seconds after which a call is overdue."""
    return max(OVERDUE_SECONDS, OVERDUE_SERVICES * waiting.service_seconds)


def after(call: Call, ahead: set[Account]) -> int:
    """How far it goes after others: a key that had more counts more than all below it."""
    places = 0
    for account in call.accounts:
        places = 2 * places + (account in ahead)
    return places
