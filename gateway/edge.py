"""The HTTP edge: what of a request is let in, by size and time, before anything is known of it.

Plain ASGI functions over uvicorn. httptools, which uvicorn uses, has no limit on headers of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway import errors

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADER_FIELDS_MAX = 100
HEADER_BYTES_MAX = 65_536
BODY_SECONDS_MAX = 60.0


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The request's headers by lower-case name; of a repeated one the last.

    Raises HeadersTooLarge.
    """
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    if (
        len(fields) > HEADER_FIELDS_MAX
        or sum(len(name) + len(value) for name, value in fields) > HEADER_BYTES_MAX
    ):
        raise errors.HeadersTooLarge(HEADER_FIELDS_MAX, HEADER_BYTES_MAX)
    return dict(fields)


async def read_body(receive: Receive, headers: dict[bytes, bytes], bytes_max: int) -> bytes:
    """The whole body.

    Raises BodyTooLarge (at once if the client declares it), RequestTimeout, ClientGone.
    """
    declared = headers.get(b"content-length", b"0")
    if declared.isdigit() and int(declared) > bytes_max:
        raise errors.BodyTooLarge(bytes_max)
    message = await _first(receive)
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise errors.BodyTooLarge(bytes_max)
    if not message.get("more_body", False):
        return body
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            return await _rest(receive, body, bytes_max)
    except TimeoutError:
        raise errors.RequestTimeout(BODY_SECONDS_MAX) from None


async def _first(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise errors.ClientGone
    return message


async def _rest(receive: Receive, first: bytes, bytes_max: int) -> bytes:
    parts, size = [first], len(first)
    while True:
        message = await _first(receive)
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > bytes_max:
            raise errors.BodyTooLarge(bytes_max)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
