"""Accounts: what each agent, model or backend used, summed up from the journal."""

from __future__ import annotations

import enum
import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path

from gateway.journal import JournalError, reader

ACCOUNTS_MAX = 1000  # those with the most slot seconds; agents name themselves as they like
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
NO_SOURCE = "none"  # of requests that no engine worked on


class By(enum.StrEnum):
    """Whose accounts; each is a column of the journal."""

    AGENT = "agent"
    MODEL = "model"
    BACKEND = "backend"


@dataclass(slots=True)
class Sums:
    """Of requests that have ended; what is not known adds nothing."""

    requests: int = 0
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0  # reasoning included
    reasoning_tokens: int = 0
    slot_seconds: float = 0.0

    def add(self, more: Sums) -> None:
        """Count these, too."""
        for one in fields(Sums):
            setattr(self, one.name, getattr(self, one.name) + getattr(more, one.name))


@dataclass(slots=True)
class Account(Sums):
    """What one of them used: in all, and by the source of its token counts."""

    name: str = ""  # empty: an agent without a name and key, or requests that came to no backend
    by_source: dict[str, Sums] = field(default_factory=dict)


def accounts(path: str | Path, by: By, since: float = 0.0) -> list[Account]:
    """Those with requests that arrived since then (seconds since 1970), the largest first.

    Raises JournalError.
    """
    found: dict[str, Account] = {}
    with closing(reader(path)) as journal:
        try:
            groups = journal.execute(
                f"SELECT {by}, source, count(*), total(prompt_tokens), total(cached_tokens), "
                "total(completion_tokens), total(reasoning_tokens), total(slot_seconds) "
                "FROM requests WHERE arrived >= ? GROUP BY 1, 2",
                (since,),
            ).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}") from None
    for name, source, requests, *tokens, slot_seconds in groups:
        account = found.setdefault(name or "", Account(name=name or ""))
        prompt, cached, completion, reasoning = map(int, tokens)
        sums = Sums(requests, prompt, cached, completion, reasoning, round(slot_seconds, 3))
        account.by_source[source or NO_SOURCE] = sums
        account.add(sums)
    largest = sorted(found.values(), key=lambda one: (-one.slot_seconds, -one.requests, one.name))
    return largest[:ACCOUNTS_MAX]


def moment(text: str, now: float) -> float:
    """A time in seconds since 1970: so long before `now` (`90s`, `30m`, `24h`, `7d`, `4w`), or a date or
    time as in ISO 8601, in UTC if it does not say. Raises ValueError."""
    if ago := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        return now - int(ago[1]) * UNITS[ago[2]]
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
