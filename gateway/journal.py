"""The journal: one SQLite row per request, of figures and names, never of prompt text.

SQLite's write-ahead log keeps whole whatever was committed when the process is killed, and lets others
read meanwhile. A row is a `Row`; its fields are the table's columns, declared once.
"""

from __future__ import annotations

import os
import sqlite3
import types
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from gateway.row import Row

VERSION = 1  # of the table; another one is neither read nor written
APPLICATION = 0x510716A7  # marks the file as ours: nothing is ever written into somebody else's database
BUSY_SECONDS = 10.0  # for another gateway that writes, or a backup
WAL_BYTES = 8 * 2**20  # of the bound on bytes are left to the write-ahead log, which is half of that
DAY_SECONDS = 86_400
TRIM_ROWS = 1000  # at least, at a time, where rows must go
TRIM_SECONDS = 1.0  # between two looks for such rows, or that many new ones
VACUUM_PAGES = 2000  # at a time, where the bound was lowered


class JournalError(Exception):
    """The file cannot be used; says why."""


# -- reading -------------------------------------------------------------------------------------------


def rows(path: str | Path, since: float = 0.0) -> Iterator[Row]:
    """The requests that arrived since then (seconds since 1970), by arrival, while a gateway may go on
    writing. Raises JournalError."""
    with closing(reader(path)) as journal:
        try:
            found = journal.execute(
                f"SELECT {', '.join(Row._fields)} FROM requests WHERE arrived >= ? ORDER BY arrived", (since,)
            )
            yield from map(Row._make, found)
        except sqlite3.Error as error:
            raise JournalError(f"{path}: {error}") from None


def reader(path: str | Path) -> sqlite3.Connection:
    """A journal, to be read only and closed. Raises JournalError."""
    if not Path(path).is_file():
        raise JournalError(f"{path}: there is no such file")
    try:
        journal = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            if not _is_ours(journal):
                raise JournalError(f"{path}: nothing has been written yet")
        except BaseException:
            journal.close()
            raise
    except sqlite3.Error as error:
        raise JournalError(f"{path}: {error}") from None
    return journal


def _is_ours(journal: sqlite3.Connection) -> bool:
    """Whether the table is there; False in an empty file. Raises JournalError for anything else."""
    (application,) = journal.execute("PRAGMA application_id").fetchone()
    (version,) = journal.execute("PRAGMA user_version").fetchone()
    (tables,) = journal.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return False
    if application != APPLICATION:
        raise JournalError("it is a database of something else")
    if version != VERSION:
        raise JournalError(f"its table has version {version}, but this slotgate writes version {VERSION}")
    return True


# -- writing -------------------------------------------------------------------------------------------

WIDTH = len(Row._fields)
INSERT = f"INSERT INTO requests ({', '.join(Row._fields)}) VALUES "
PLACEHOLDERS = f"({', '.join('?' * WIDTH)})"
STATEMENT_ROWS = 64  # by one step of SQLite, which gives the interpreter away and must wait for it again
NOTHING = float("nan")  # which SQLite stores as NULL; for a None sqlite3 looks for a converter each time
OLDEST = "DELETE FROM requests WHERE rowid IN (SELECT rowid FROM requests {} ORDER BY arrived LIMIT ?)"
COLUMN_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL", bytes: "BLOB"}


class Journal:
    """A journal to be written, by one thread; bounded by the age of its rows and the bytes of its file.

    Every method raises JournalError, after which the journal is of no more use.
    """

    def __init__(self, path: str, days: int, bytes_max: int) -> None:
        self._path = path
        self._seconds_max = days * DAY_SECONDS
        self._bytes_max = bytes_max - WAL_BYTES
        self._trimmed = float("-inf")  # when what is too much was taken out
        self._untrimmed = 0  # rows since then
        try:
            self._file = sqlite3.connect(path, timeout=BUSY_SECONDS)
            try:
                self._page_bytes = self._prepare()
                self._inode = os.stat(path).st_ino
            except BaseException:
                self._file.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise JournalError(str(error)) from None

    def _prepare(self) -> int:
        file = self._file
        if not _is_ours(file):
            file.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a lowered bound can take effect
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("BEGIN IMMEDIATE")
            with file:
                file.execute(f"CREATE TABLE IF NOT EXISTS requests ({', '.join(_columns())})")
                file.execute("CREATE INDEX IF NOT EXISTS requests_arrived ON requests (arrived)")
                file.execute(f"PRAGMA application_id = {APPLICATION}")
                file.execute(f"PRAGMA user_version = {VERSION}")
        # A commit waits for no disk: what is committed survives the process, and the file any power cut.
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute(f"PRAGMA journal_size_limit = {WAL_BYTES // 2}")
        return self._pragma("page_size")

    def append(self, rows: Sequence[Row], now: float) -> None:
        """Add these, and now and then take out what is too old (`now` is in seconds since 1970) or too much.
        Nothing of it is there if it fails."""
        self._untrimmed += len(rows)
        due = not rows or self._untrimmed >= TRIM_ROWS or not 0 <= now - self._trimmed < TRIM_SECONDS
        try:
            with self._file:
                self._insert(rows)
                pages = self._trim(now) if due else 0
            if pages * self._page_bytes > self._bytes_max:
                # As a script: `execute` takes one step of it, which is one page.
                self._file.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        except sqlite3.Error as error:
            raise JournalError(str(error)) from None

    def _trim(self, now: float) -> int:
        """Take out what is too old or too much; how many pages the file has."""
        room = 2 * self._untrimmed + TRIM_ROWS
        self._trimmed, self._untrimmed = now, 0
        self._file.execute(OLDEST.format("WHERE arrived < ?"), (now - self._seconds_max, room))
        pages = self._pragma("page_count")
        if (pages - self._pragma("freelist_count")) * self._page_bytes > self._bytes_max:
            self._file.execute(OLDEST.format(""), (room,))
        return pages

    def _insert(self, rows: Sequence[Row]) -> None:
        values = [NOTHING if value is None else value for row in rows for value in row]
        begin, left, at_once = 0, len(rows), STATEMENT_ROWS
        while left:
            while at_once > left:
                at_once //= 2  # few statements to keep
            end = begin + at_once * WIDTH
            self._file.execute(_statement(at_once), values[begin:end])
            begin, left = end, left - at_once

    def is_gone(self) -> bool:
        """Whether somebody has moved or removed the file; what is written now, nobody would find."""
        try:
            return os.stat(self._path).st_ino != self._inode
        except OSError:
            return True

    def close(self) -> None:
        """Put all into the one file, if nobody reads it."""
        try:
            self._file.close()
        except sqlite3.Error as error:
            raise JournalError(str(error)) from None

    def _pragma(self, name: str) -> int:
        (value,) = self._file.execute(f"PRAGMA {name}").fetchone()
        return int(value)


@lru_cache(maxsize=STATEMENT_ROWS)
def _statement(rows: int) -> str:
    return INSERT + ", ".join([PLACEHOLDERS] * rows)


def _columns() -> Iterator[str]:
    for name, hint in get_type_hints(Row).items():
        optional = get_origin(hint) in (Union, types.UnionType)
        plain = get_args(hint)[0] if optional else hint
        yield f"{name} {COLUMN_TYPES[plain]}" + ("" if optional else " NOT NULL")
