"""Who has had how many seconds of slots: keys, the agents of each key, the conversations of each agent.

Seconds actually used are charged, so who brings its own warm prefix pays little for it. Only those who want
something at the same time are compared, and within one parent: an agent with a hundred conversations weighs
as much as one with a single one. Who has had more than the least of them by more than a quantum goes after
them. Who comes back is lifted to the least, or an idle hour would buy an hour before everybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from policies.types import Call

QUANTUM_SECONDS = 20.0
ACCOUNTS_MAX = 20_000  # clients choose the names

Account = tuple[Hashable, ...]  # its parent is all but the last


class Fairness:
    """All accounts, and those of calls that wait."""

    def __init__(self) -> None:
        self._served: OrderedDict[Account, float] = OrderedDict()  # the one charged longest ago first
        self._waiting: dict[Account, dict[Account, int]] = {}  # calls that wait, by parent and account
        self._ahead: set[Account] = set()
        self._changed: set[Account] = set()  # parents whose accounts are to be compared anew

    def charge(self, call: Call, seconds: float) -> None:
        """The call had a slot for so long."""
        served = self._served
        for account in call.accounts:
            served[account] = served.pop(account, 0.0) + seconds
            if account[:-1] in self._waiting:
                self._changed.add(account[:-1])
        while len(served) > ACCOUNTS_MAX:
            served.popitem(last=False)

    def waits(self, call: Call) -> None:
        """A call begins to wait."""
        for account in call.accounts:
            siblings = self._waiting.setdefault(account[:-1], {})
            self._changed.add(account[:-1])
            if account not in siblings and siblings:
                least = min(self._served.get(sibling, 0.0) for sibling in siblings)
                if self._served.get(account, 0.0) < least:
                    self._served[account] = least
            siblings[account] = siblings.get(account, 0) + 1

    def left(self, call: Call) -> None:
        """It waits no more."""
        for account in call.accounts:
            siblings = self._waiting[account[:-1]]
            siblings[account] -= 1
            if not siblings[account]:
                del siblings[account]
                self._ahead.discard(account)
                self._changed.add(account[:-1])
                if not siblings:
                    del self._waiting[account[:-1]]

    def served(self, account: Account) -> float:
        """Seconds that this account is charged with."""
        return self._served.get(account, 0.0)

    def ahead(self) -> set[Account]:
        """Accounts with calls that wait, and more than a quantum before the least of their siblings."""
        served = self._served
        for parent in self._changed:
            if siblings := self._waiting.get(parent):
                seconds = [(served.get(account, 0.0), account) for account in siblings]
                limit = min(value for value, _ in seconds) + QUANTUM_SECONDS
                self._ahead.difference_update(siblings)
                self._ahead.update(account for value, account in seconds if value > limit)
        self._changed.clear()
        return self._ahead
