"""How processes of one gateway ask each other: a call and its answer, pickled, over a Unix socket.

The sockets lie in a directory that only the gateway's own user may enter, and nobody else is listened to.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from gateway import errors

log = logging.getLogger("slotgate.workers")

Call = Callable[..., Awaitable[object]]


class Unanswered(Exception):
    """The other process is gone, or did not answer in time."""


async def ask(path: str, call: str, *arguments: object, seconds: float) -> Any:
    """What the process that listens there answers. Raises Unanswered, and GatewayError as the call does."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(pickle.dumps((call, arguments)))
                writer.write_eof()
                answer = pickle.loads(await reader.read())
            finally:
                writer.close()
    except (OSError, TimeoutError, EOFError, pickle.UnpicklingError) as fault:
        raise Unanswered(str(fault) or type(fault).__name__) from None
    if isinstance(answer, errors.GatewayError):
        raise answer
    return answer


async def listen(path: str, calls: Mapping[str, Call]) -> asyncio.Server:
    """Answer whoever asks there, until the server is closed."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call, arguments = pickle.loads(await reader.read())
            writer.write(pickle.dumps(await _done(calls[call], arguments)))
            await writer.drain()
        except (OSError, EOFError):  # who asked is gone
            return
        finally:
            writer.close()

    return await asyncio.start_unix_server(answered, path)


async def _done(call: Call, arguments: tuple[object, ...]) -> object:
    try:
        return await call(*arguments)
    except errors.GatewayError as error:
        return error
    except Exception:  # a defect of ours, of which the other process need not die
        log.exception("a call of another process failed inside the gateway")
        return errors.GatewayError()
