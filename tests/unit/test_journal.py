"""The journal as a file: what it takes, what it keeps, who may write and read it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import Record, TokenSource, Usage
from gateway.journal import (
    APPLICATION,
    DAY_SECONDS,
    VERSION,
    WAL_BYTES,
    Journal,
    JournalError,
    rows,
)
from gateway.row import LINKS_MAX, TEXT_MAX, Row, links, packed, row_of
from policies.prefix import Chain
from policies.types import Priority
from tests.unit.fleet import a_backend, a_call, a_chain, an_admission

NOW = 1_800_000_000.0
BYTES_MAX = 16 * 2**20


def a_record(id: str = "r", **given: Any) -> Record:
    """A request that arrived at 1 s, was dispatched at 3 s and ended at 12 s."""
    admission = an_admission(a_backend())
    admission.submit(a_call(id, output_tokens_max=300, chain=a_chain(7, 8)), 3.0)
    record = Record(id, "/v1/chat/completions", 1.0)
    plain = {
        "model": "m",
        "agent": "coder",
        "key": "team-a",
        "priority": Priority.AGENT,
        "conversation": "session 1",
        "streamed": True,
        "backend": "spark-1",
        "lease": admission.lease(id),
        "dispatched": 3.0,
        "first_token": 5.0,
        "last_token": 11.0,
        "ended": 12.0,
        "outcome": "completed",
        "prompt_tokens_estimated": 90,
        "events": 4,
        "request_id": "theirs-1",
    }
    for name, value in (plain | given).items():
        setattr(record, name, value)
    record.count(Usage(TokenSource.REPORTED, 100, 40, 13, 5))
    return record


def a_row(id: str = "r", **given: Any) -> Row:
    """The same as a row, with other fields where given."""
    return row_of(a_record(id), NOW)._replace(**given)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a journal?.db"  # a name that would mean something in a URL


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    journal = Journal(str(path), 30, BYTES_MAX)
    yield journal
    journal.close()


# -- rows ----------------------------------------------------------------------------------------------


def test_a_row_tells_all_of_a_request() -> None:
    """Who, where, tokens and their source, predictions, times on the wall clock and as durations."""
    row = row_of(a_record(), NOW)
    assert (row.id, row.request_id, row.arrived, row.ended) == ("r", "theirs-1", NOW + 1, NOW + 12)
    assert (row.key, row.agent, row.conversation, row.priority) == ("team-a", "coder", "session 1", "agent")
    assert (row.model, row.served_model, row.backend, row.streamed) == ("m", "m", "spark-1", 1)
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (100, 40, 13)
    assert (row.reasoning_tokens, row.source) == (5, "reported")
    assert (row.queue_seconds, row.ttft_seconds, row.backend_ttft_seconds) == (2, 4, 2)
    assert (row.tpot_seconds, row.seconds, row.slot_seconds) == (0.5, 11, 9)
    assert (row.output_tokens_max, row.prompt_tokens_estimated, row.outcome) == (300, 90, "completed")
    assert row.prefill_seconds_predicted is not None
    assert links(row.chain) == a_chain(7, 8)
    assert {type(value) for value in row} <= {str, int, float, bytes, type(None)}


def test_a_request_that_never_started_has_no_place_and_no_tokens() -> None:
    """What is not known is NULL, and the gateway's own id stands in for the client's."""
    record = Record("r", "/v1/messages", 1.0)
    record.outcome, record.error, record.ended = "rejected", "queue_full", 1.5
    row = row_of(record, NOW)
    assert (row.request_id, row.outcome, row.error, row.seconds) == ("r", "rejected", "queue_full", 0.5)
    nothing = ("backend", "served_model", "source", "prompt_tokens", "slot_seconds", "queue_seconds", "chain")
    assert [getattr(row, name) for name in nothing] == [None] * len(nothing)


def test_names_that_clients_chose_are_bounded_and_writable(journal: Journal, path: Path) -> None:
    """A megabyte, half a character or a zero byte in a name does not cost the batch its row."""
    names = ["x" * 1_000_000, "half \ud800", "zero \0 byte", "Ünïcödé 漢字", "'; DROP TABLE requests; --"]
    journal.append([row_of(a_record(model=name, agent=name, conversation=name), NOW) for name in names], NOW)
    written = [(row.model, row.agent, row.conversation) for row in rows(path)]
    shown = ["x" * TEXT_MAX, "half ?", *names[2:]]
    assert written == [(name, name, name) for name in shown]


def test_a_long_chain_keeps_what_prompts_have_in_common() -> None:
    """Of thousands of links some hundreds are kept, and a prompt that goes on keeps the same ones."""
    long = a_chain(*range(1, 4000))
    kept, longer = links(packed(long)), links(packed((*long, *a_chain(*range(5000, 15_000))[3999:])))
    assert len(kept) <= LINKS_MAX + 1
    assert len(longer) <= LINKS_MAX + 1
    assert (kept[-1], longer[-1].end_bytes) == (long[-1], 10_000_000)
    assert {link for link in longer if link.end_bytes < 3_999_000} < set(kept)


@pytest.mark.parametrize("chain", [(), a_chain(2**64 - 1), a_chain(*range(LINKS_MAX))], ids=len)
def test_a_chain_comes_back_as_it_was(chain: Chain) -> None:
    """Up to the bound nothing of it is lost."""
    assert links(packed(chain)) == chain


# -- the file ------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_by_arrival(journal: Journal, path: Path) -> None:
    """Whole and in order, also while the writer has it open; `since` leaves earlier ones out."""
    written = [a_row(str(n), arrived=NOW + at) for n, at in enumerate((3.0, 1.0, 2.0))]
    journal.append(written, NOW)
    assert list(rows(path)) == [written[1], written[2], written[0]]
    assert list(rows(path, NOW + 2)) == [written[2], written[0]]


def test_it_goes_on_where_it_ended(path: Path) -> None:
    """A second gateway on the same file adds to it, at the same time or later; one file is left."""
    with closing(Journal(str(path), 30, BYTES_MAX)) as one, closing(Journal(str(path), 30, BYTES_MAX)) as two:
        one.append([a_row("1")], NOW)
        two.append([a_row("2")], NOW)
        one.append([a_row("3")], NOW)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert [row.id for row in rows(path)] == ["1", "2", "3"]


def test_old_rows_go(journal: Journal, path: Path) -> None:
    """Those older than `journal_days`, also when no new ones come."""
    journal.append(
        [a_row("old", arrived=NOW - 31 * DAY_SECONDS), a_row("new", arrived=NOW)], NOW - DAY_SECONDS
    )
    assert len(list(rows(path))) == 2
    journal.append([], NOW)
    assert [row.id for row in rows(path)] == ["new"]


def test_the_file_stays_within_its_bytes(journal: Journal, path: Path) -> None:
    """However much comes, file and log together stay below the bound, and the newest rows are there."""
    big, largest = b"x" * 4000, 0
    for batch in range(60):
        journal.append([a_row(f"{batch}.{n}", arrived=NOW + batch, chain=big) for n in range(200)], NOW)
        largest = max(largest, sum(file.stat().st_size for file in path.parent.iterdir()))
    assert 60 * 200 * len(big) > 2 * BYTES_MAX
    assert BYTES_MAX / 3 < largest <= BYTES_MAX
    kept = [row.id for row in rows(path)]
    assert kept[-1] == "59.199"
    assert len(kept) > 500


def test_a_lowered_bound_makes_the_file_smaller(path: Path) -> None:
    """Batch by batch, not at once."""
    with closing(Journal(str(path), 30, 10 * BYTES_MAX)) as journal:
        for batch in range(30):
            journal.append([a_row(str(n), arrived=NOW + batch, chain=b"x" * 4000) for n in range(200)], NOW)
    before = path.stat().st_size
    with closing(Journal(str(path), 30, BYTES_MAX)) as journal:
        for _ in range(10):
            journal.append([], NOW)
    assert path.stat().st_size <= BYTES_MAX - WAL_BYTES < before


# -- what is not a journal -------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE requests (id TEXT)")


def of_the_future(path: Path) -> None:
    Journal(str(path), 30, BYTES_MAX).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {VERSION + 1}")


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database at all " * 1000)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (foreign, "a database of something else"),
        (of_the_future, f"version {VERSION + 1}"),
        (garbage, "not a database"),
        (Path.mkdir, "unable to open|no such file"),
    ],
)
def test_another_file_is_left_alone(path: Path, spoil: Any, why: str) -> None:
    """It is neither written nor read, and the reason is told."""
    spoil(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(JournalError, match=why):
        Journal(str(path), 30, BYTES_MAX)
    with pytest.raises(JournalError, match=why):
        list(rows(path))
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_file_that_is_not_there_is_not_made_by_reading(path: Path) -> None:
    """Nor is one that nobody has written to a journal of no requests."""
    with pytest.raises(JournalError, match="no such file"):
        list(rows(path))
    assert not path.exists()
    path.touch()
    with pytest.raises(JournalError, match="nothing has been written yet"):
        list(rows(path))


def test_a_damaged_file_fails_with_a_reason(path: Path) -> None:
    """Pages that were overwritten are an error for the writer and the reader, not wrong figures."""
    with closing(Journal(str(path), 30, BYTES_MAX)) as journal:
        journal.append([a_row(str(n), arrived=NOW + n) for n in range(500)], NOW)
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(JournalError, match="malformed"):
        list(rows(path))
    with (
        pytest.raises(JournalError, match="malformed"),
        closing(Journal(str(path), 30, BYTES_MAX)) as journal,
    ):
        journal.append([a_row("more")], NOW)


def test_a_half_written_batch_leaves_nothing(journal: Journal, path: Path) -> None:
    """A row that the table does not take takes its batch with it, and the next batch is written."""
    wrong = a_row("wrong")._replace(outcome=None)  # type: ignore[arg-type]
    with pytest.raises(JournalError, match="NOT NULL"):
        journal.append([a_row("first"), wrong], NOW)
    journal.append([a_row("second")], NOW)
    assert [row.id for row in rows(path)] == ["second"]


def test_the_file_says_what_it_is(journal: Journal, path: Path) -> None:
    """Other programs see whose it is and which version."""
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert other.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        columns = [name for _, name, *_ in other.execute("PRAGMA table_info(requests)")]
    assert columns == list(Row._fields)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 200])
def test_any_number_of_rows_is_written_whole(tmp_path: Path, count: int) -> None:
    """Many by one step, the rest by smaller ones; what is not known stays so."""
    path = tmp_path / "j.db"
    some = [
        a_row(str(n), arrived=NOW + n, error="late" if n % 3 else None, ttft_seconds=None if n % 2 else 0.5)
        for n in range(count)
    ]
    with closing(Journal(str(path), 30, BYTES_MAX)) as journal:
        journal.append(some, NOW)
    assert list(rows(path)) == some
