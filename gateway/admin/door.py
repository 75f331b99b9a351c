"""The one way into the admin port."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors
from gateway.api import answer
from gateway.auth import AdminGuard
from gateway.edge import AsgiArrival, headers_of
from gateway.intake import Intake

BODY_BYTES_MAX = 65_536
BODIES_BYTES_MAX = 16_777_216  # of those that are on their way


class Door:
    """Who may not come in hears nothing else, not even which paths exist: it stands before the router,
    so that no route can be left open by forgetting to close it.

    `pages`: what hangs outside, for everybody to read, by path. `intake`: for what is brought in.
    """

    def __init__(self, app: ASGIApp, guard: AdminGuard, pages: Mapping[str, ASGIApp], intake: Intake) -> None:
        self._app = app
        self._guard = guard
        self._pages = pages
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers_of(scope["headers"])
            if scope["method"] in ("GET", "HEAD") and scope["path"] in self._pages:
                await self._pages[scope["path"]](scope, receive, send)
                return
            self._guard.check(scope["headers"])
            if scope["path"] in self._pages:
                raise errors.MethodNotAllowed(scope["path"], "GET, HEAD")
            body = await AsgiArrival(scope, receive, send).body(self._intake)
        except errors.ClientGone:
            return
        except errors.GatewayError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, _again(body, receive), send)


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the route; then whatever comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received
