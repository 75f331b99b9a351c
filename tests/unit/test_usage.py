"""Accounts: summed up right, asked over HTTP and by the command."""

from __future__ import annotations

import csv
import io
import json
import random
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.app import Gateway
from gateway.cli.app import main
from gateway.journal import Journal, JournalError
from gateway.options import AccountingSettings, BackendSettings
from gateway.row import Row
from gateway.settings import Settings
from gateway.usage import ACCOUNTS_MAX, By, accounts, moment
from tests.unit.test_journal import BYTES_MAX, NOW, a_row

ROWS = [
    a_row("1", agent="coder", backend="a", arrived=NOW, slot_seconds=2.5),
    a_row("2", agent="coder", backend="b", arrived=NOW + 1, source="estimated", cached_tokens=None),
    a_row("3", agent="writer", model="\x1b[31m", arrived=NOW + 2, reasoning_tokens=None, slot_seconds=100.0),
    a_row("4", agent="coder", backend=None, arrived=NOW + 3)._replace(
        source=None, prompt_tokens=None, cached_tokens=None, completion_tokens=None, reasoning_tokens=None,
        slot_seconds=None, outcome="rejected",
    ),
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "j.db"
    fill(path, ROWS)
    return path


def fill(path: Path, rows: list[Row]) -> None:
    with closing(Journal(str(path), 30, BYTES_MAX)) as journal:
        journal.append(rows, NOW)


def test_accounts_add_up(path: Path) -> None:
    """By source and in all; a request that no engine worked on counts as one."""
    writer, coder = accounts(path, By.AGENT)
    assert (writer.name, writer.requests, writer.slot_seconds) == ("writer", 1, 100.0)
    assert (coder.name, coder.requests, coder.slot_seconds) == ("coder", 3, 2.5 + 9.0)
    assert (coder.prompt_tokens, coder.cached_tokens, coder.completion_tokens) == (200, 40, 26)
    assert (coder.reasoning_tokens, writer.reasoning_tokens) == (10, 0)
    assert set(coder.by_source) == {"reported", "estimated", "none"}
    assert coder.by_source["estimated"].prompt_tokens == 100
    assert coder.by_source["none"].requests == 1


def test_accounts_of_a_backend_and_since(path: Path) -> None:
    """Requests that came to no backend have an account without a name."""
    assert {one.name: one.requests for one in accounts(path, By.BACKEND)} == {
        "a": 1,
        "b": 1,
        "spark-1": 1,
        "": 1,
    }
    assert [one.requests for one in accounts(path, By.MODEL, NOW + 2)] == [1, 1]
    assert accounts(path, By.AGENT, NOW + 4) == []


def test_sums_are_those_of_the_rows(tmp_path: Path) -> None:
    """Of a thousand random requests, and every way to look at them, nothing is lost or counted twice."""
    dice = random.Random(7)
    rows = [
        a_row(
            str(n),
            agent=dice.choice("abc"),
            model=dice.choice("xy"),
            backend=dice.choice(["p", "q", None]),
            source=dice.choice(["reported", "engine_timings", "estimated"]),
            prompt_tokens=dice.randrange(2**40),
            completion_tokens=dice.randrange(2**20),
        )
        for n in range(1000)
    ]
    fill(tmp_path / "j.db", rows)
    for by in By:
        found = accounts(tmp_path / "j.db", by)
        assert sum(one.requests for one in found) == 1000
        assert sum(one.completion_tokens for one in found) == sum(row.completion_tokens or 0 for row in rows)
        for one in found:
            own = [row for row in rows if (getattr(row, by) or "") == one.name]
            assert one.prompt_tokens == sum(row.prompt_tokens or 0 for row in own)
            assert sum(sums.prompt_tokens for sums in one.by_source.values()) == one.prompt_tokens


def test_accounts_are_bounded(tmp_path: Path) -> None:
    """A client that calls itself something else each time does not make an endless answer."""
    rows = [a_row(str(n), agent=f"agent {n}", slot_seconds=float(n)) for n in range(ACCOUNTS_MAX + 1)]
    fill(tmp_path / "j.db", rows)
    found = accounts(tmp_path / "j.db", By.AGENT)
    assert len(found) == ACCOUNTS_MAX
    assert (found[0].name, found[-1].name) == (f"agent {ACCOUNTS_MAX}", "agent 1")


def test_no_journal_is_no_account(tmp_path: Path) -> None:
    """It is told why."""
    with pytest.raises(JournalError, match="no such file"):
        accounts(tmp_path / "none.db", By.AGENT)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", NOW - 90),
        ("30m", NOW - 1800),
        ("24h", NOW - 86_400),
        ("7d", NOW - 7 * 86_400),
        ("4w", NOW - 28 * 86_400),
        ("2027-01-15", NOW - 8 * 3600),
        ("2027-01-15T08:00", NOW),
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00:00.5+01:00", NOW + 0.5),
    ],
)
def test_a_moment_is_a_time_or_how_long_ago(text: str, seconds: float) -> None:
    """Without a zone it is UTC."""
    assert moment(text, NOW) == seconds


