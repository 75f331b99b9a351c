"""`slotgate key`."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sys
from typing import Annotated

import typer

from gateway.cli.admin_client import AsJson
from gateway.cli.failure import CommandFailed

PREFIX = "sg-"  # tells people and scanners for secrets what it is
BYTES = 32

HELP = """Client keys.

\b
Examples:
  slotgate key new team-a
"""

key = typer.Typer(no_args_is_help=True, help=HELP)


@key.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is for; in accounts and logs.")],
    as_json: AsJson = False,
) -> None:
    """Make a key.

    The table for the configuration, which holds its hash alone, goes to standard output; the key to standard
    error, so that it gets into no file. What is shown is its only copy. After the table is in the file,
    reload the gateway (SIGHUP, or POST /admin/reload).

    \b
    Examples:
      slotgate key new team-a
      slotgate key new team-a >> slotgate.toml
      slotgate key new team-a --json
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise CommandFailed("NAME must be up to 64 letters, digits, dots, dashes and underscores.", 2)
    secret = PREFIX + secrets.token_urlsafe(BYTES)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    if as_json:
        print(json.dumps({"name": name, "key": secret, "sha256": digest}))
    else:
        print(f"for the client: {secret}", file=sys.stderr, flush=True)
        print(f'\n[[keys]]\nname = "{name}"\nsha256 = "{digest}"')
