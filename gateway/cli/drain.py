"""`slotgate drain`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import ADMIN_URL, AdminClient, AdminToken, AdminUrl, AsJson, backend_path
from gateway.cli.failure import CommandFailed

LOOK_SECONDS = 0.5


def drain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backend, as `slotgate status` names it.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when nothing runs there any more.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Wait no longer; then exit code 1.")
    ] = 3600.0,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="For other people who look.")] = "",
    as_json: AsJson = False,
    admin: AdminUrl = ADMIN_URL,
    token: AdminToken = "",
) -> None:
    """Let no new request start on a backend; those that run finish.

    When it is drained its engine can be stopped without loss. `slotgate resume` takes it back.

    \b
    Examples:
      slotgate drain spark-1 --wait && systemctl restart engine
      slotgate drain spark-1 --wait --timeout 600 --reason "new driver"
    """
    with AdminClient(admin, token) as client:
        answer = client.post(backend_path(name, "drain"), {"reason": reason})
        if wait and answer["state"] == "draining":
            answer = _wait(client, name, timeout)
    if as_json:
        print(json.dumps({"name": name} | answer))
    elif answer["state"] == "drained":
        print(f"{name} is drained: safe to stop")
    else:
        print(f"{name} is {answer['state']}: {_requests(answer['in_flight'])} still running")
    if wait and answer["state"] == "draining":
        raise CommandFailed(
            f"{name} is not drained after {timeout:g} seconds: wait again, end what still runs "
            f"(DELETE /admin/requests/ID), or take it back with `slotgate resume {name}`."
        )


def _wait(client: AdminClient, name: str, seconds: float) -> dict[str, Any]:
    """Look until it is drained, the time is up, or somebody else resumes it."""
    from rich.console import Console

    end = time.monotonic() + seconds
    with Console(file=sys.stderr).status(f"{name} is draining") as progress:
        while True:
            backend = client.get(backend_path(name))
            state, slots = backend["state"], backend["slots"]
            answer = {"state": state, "in_flight": slots["in_use"] + slots["leaving"]}
            if state not in ("draining", "drained"):
                raise CommandFailed(
                    f"{name} was resumed while it drained: it is {state} now; drain it again."
                )
            if state == "drained" or time.monotonic() >= end:
                return answer
            progress.update(f"{name} is draining: {_requests(answer['in_flight'])} still running")
            time.sleep(min(LOOK_SECONDS, max(0.0, end - time.monotonic())))


def _requests(number: int) -> str:
    return "1 request is" if number == 1 else f"{number} requests are"
