"""Writes down what ended, off the event loop: each request a row of the journal and a line of the log.

A thread does it, four times a second: writing takes longer than the loop can spare, and a disk may hang.
What is written, rows of plain values, is made of some requests at a time, by the loop while they are still
in the processor's caches; of the few that ended since then, by the thread.
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
ROWS_AT_ONCE = 32  # that the loop makes: an eighth of a millisecond
BATCH_ROWS = 256  # at which they are written: more of them would drive each other from the processor's caches
ROWS_MAX = 50_000  # that wait to be written; while the disk hangs, older ones are forgotten
RETRY_SECONDS = 60.0  # until a journal that failed is opened again; also between two looks at old rows
CLOSE_SECONDS = 5.0


class Bookkeeper:
    """One thread, from `start` to `close`."""

    def __init__(self, settings: AccountingSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._ended: deque[Record] = deque()
        self._rows: deque[Row] = deque(maxlen=ROWS_MAX)
        self._journal: Journal | None = None
        self._failed = False  # which was said
        self._unwritten = 0  # requests since then
        self._tended = float("-inf")  # when the journal was opened, tried to be, or last written
        self._due = threading.Event()  # there is something to do
        self._closing = False
        self._writer = threading.Thread(target=self._run, name="bookkeeper", daemon=True)

    def observe(self, record: Record) -> None:
        """A request ended."""
        self._ended.append(record)
        if len(self._ended) >= ROWS_AT_ONCE:
            self._make_rows()
            if len(self._rows) >= BATCH_ROWS and not self._due.is_set():
                self._due.set()

    def start(self) -> None:
        """Begin to write. Until then nothing touches the disk."""
        self._writer.start()

    async def close(self) -> None:
        """Write what is left, for as long as may be waited."""
        self._closing = True
        self._due.set()
        await asyncio.to_thread(self._writer.join, CLOSE_SECONDS)

    def _make_rows(self) -> None:
        """Called by both threads: each record is taken by one of them."""
        wall = time.time() - self._clock()
        while self._ended:
            try:
                record = self._ended.popleft()
            except IndexError:  # the other one took the last
                return
            self._rows.append(row_of(record, wall))

    def _run(self) -> None:
        while not self._closing:
            self._due.wait(PAUSE_SECONDS)
            self._due.clear()
            self._write()
        self._write()
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                self._give_up(error)

    def _write(self) -> None:
        try:
            self._make_rows()
            while self._rows:
                rows = [self._rows.popleft() for _ in range(min(len(self._rows), BATCH_ROWS))]
                if requests.isEnabledFor(logging.INFO):
                    requests.info("%d requests ended", len(rows), extra={LINES: rows})
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
