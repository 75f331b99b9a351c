"""Who has had how many seconds of slots: keys, the agents of each key, the conversations of each agent.

Seconds actually used are charged, so who brings its own warm prefix pays little for it. Only those who want
something at the same time are compared, and within one parent: an agent with a hundred conversations weighs
as much as one with a single one. Who has had more than the least of them by more than a quantum goes after
them. Who comes back is lifted to the least, or an idle hour would buy an hour before everybody else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from itertools import repeat

from policies.types import Call

QUANTUM_SECONDS = 20.0
ACCOUNTS_MAX = 20_000  # clients choose the names

Account = tuple[Hashable, ...]  # its parent is all but the last


class Fairness:
    """All accounts, and those of calls that wait."""

    def __init__(self) -> None:
        self._served: OrderedDict[Account, float] = OrderedDict()  # the one charged longest ago first
        self.ahead: set[Account] = set()  # had more than a quantum more than the least of their siblings
        self._waiting: dict[Account, dict[Account, set[str]]] = {}  # ids of calls, by parent and account
        self._least: dict[Account, float] = {}  # of those who wait, by parent, when they were compared
        # To be compared anew, by parent; None: all of its accounts, as another one may have had the least.
        self._changed: dict[Account, set[Account] | None] = {}

    def charge(self, call: Call, seconds: float) -> None:
        """The call had a slot for so long."""
        served = self._served
        for account in call.accounts:
            had = served.pop(account, 0.0)
            served[account] = had + seconds
            self._turned(account, had)
        while len(served) > ACCOUNTS_MAX:
            self._turned(served.popitem(last=False)[0], 0.0)

    def waits(self, call: Call) -> None:
        """A call begins to wait."""
        for account in call.accounts:
            siblings = self._waiting.setdefault(account[:-1], {})
            if account not in siblings:
                had = self._served.get(account, 0.0)
                if siblings and had < (least := min(self._had(siblings))):
                    self._served[account] = had = least
                siblings[account] = set()
                self._turned(account, had)
            siblings[account].add(call.id)

    def left(self, call: Call) -> None:
        """It waits no more."""
        for account in call.accounts:
            siblings = self._waiting[account[:-1]]
            siblings[account].discard(call.id)
            if not siblings[account]:
                del siblings[account]
                self.ahead.discard(account)
                if siblings:
                    if self.served(account) <= self._least.get(account[:-1], 0.0):
                        self._changed[account[:-1]] = None
                else:
                    for known in (self._waiting, self._least, self._changed):
                        known.pop(account[:-1], None)

    def served(self, account: Account) -> float:
        """Seconds that this account is charged with."""
        return self._served.get(account, 0.0)

    def compare(self) -> set[str]:
        """See who is ahead by now; the ids of calls for which that changes something. Only accounts are
        compared that were charged since, or whose siblings came or went: of a deep queue that is little."""
        calls = set[str]()
        for parent, changed in self._changed.items():
            siblings = self._waiting.get(parent, {})
            accounts = siblings.keys() if changed is None else siblings.keys() & changed
            if not accounts:
                continue
            seconds = self._had(accounts)
            if changed is None:
                self._least[parent] = min(seconds)
            limit = self._least[parent] + QUANTUM_SECONDS
            ahead = {account for account, had in zip(accounts, seconds, strict=True) if had > limit}
            turned = (accounts & self.ahead) ^ ahead
            self.ahead ^= turned
            calls.update(*(siblings[account] for account in turned))
        self._changed.clear()
        return calls

    def _turned(self, account: Account, had: float) -> None:
        """It had so much until now, or has from now on."""
        parent = account[:-1]
        if account not in self._waiting.get(parent, ()):
            return
        changed = self._changed.setdefault(parent, set())
        if parent not in self._least or had <= self._least[parent]:
            self._changed[parent] = None
        elif changed is not None:
            changed.add(account)

    def _had(self, accounts: Iterable[Account]) -> list[float]:
        return list(map(self._served.get, accounts, repeat(0.0)))
