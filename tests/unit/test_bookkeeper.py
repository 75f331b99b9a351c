"""The thread that writes down what ended: to the journal while it can, to the log, and never in the way."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import pytest

from gateway import bookkeeper as module
from gateway.bookkeeper import Bookkeeper
from gateway.journal import JournalError, rows
from gateway.logs import JsonFormatter, PeopleFormatter
from gateway.options import AccountingSettings
from tests.unit.test_journal import a_record


def kept(path: Path, clock: Callable[[], float] = time.monotonic) -> Bookkeeper:
    return Bookkeeper(AccountingSettings(journal=str(path)), clock)


def ids(path: Path) -> list[str]:
    return [row.id for row in rows(path)]


async def written(path: Path, *expected: str) -> None:
    """Wait until these rows are there; pytest ends what never comes."""
    found: list[str] = []
    while set(found) != set(expected):
        await asyncio.sleep(0.01)
        with suppress(JournalError):  # not made yet
            found = ids(path)


async def test_what_ended_is_in_the_journal_at_the_end(tmp_path: Path) -> None:
    """More than a batch of it, in order, with the time of arrival on the wall clock."""
    path = tmp_path / "j.db"
    books = kept(path)
    names = [str(n) for n in range(2 * module.BATCH_ROWS + 1)]
    arrived, now = time.monotonic() - 20.0, time.time()
    for n, name in enumerate(names):
        books.observe(a_record(name, arrived=arrived + n / 1000, ended=arrived + 12.0))
    assert not path.exists()  # the loop's thread has touched no disk
    books.start()
    await books.close()
    assert ids(path) == names
    assert next(rows(path)).arrived == pytest.approx(now - 20.0, abs=5.0)


async def test_it_writes_while_it_runs(tmp_path: Path) -> None:
    """A request is there soon after it ended, not only at the end of the process."""
    path = tmp_path / "j.db"
    books = kept(path)
    books.start()
    books.observe(a_record("first"))
    await written(path, "first")
    books.observe(a_record("second"))
    await written(path, "first", "second")
    await books.close()


async def test_many_are_written_before_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under load a quarter of a second is a megabyte of rows."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 3600.0)
    path = tmp_path / "j.db"
    books = kept(path)
    books.start()
    names = [str(n) for n in range(module.BATCH_ROWS)]
    for name in names:
        books.observe(a_record(name))
    await written(path, *names)
    await books.close()


async def test_without_a_journal_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`journal = ""` means no file, and no warning."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    books = Bookkeeper(AccountingSettings(journal=""), time.monotonic)
    books.observe(a_record())
    books.start()
    await books.close()
    assert not os.listdir(tmp_path)
    assert [record.levelname for record in caplog.records] == ["INFO"]  # the request itself


def test_a_journal_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is tried; when it can be written again, what it lacks is said, and it goes on."""
    seconds = 0.0
    folder = tmp_path / "missing"
    path = folder / "j.db"
    books = kept(path, lambda: time.monotonic() + seconds)
    for n in range(5):
        books.observe(a_record(f"lost {n}"))
        books._write()
        seconds += 20.0
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warning.startswith(f"the journal {path} cannot be written (unable to open database file)")
    folder.mkdir()
    seconds += module.RETRY_SECONDS
    books.observe(a_record("kept"))
    books._write()
    assert ids(path) == ["kept"]
    assert caplog.records[-1].getMessage() == "the journal is written again, without 5 requests"


def test_a_journal_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    """As by whoever keeps one file a month: the old one is whole, and nothing goes where nobody finds it."""
    path, old = tmp_path / "j.db", tmp_path / "old.db"
    books = kept(path)
    books.observe(a_record("before"))
    books._write()
    for file in tmp_path.iterdir():
        file.rename(tmp_path / file.name.replace("j.db", "old.db"))
    books.observe(a_record("after"))
    books._write()
    assert (ids(old), ids(path)) == (["before"], ["after"])