@pytest.mark.parametrize(
    "text", ["", "yesterday", "24", "h", "-1h", "1.5h", "1y", "2027-13-01", "9" * 30 + "d"]
)
def test_what_is_no_moment_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"isoformat|month"):
        moment(text, NOW)


# -- over HTTP -------------------------------------------------------------------------------------------


async def asked(journal: str, query: str) -> httpx.Response:
    """What the admin port answers."""
    settings = Settings(
        backends=(BackendSettings(url="http://127.0.0.1:9"),), accounting=AccountingSettings(journal=journal)
    )
    gateway = Gateway(settings)
    transport = httpx.ASGITransport(gateway.admin)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8401") as operator:
        try:
            return await operator.get(f"/admin/usage{query}")
        finally:
            await gateway.fleet.close()


async def test_the_admin_port_tells_usage(path: Path) -> None:
    """By agent unless asked otherwise; each account with its sums by source."""
    found = (await asked(str(path), "")).json()
    assert [one["name"] for one in found] == ["writer", "coder"]
    assert found[1]["by_source"]["estimated"]["completion_tokens"] == 13
    assert [
        one["name"] for one in (await asked(str(path), "?by=model&since=2027-01-15T08:00:02Z")).json()
    ] == [
        "\x1b[31m",
        "m",
    ]


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [("?by=key", 400, "by"), ("?since=soon", 400, "since"), ("?since=0001-01-01", 200, None)],
)
async def test_a_wrong_question_is_told_so(path: Path, query: str, status: int, param: str | None) -> None:
    """With the parameter at fault."""
    answer = await asked(str(path), query)
    assert answer.status_code == status
    if param:
        assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(("journal", "why"), [("", "accounting.journal"), ("/nowhere/j.db", "no such file")])
async def test_without_a_journal_the_admin_port_says_so(journal: str, why: str) -> None:
    """404 with the reason, not an empty list."""
    answer = await asked(journal, "")
    assert answer.status_code == 404
    assert why in answer.json()["error"]["message"]


# -- the command -----------------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `slotgate usage`."""
    with pytest.raises(SystemExit) as exited:
        main(["usage", *map(str, arguments)])
    assert isinstance(exited.value.code, int)
    return exited.value.code, *capsys.readouterr()


def test_usage_as_a_table(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """A row for each account, with the share of tokens that no engine counted; nothing steers a terminal."""
    code, out, _ = run(capsys, "--journal", path)
    assert code == 0
    head, writer, coder = out.splitlines()
    assert head.split()[:2] == ["agent", "requests"]
    assert writer.split() == ["writer", "1", "100", "40", "13", "0", "100", "0%"]
    assert coder.split() == ["coder", "3", "200", "40", "26", "10", "12", "50%"]
    assert "\x1b" not in run(capsys, "--journal", path, "--by", "model")[1]


def test_usage_for_programs(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """JSON as the admin port gives it; CSV with a line for each source."""
    _, out, _ = run(capsys, "--journal", path, "--json", "--since", "2027-01-15T08:00:01Z")
    assert [(one["name"], one["requests"]) for one in json.loads(out)] == [("writer", 1), ("coder", 2)]
    _, out, _ = run(capsys, "--journal", path, "--csv")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [(line["agent"], line["source"], line["completion_tokens"]) for line in lines] == [
        ("writer", "reported", "13"),
        ("coder", "none", "0"),
        ("coder", "estimated", "13"),
        ("coder", "reported", "13"),
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--by", "key"), 2, "there are: agent, model, backend"),
        (("--json", "--csv"), 2, "only one of"),
        (("--trace", "t.jsonl"), 2, "--journal"),
        (("--journal", "j.db", "--since", "soon"), 2, "--since soon is no time"),
        (("--journal", "/nowhere/j.db"), 1, "no such file"),
        (("--journal", "/nowhere/j.db", "--trace", "/tmp"), 1, "cannot|Cannot"),
    ],
)
def test_a_wrong_use_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, words: str
) -> None:
    """That names the mend."""
    ended, out, err = run(capsys, *arguments)
    assert (ended, out, err.count("\n")) == (code, "", 1)
    assert any(word in err for word in words.split("|"))


def test_a_trace_is_played_by_the_simulator(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    """What the journal has seen is a workload."""
    trace = tmp_path / "t.jsonl"
    code, out, err = run(capsys, "--journal", path, "--trace", trace)
    assert (code, out) == (0, "")
    assert err == f"3 requests written; play them with: slotgate simulate --workload {trace}\n"
    with pytest.raises(SystemExit) as exited:
        main(["simulate", "--workload", str(trace), "--policy", "slotgate", "--engine", "ds4-64k", "--json"])
    assert exited.value.code == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 1
