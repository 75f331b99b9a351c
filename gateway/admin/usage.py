"""What operators ask the journal for."""

from __future__ import annotations

import asyncio
import time

from gateway import errors
from gateway.journal import JournalError
from gateway.usage import Account, By, accounts, moment


async def usage(journal: str, by: By, since: str) -> list[Account]:
    """The accounts, read in a thread: a journal may hold millions of requests."""
    if not journal:
        raise errors.NotFound("No journal is kept; name a file in accounting.journal.")
    try:
        start = moment(since, time.time()) if since else 0.0
    except (ValueError, OverflowError):
        raise errors.InvalidRequest(
            "since: must be a time as 2027-01-31T12:00:00Z, or how long ago, as 24h or 7d.", "since"
        ) from None
    try:
        return await asyncio.to_thread(accounts, journal, by, start)
    except JournalError as error:
        raise errors.NotFound(f"The journal cannot be read: {error}.") from None
