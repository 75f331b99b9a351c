"""Talking to a running gateway's admin port."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

from gateway import errors
from gateway.cli.failure import CommandFailed

if TYPE_CHECKING:
    import httpx

ADMIN_URL = "http://127.0.0.1:8401"
ANSWER_SECONDS = 10.0

AdminUrl = Annotated[
    str, typer.Option("--admin", envvar="SLOTGATE_ADMIN_URL", metavar="URL", help="The gateway's admin port.")
]
AdminToken = Annotated[
    str,
    typer.Option(
        "--token", envvar="SLOTGATE_ADMIN_TOKEN", metavar="TOKEN", help="Its token.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class AdminClient:
    """`with` it; every failure is a `CommandFailed`."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        if not _is_url(url):
            raise CommandFailed(f"--admin must be a URL such as {ADMIN_URL}, not {url!r}.", 2)
        if not re.fullmatch(r"[!-~]*", token):
            raise CommandFailed("--token must be printable ASCII without blanks.", 2)
        self.url = url.rstrip("/")
        self._token = token
        headers = {"authorization": f"Bearer {token}"} if token else {}
        # Proxies of the environment are for the world outside, not for one's own gateway.
        self._http = httpx.Client(
            headers=headers, timeout=ANSWER_SECONDS, trust_env=False, transport=transport
        )

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        """The answer's JSON."""
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer's JSON."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        import httpx

        try:
            response = self._http.request(method, self.url + path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandFailed(
                f"No gateway answers at {self.url} ({str(error) or type(error).__name__}): start one with "
                "`slotgate serve`, or name its admin port with --admin or $SLOTGATE_ADMIN_URL."
            ) from None
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status_code == 200 and answer is not None:
            return answer
        raise CommandFailed(self._told(response.status_code, answer))

    def _told(self, status: int, answer: object) -> str:
        """What a refusal means for the one who typed the command."""
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if status == errors.InvalidApiKey.status:
            wrong = ", and this is not it" if self._token else ""
            return (
                f"{self.url} wants the admin token{wrong}: give server.admin_token of its configuration in "
                "$SLOTGATE_ADMIN_TOKEN or with --token."
            )
        # Engines have errors too, but without a code, or with a number for one.
        ours = isinstance(error, dict) and isinstance(error.get("code"), str)
        if not ours or not isinstance(message, str) or message.startswith(errors.NO_PATH):
            return f"{self.url} is not a gateway's admin port: name that with --admin or $SLOTGATE_ADMIN_URL."
        return message


def backend_path(name: str, verb: str = "") -> str:
    """The admin path of a backend, or of something to do with it."""
    return f"/admin/backends/{quote(name, safe='')}" + (f"/{verb}" if verb else "")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
