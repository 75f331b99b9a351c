"""`slotgate prefix`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import ADMIN_URL, AdminClient, AdminToken, AdminUrl, AsJson


def prefix(
    agents: Annotated[int, typer.Option("--agents", min=1, metavar="N", help="Show so many agents.")] = 20,
    as_json: AsJson = False,
    admin: AdminUrl = ADMIN_URL,
    token: AdminToken = "",
) -> None:
    """Show what breaks the cached prefixes of prompts.

    The most expensive agents come first. Each line is one kind of change between two turns of a
    conversation, or between the heads of an agent's conversations: in which byte of the body it was last
    seen, how many tokens the engines computed again for it since the gateway's start, how long that took, and
    what to change in the agent. [tools] and [all] mark what `prefix.stabilise` can hold still.

    \b
    Examples:
      slotgate prefix
      slotgate prefix --agents 5 --admin http://10.0.0.5:8401
      slotgate prefix --json | jq '.[] | select(.breaks > 0) | .agent'
    """
    from gateway.cli.prefix_table import page
    from gateway.cli.tables import console

    with AdminClient(admin, token) as client:
        found: list[dict[str, Any]] = client.get("/admin/prefix")
    if as_json:
        print(json.dumps(found[:agents]))
    else:
        console().print(page(found, agents))
