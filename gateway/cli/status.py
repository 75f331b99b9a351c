"""`slotgate status`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import ADMIN_URL, AdminClient, AdminToken, AdminUrl, AsJson
from gateway.cli.failure import CommandFailed

REFRESH_SECONDS = 1.0


def status(
    once: Annotated[bool, typer.Option("--once", help="Print it once; so it is in a pipe.")] = False,
    as_json: AsJson = False,
    admin: AdminUrl = ADMIN_URL,
    token: AdminToken = "",
) -> None:
    """Show backends, slots, queue and running requests.

    On a terminal the page is live. A slot is in use (#), left by its client while the engine may still
    be at it (-), taken by a request that is not the gateway's (x), or free (.).

    \b
    Examples:
      slotgate status
      slotgate status --once --admin http://10.0.0.5:8401
      slotgate status --json | jq '.backends[].slots'
    """
    from gateway.cli.status_page import page
    from gateway.cli.tables import console

    with AdminClient(admin, token) as client:
        now = _look(client)
        if as_json:
            print(json.dumps(now))
        elif once or not sys.stdout.isatty():
            console().print(page(now))
        else:
            _follow(client, now)


def _look(client: AdminClient) -> dict[str, Any]:
    return {part: client.get(f"/admin/{part}") for part in ("backends", "queue", "requests")}


def _follow(client: AdminClient, now: dict[str, Any]) -> None:
    """Until Ctrl-C; while the gateway restarts, its last state stays on the screen."""
    from rich.console import Group
    from rich.live import Live

    from gateway.cli.status_page import page
    from gateway.cli.tables import cell, console

    with Live(page(now), console=console(), auto_refresh=False) as live:
        try:
            while True:
                time.sleep(REFRESH_SECONDS)
                try:
                    now = _look(client)
                    live.update(page(now), refresh=True)
                except CommandFailed as failed:
                    live.update(Group(page(now), cell(failed, "red")), refresh=True)
        except KeyboardInterrupt:
            return
