"""`slotgate resume`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from gateway.cli.admin_client import ADMIN_URL, AdminClient, AdminToken, AdminUrl, AsJson, backend_path


def resume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backend, as `slotgate status` names it.")],
    as_json: AsJson = False,
    admin: AdminUrl = ADMIN_URL,
    token: AdminToken = "",
) -> None:
    """Take a drained backend back: it is warmed up and then ready.

    \b
    Examples:
      slotgate resume spark-1
    """
    with AdminClient(admin, token) as client:
        answer = client.post(backend_path(name, "resume"))
    if as_json:
        print(json.dumps({"name": name} | answer))
    elif answer["state"] == "ready":
        print(f"{name} is ready")
    else:
        print(f"{name} is {answer['state']}; `slotgate status` shows when it is ready")
