"""A scriptable inference engine, and the judge of the gateway in front of it: the engine counts.

    python -m tests.fakes.engine --port 0 --personality llamacpp --slots 2

prints `READY <port>`. Beside the engine's own routes there is a control API: see `control`.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter, deque

from tests.fakes import control
from tests.fakes.ending import Ending
from tests.fakes.openai import budget
from tests.fakes.options import Options, read
from tests.fakes.personality import PERSONALITIES
from tests.fakes.prompt import count_tokens, prompt_key, prompt_text
from tests.fakes.reply import Reply
from tests.fakes.script import Script, Scripts
from tests.fakes.slots import Record, Records, Slots
from tests.fakes.stream import Broken
from tests.fakes.warmth import Warmth
from tests.fakes.wire import Connection, Door, Request, Response, json_object

KEPT_REQUESTS = 8192
KEPT_BYTES = 64 * 1024 * 1024
LAST_WORDS_SECONDS = 0.2  # between the end of what runs and that of the process


class FakeEngine:
    """One engine: its slots, its serial prefill, its scripts and its counts."""

    def __init__(self, options: Options) -> None:
        self.options = options
        face = PERSONALITIES[options.personality]
        kv_tokens = options.kv_tokens or options.slots * options.context_tokens
        warmth = Warmth(face.warm, face.block_tokens, kv_tokens, options.host_tokens)
        self.slots = Slots(options.slots, warmth, caches=options.prefix_cache, kv_tokens=options.kv_tokens)
        self.records = Records()
        self.personality = face(options, self.slots, self.records)
        self.door = Door(self.serve, options.idle_seconds, self.personality.sees_leaving)
        self.scripts = Scripts()
        self.prefill = asyncio.Lock()
        self.ending = Ending()
        self.probes: Counter[str] = Counter()
        self.requests: deque[Request] = deque()
        self._kept_bytes = 0  # of bodies
        self._ready_at = time.monotonic() + options.loading_seconds

    def loaded(self) -> None:
        """Its model is there, however long it was to take."""
        self._ready_at = time.monotonic()

    async def serve(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        if request.path.startswith("/_fake/"):
            connection.respond(control.answer(self, request))
            return
        if self.personality.closes:
            connection.closes = True
        completion = request.method == "POST" and self.personality.serves(request.path)
        if completion:
            self._keep(request)
        else:
            self.probes[f"{request.method} {request.path}"] += 1
        if time.monotonic() < self._ready_at:
            self.records.outcomes["loading"] += completion
            connection.respond(self.personality.loading())
        elif completion:
            await self._complete(request, connection)
        else:
            await self._other(request, connection)

    async def _other(self, request: Request, connection: Connection) -> None:
        script = self.scripts.take(request)
        if script is None:
            connection.respond(self.personality.other(request, json_object(request.body) or {}))
            return
        await asyncio.sleep(script.prefill_seconds or 0)
        if script.refusal:
            connection.respond(self.personality.refuse(script.refusal, request.path))
        elif script.status is not None:
            connection.respond(Response(script.status, script.body.encode(), list(script.headers)))
        elif script.cut == "rst":
            connection.reset()
        elif script.cut == "stall":
            await asyncio.Event().wait()
        elif script.cut is not None:
            connection.close()
        else:
            connection.respond(self.personality.other(request, json_object(request.body) or {}))

    async def _complete(self, request: Request, connection: Connection) -> None:
        unread = request.header("transfer-encoding") and not self.personality.reads_chunked
        body = None if unread else json_object(request.body)
        if body is None:
            self.records.outcomes["unread"] += 1
            connection.respond(self.personality.unread(request.path))
            return
        prompt = prompt_text(body)
        tokens = count_tokens(prompt)
        record = self.records.open(
            Record(
                id=request.header("x-request-id"),
                key=prompt_key(body),
                path=request.path,
                stream=body.get("stream") is True,
                connection=request.connection,
                nth=request.nth,
                arrived=request.arrived,
                prompt_tokens=tokens,
                budget=budget(body, tokens),
            )
        )
        script = self.scripts.take(request) or Script()
        reply = Reply(self, connection, script, record, body, prompt)
        sequence: str | None = None
        try:
            if not await reply.refused():
                await reply.wait()
                await self.slots.take(record, prompt)
                sequence = prompt + await reply.give()
        except Broken:
            record.outcome = "scripted"
        except asyncio.CancelledError:
            record.left = connection.left
            if record.outcome != "completed":
                record.outcome = "aborted"
            seconds = self.options.abort_seconds if script.abort_seconds is None else script.abort_seconds
            if record.started is not None and seconds:
                await asyncio.sleep(seconds)
            raise
        finally:
            self.slots.finish(record, sequence)
            self.records.close(record)

    def resize(self, slots: int, context_tokens: int | None = None) -> None:
        """Have other slots, as after a restart; what runs goes on."""
        if context_tokens is not None:
            self.options.context_tokens = context_tokens
        self.slots.resize(slots)
        self.personality.restarted()

    def reset(self) -> None:
        """Behave, and count from here; what runs goes on."""
        self.scripts.clear()
        self.slots.reset()
        self.records.reset()
        self.probes.clear()
        self.requests.clear()
        self._kept_bytes = 0

    async def end(self) -> None:
        """Do what the engine does between SIGTERM and its end."""
        if not self.personality.drains:
            return
        self.ending.draining = True
        if self.options.shutdown_seconds:
            await asyncio.sleep(self.options.shutdown_seconds)
            self.ending.end("error")
        else:
            self.ending.end("abort")
        self.slots.resize(self.slots.concurrent + 1)  # those that wait end, too
        await asyncio.sleep(LAST_WORDS_SECONDS)

    def _keep(self, request: Request) -> None:
        self.requests.append(request)
        self._kept_bytes += len(request.body)
        while len(self.requests) > KEPT_REQUESTS or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self.requests.popleft().body)


async def main(kind: type[FakeEngine]) -> None:
    """Serve until SIGTERM."""
    options = read(PERSONALITIES)
    loop = asyncio.get_running_loop()
    engine = kind(options)
    server = await loop.create_server(engine.door, options.host, options.port, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"READY {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await stop.wait()
    if not options.shutdown_seconds:
        server.close()
    await engine.end()


if __name__ == "__main__":
    asyncio.run(main(FakeEngine))
