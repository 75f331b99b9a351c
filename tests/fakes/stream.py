"""The bytes of an event stream, and the ways in which a script can spoil them."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from tests.fakes.openai import OpenAI
from tests.fakes.script import Script
from tests.fakes.slots import Record
from tests.fakes.wire import Connection, head


class Broken(Exception):
    """The script ended the answer in its own way."""


class EventStream:
    """One streamed response, written event by event."""

    def __init__(
        self, connection: Connection, script: Script, record: Record, personality: OpenAI, done: bool
    ) -> None:
        self._connection = connection
        self._script = script
        self._record = record
        self._personality = personality
        self._done = done  # whether a good stream ends with [DONE]
        framing = script.framing or ("close" if personality.closes else "chunked")
        self._chunked = framing == "chunked"
        self._open = False

    async def open(self) -> None:
        """Send the head, once."""
        if self._open:
            return
        self._open = True
        self._record.first_byte = time.monotonic()
        if not self._chunked:
            self._connection.closes = True
        framing = ("Transfer-Encoding", "chunked") if self._chunked else ("Connection", "close")
        type = self._personality.stream_type
        await self._write(head(200, [*self._personality.headers, ("Content-Type", type), framing]))

    async def comment(self) -> None:
        """Send what engines send while they prefill; a script that counts events does not count it."""
        await self.open()
        alive = self._personality.keepalive(self._record.path)
        if self._script.comment is None and alive is not None:
            await self._send(self._named(alive[0]) + self._data(alive[1]))
        else:
            await self._send((self._script.comment or ": prefill") + self._script.newline * 2)

    async def event(self, value: dict[str, Any], name: str | None = None) -> None:
        """Send one data event."""
        await self.raw(self._named(name) + self._data(value))

    async def raw(self, text: str) -> None:
        """Send one event's text as it is, unless it is here that the script ends the stream."""
        await self.open()
        await self.end_early(text)
        await self._send(text)
        self._record.events += 1

    async def done(self) -> None:
        """Send the marker as often as is due, and what the script puts behind it."""
        await self.open()
        times = self._done if self._script.done is None else self._script.done
        await self._send(self._line("data", "[DONE]") * times + self._script.after_done)

    async def close(self) -> None:
        """End the response."""
        if self._chunked:
            await self._write(b"0\r\n\r\n")
        else:
            self._connection.close()

    async def error(self, value: dict[str, Any] | None = None) -> None:
        """Send an error, this one or the engine's usual one, and end the response."""
        await self.open()
        route, script = self._record.path, self._script
        named = self._personality.names_error(route) if script.error_name is None else script.error_name
        value = value or script.error or self._personality.stream_error(route)
        await self._send(self._named("error" if named else None) + self._data(value))
        if script.done or (script.done is None and self._done and self._personality.done_after_error):
            await self.done()
        await self.close()

    async def end_early(self, following: str = "") -> None:
        """End the stream as the script says, if it is to end after the events sent so far."""
        script, sent = self._script, self._record.events
        if script.error_after == sent:
            await self.error()
            raise Broken
        if script.cut is not None and script.cut_after == sent:
            if script.cut_inside:
                await self._send(following[: len(following) // 2])
            if script.cut == "clean":
                await self.close()
                raise Broken
            await cut(self._connection, script.cut)

    def _named(self, name: str | None) -> str:
        return f"event: {name}{self._script.newline}" if name else ""

    def _data(self, value: dict[str, Any]) -> str:
        return self._line("data", json.dumps(value, separators=(",", ":"), ensure_ascii=False))

    def _line(self, name: str, value: str) -> str:
        space = " " if self._script.space else ""
        return f"{name}:{space}{value}{self._script.newline * 2}"

    async def _send(self, text: str) -> None:
        data = text.encode()
        if data:
            await self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    async def _write(self, data: bytes) -> None:
        size = self._script.split_bytes or len(data)
        for at in range(0, len(data), size):
            self._connection.write(data[at : at + size])
            await self._connection.drain()
            if self._script.split_bytes:
                await asyncio.sleep(self._script.split_seconds)


async def cut(connection: Connection, how: str) -> None:
    """End a response in its middle: `fin`, `rst`, or silence until the client has enough."""
    match how:
        case "rst":
            connection.reset()
        case "stall":
            await asyncio.Event().wait()
        case _:
            connection.close()
    raise Broken
