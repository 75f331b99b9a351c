"""Requests that were served, from the journal or from memory, as they can be played again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from pathlib import Path

from gateway.accounting import UNTOUCHED, Record
from gateway.journal import rows
from gateway.row import Row, links, row_of
from policies.traffic import Asked
from policies.types import Priority

RECORDS_MAX = 3000
LINKS_MAX = 100_000  # of their chains together: about 12 MB
CLASSES = {priority.label: priority for priority in Priority}


def asked(row: Row) -> Asked | None:
    """A request that held a slot of a backend; None: it did not, or nobody knows how long it was."""
    if row.backend is None or row.slot_seconds is None or row.queue_seconds is None or not row.prompt_tokens:
        return None
    if row.outcome in UNTOUCHED:
        return None
    first = None if row.ttft_seconds is None else row.arrived + row.ttft_seconds
    output = max(1, row.completion_tokens or 1)
    ended = row.ended
    if first is not None and row.tpot_seconds is not None:
        ended = first + row.tpot_seconds * (output - 1)  # the record closes when the client has all of it
    return Asked(
        arrived=row.arrived,
        dispatched=row.arrived + row.queue_seconds,
        first=first,
        ended=ended,
        agent=row.agent,
        priority=CLASSES.get(row.priority or "", Priority.AGENT),
        backend=row.backend,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens_predicted if row.cached_tokens is None else row.cached_tokens,
        output_tokens=output,
        conversation=row.conversation,
        chain=links(row.chain),
    )


def playable(found: Iterable[Row]) -> list[Asked]:
    """Those of them that a backend worked on."""
    return [one for row in found if (one := asked(row)) is not None]


def journalled(path: str | Path, since: float = 0.0) -> list[Asked]:
    """The latest requests of a journal, of those that arrived since then (seconds since 1970). Raises
    JournalError."""
    return playable(deque(rows(path, since), RECORDS_MAX))


class Window:
    """The latest requests, kept in memory for want of a journal; bounded by number and by their chains."""

    def __init__(self) -> None:
        self._latest: deque[tuple[Record, int]] = deque()  # each with the links of its chain
        self._links = 0

    def observe(self, record: Record) -> None:
        """A request ended."""
        if record.lease is None:
            return
        links = len(record.lease.call.chain)
        self._latest.append((record, links))
        self._links += links
        while len(self._latest) > RECORDS_MAX or self._links > LINKS_MAX:
            self._links -= self._latest.popleft()[1]

    def records(self) -> list[Record]:
        """The oldest first."""
        return [record for record, _ in self._latest]


def remembered(records: Iterable[Record]) -> list[Asked]:
    """Requests of a window; times are those of the monotonic clock."""
    return playable(row_of(record, 0.0) for record in records)
