"""Writes down what ended, off the event loop: each request a row of the journal and a line of the log.

The loop only appends to a list; a thread empties it four times a second. Writing a row and a line takes
longer than the loop can spare, and a disk may hang.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from gateway.accounting import Record
from gateway.journal import Journal, JournalError
from gateway.logs import LINES
from gateway.options import AccountingSettings
from gateway.row import Row, row_of

log = logging.getLogger("slotgate.journal")
requests = logging.getLogger("slotgate.requests")

PAUSE_SECONDS = 0.25  # at most a second may be lost when the process is killed, on a busy machine too
BATCH_MAX = 200  # rows between two moments in which the event loop can have the interpreter
ENDED_MAX = 50_000  # requests that wait to be written; while the disk hangs, older ones are forgotten
RETRY_SECONDS = 60.0  # until a journal that failed is opened again; also between two looks at old rows
CLOSE_SECONDS = 5.0


class Bookkeeper:
    """One thread, from `start` to `close`."""

    def __init__(self, settings: AccountingSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._ended: deque[Record] = deque(maxlen=ENDED_MAX)
        self._journal: Journal | None = None
        self._failed = False  # which was said
        self._unwritten = 0  # requests since then
        self._tended = float("-inf")  # when the journal was opened, tried to be, or last written
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bookkeeper", daemon=True)

    def observe(self, record: Record) -> None:
        """A request ended."""
        self._ended.append(record)

    def start(self) -> None:
        """Begin to write. Until then nothing touches the disk."""
        self._thread.start()

    async def close(self) -> None:
        """Write what is left, for as long as may be waited."""
        self._closing.set()
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(PAUSE_SECONDS):
            self._write()
        self._write()
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                self._give_up(error)

    def _write(self) -> None:
        try:
            while self._ended:
                count = min(len(self._ended), BATCH_MAX)
                wall = time.time() - self._clock()
                rows = [row_of(self._ended.popleft(), wall) for _ in range(count)]
                if requests.isEnabledFor(logging.INFO):
                    requests.info("%d requests ended", count, extra={LINES: rows})
                self._keep(rows)
            if self._clock() - self._tended >= RETRY_SECONDS:
                self._keep([])  # old rows go although no new ones come
        except Exception:  # a defect of ours; without this thread nothing would be written any more
            log.exception("writing the journal failed inside the gateway")

    def _keep(self, rows: Sequence[Row]) -> None:
        settings, now = self._settings, self._clock()
        if not settings.journal:
            return
        if self._failed and now - self._tended < RETRY_SECONDS:
            self._unwritten += len(rows)
            return
        self._tended = now
        try:
            if self._journal is not None and self._journal.is_gone():
                self._journal.close()  # before the next is opened: by their names it removes its own files
                self._journal = None
            if self._journal is None:
                self._journal = Journal(settings.journal, settings.journal_days, settings.journal_bytes_max)
            self._journal.append(rows, time.time())
        except JournalError as error:
            self._give_up(error)
            self._unwritten += len(rows)
        else:
            if self._failed:
                log.warning("the journal is written again, without %d requests", self._unwritten)
            self._failed, self._unwritten = False, 0

    def _give_up(self, error: JournalError) -> None:
        """Go on without a journal, and say so once."""
        self._journal = None
        if not self._failed:
            log.warning(
                "the journal %s cannot be written (%s); requests are served without it: mend that, or set "
                'accounting.journal to another file, or to "" for none',
                self._settings.journal,
                error,
            )
        self._failed = True
