"""`slotgate usage`."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.admin_client import ADMIN_URL, AdminClient, AdminToken, AdminUrl, AsJson
from gateway.cli.failure import CommandFailed

if TYPE_CHECKING:
    from rich.table import Table

FIGURES = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "slot_seconds",
)


def usage(
    by: Annotated[str, typer.Option(metavar="agent|model|backend", help="Whose accounts.")] = "agent",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="A date or time (UTC), or how long ago: 30m, 24h, 7d.")
    ] = "",
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV: a line for each source of token counts.")
    ] = False,
    journal: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read this journal instead of asking a gateway.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the journal as a trace for `slotgate simulate`; no table."),
    ] = None,
    admin: AdminUrl = ADMIN_URL,
    token: AdminToken = "",
) -> None:
    """Show who used how many tokens and slot seconds.

    They are summed up from the journal. Tokens are those that engines counted; where one did not, they are
    estimated and shown so.

    \b
    Examples:
      slotgate usage
      slotgate usage --by backend --since 24h
      slotgate usage --since 2027-01-01 --csv > january.csv
      slotgate usage --journal slotgate.db --trace day.jsonl --since 24h
    """
    from gateway.usage import By

    if by not in list(By):
        raise CommandFailed(f"--by {by} is not known; there are: {', '.join(By)}.", 2)
    if as_json and as_csv:
        raise CommandFailed("Give only one of --json and --csv.", 2)
    if trace is not None:
        if journal is None:
            raise CommandFailed("--trace is made from a journal's file: name it with --journal.", 2)
        _write_trace(journal, trace, since)
        return
    found = _asked(by, since, admin, token) if journal is None else _read(journal, by, since)
    if as_json:
        print(json.dumps(found))
    elif as_csv:
        _print_csv(found, by)
    else:
        from gateway.cli.tables import console

        console().print(accounts_table(found, by))


def _asked(by: str, since: str, admin: str, token: str) -> list[dict[str, Any]]:
    with AdminClient(admin, token) as client:
        found: list[dict[str, Any]] = client.get(f"/admin/usage?by={by}&since={quote(since, safe='')}")
    return found


def _read(journal: Path, by: str, since: str) -> list[dict[str, Any]]:
    from gateway.usage import By, accounts

    start = _start(since)
    with _reading():
        return [asdict(account) for account in accounts(journal, By(by), start)]


def _start(since: str) -> float:
    from gateway.usage import moment

    try:
        return moment(since, time.time()) if since else 0.0
    except (ValueError, OverflowError):
        raise CommandFailed(
            f"--since {since} is no time; give one as 2027-01-31T12:00:00Z, or how long ago, as 24h or 7d.", 2
        ) from None


def _write_trace(journal: Path, file: Path, since: str) -> None:
    from gateway.journal import rows
    from gateway.mooncake import trace

    start, written = _start(since), 0
    try:
        with _reading(), file.open("w", encoding="utf-8") as out:
            for line in trace(rows(journal, start)):
                out.write(line + "\n")
                written += 1
    except OSError as error:
        raise CommandFailed(f"Cannot write {file}: {error.strerror}; name another with --trace.") from None
    print(f"{written} requests written; play them with: slotgate simulate --workload {file}", file=sys.stderr)


@contextmanager
def _reading() -> Iterator[None]:
    """Read a journal inside."""
    from gateway.journal import JournalError

    try:
        yield
    except JournalError as error:
        raise CommandFailed(f"The journal cannot be read: {error}; name another with --journal.") from None


def _print_csv(found: list[dict[str, Any]], by: str) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow((by, "source", *FIGURES))
    for account in found:
        for source, sums in account["by_source"].items():
            out.writerow((account["name"], source, *(sums[name] for name in FIGURES)))


def accounts_table(found: list[dict[str, Any]], by: str) -> Table:
    """A row for each account, the largest first."""
    from gateway.cli.tables import cell, table

    shown = table(by, *(name.replace("_", " ") for name in FIGURES), "estimated")
    for column in shown.columns[1:]:
        column.justify = "right"
    for account in found:
        tokens = account["prompt_tokens"] + account["completion_tokens"]
        guessed = account["by_source"].get("estimated", {"prompt_tokens": 0, "completion_tokens": 0})
        share = (guessed["prompt_tokens"] + guessed["completion_tokens"]) / tokens if tokens else 0.0
        figures = (f"{round(account[name]):,}" for name in FIGURES)
        shown.add_row(cell(account["name"] or "-"), *map(cell, figures), cell(f"{share:.0%}"))
    return shown