def test_a_damaged_journal_does_not_stop_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, and every request still has its line."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "j.db"
    path.write_bytes(b"garbage " * 1000)
    books = kept(path)
    for n in range(3):
        books.observe(a_record(str(n)))
        books._write()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    lines = [
        line
        for record in caplog.records
        if record.name == "slotgate.requests"
        for line in JsonFormatter().format(record).splitlines()
    ]
    assert [json.loads(line)["id"] for line in lines] == ["0", "1", "2"]


async def test_a_locked_journal_is_waited_for(tmp_path: Path) -> None:
    """A backup that holds the lock for a moment costs no row, and the loop is not held up."""
    path = tmp_path / "j.db"
    books = kept(path)
    books.start()
    books.observe(a_record("before"))
    await written(path, "before")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        books.observe(a_record("meanwhile"))
        await asyncio.sleep(2 * module.PAUSE_SECONDS)
        assert ids(path) == ["before"]
        other.execute("COMMIT")
    await books.close()
    assert sorted(ids(path)) == ["before", "meanwhile"]


async def test_each_of_many_is_written_once(tmp_path: Path) -> None:
    """Rows are made by the loop and by the thread, whoever comes first."""
    books = kept(tmp_path / "j.db")
    books.start()
    names = [str(n) for n in range(20 * module.ROWS_AT_ONCE + 7)]
    for name in names:
        books.observe(a_record(name))
        if int(name) % 50 == 0:
            await asyncio.sleep(0.01)
    await books.close()
    assert sorted(ids(tmp_path / "j.db")) == sorted(names)


def test_a_disk_that_hangs_costs_no_memory(tmp_path: Path) -> None:
    """What waits to be written is bounded; the newest of it is kept."""
    path = tmp_path / "j.db"
    books, record = kept(path), a_record("early")
    for _ in range(module.ROWS_MAX):
        books.observe(record)
    books.observe(a_record("late"))
    books._write()
    found = ids(path)
    assert len(found) == module.ROWS_MAX
    assert "late" in found


def test_a_line_for_each_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Machines get an object with the figures, people a sentence; nobody gets a prompt."""
    caplog.set_level(logging.INFO)
    books = kept(tmp_path / "j.db", lambda: time.time() - 1_800_000_000.0)
    books.observe(a_record("1"))
    books.observe(a_record("2", error="idle_timeout", outcome="timeout", backend="\x1b[31m"))
    books._write()
    [record] = caplog.records
    first, second = (json.loads(line) for line in JsonFormatter().format(record).splitlines())
    ended = datetime.fromisoformat(first.pop("time")).timestamp()
    assert ended == pytest.approx(1_800_000_012.0, abs=1.0)
    assert first == {
        "level": "info",
        "logger": "slotgate.requests",
        "message": "request ended",
        "id": "1",
        "request_id": "theirs-1",
        "outcome": "completed",
        "route": "/v1/chat/completions",
        "model": "m",
        "backend": "spark-1",
        "key": "team-a",
        "agent": "coder",
        "class": "agent",
        "prompt_tokens": 100,
        "cached_tokens": 40,
        "completion_tokens": 13,
        "reasoning_tokens": 5,
        "source": "reported",
        "queue_seconds": 2.0,
        "ttft_seconds": 4.0,
        "seconds": 11.0,
    }
    assert (second["outcome"], second["error"], second["backend"]) == ("timeout", "idle_timeout", "\x1b[31m")
    lines = PeopleFormatter().format(record).splitlines()
    assert [line[8:] for line in lines] == [
        " completed: m on spark-1, 11.0 s, first token 4.0 s, queue 2.0 s, 100 (40 cached) + 13 tokens; "
        "coder, theirs-1",
        " timeout (idle_timeout): m on \\x1b[31m, 11.0 s, first token 4.0 s, queue 2.0 s, "
        "100 (40 cached) + 13 tokens; coder, theirs-1",
    ]


def test_a_journal_that_is_removed_is_begun_anew(tmp_path: Path) -> None:
    """Although its log was left behind; the new one is whole."""
    path = tmp_path / "j.db"
    books = kept(path)
    books.observe(a_record("before"))
    books._write()
    path.unlink()
    for name in ("after", "later"):
        books.observe(a_record(name))
        books._write()
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert set(ids(path)) == {"after", "later"}
