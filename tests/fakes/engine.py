"""A scriptable inference engine, and the judge of the gateway in front of it: the engine counts.

    python -m tests.fakes.engine --port 0 --personality llamacpp --slots 2

prints `READY <port>`. Beside the engine's own routes there is a control API: see `control`.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
import time
from collections import Counter, deque
from typing import Any

from tests.fakes import control
from tests.fakes.answer import Answer, count_tokens, prompt_key, prompt_text
from tests.fakes.options import Options, read
from tests.fakes.personality import PERSONALITIES
from tests.fakes.script import COMPLETIONS, Script, Scripts
from tests.fakes.slots import Record, Records, Slots
from tests.fakes.stream import Broken, EventStream, cut
from tests.fakes.wire import Connection, Door, Request, Response, json_object, json_response

KEPT_REQUESTS = 8192
KEPT_BYTES = 64 * 1024 * 1024


class FakeEngine:
    """One engine: its slots, its serial prefill, its scripts and its counts."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.slots = Slots(options.slots, caches=options.prefix_cache)
        self.records = Records()
        self.personality = PERSONALITIES[options.personality](options, self.slots, self.records)
        self.door = Door(self.serve, options.idle_seconds)
        self.scripts = Scripts()
        self.probes: Counter[str] = Counter()
        self.requests: deque[Request] = deque()
        self._kept_bytes = 0  # of bodies
        self._prefill = asyncio.Lock()
        self._ready_at = time.monotonic() + options.loading_seconds

    async def serve(self, request: Request, connection: Connection) -> None:
        """Answer one request."""
        if request.path.startswith("/_fake/"):
            connection.respond(control.answer(self, request))
            return
        completion = request.method == "POST" and request.path in COMPLETIONS
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
        if script.status is not None:
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
        body = json_object(request.body)
        if body is None:
            connection.respond(self.personality.error(400, "The body is not JSON", "invalid_request_error"))
            return
        prompt = prompt_text(body)
        record = self.records.open(
            Record(
                id=request.header("x-request-id"),
                key=prompt_key(body),
                path=request.path,
                stream=body.get("stream") is True,
                connection=request.connection,
                nth=request.nth,
                arrived=request.arrived,
                prompt_tokens=count_tokens(prompt),
            )
        )
        script = self.scripts.take(request) or Script()
        sequence: str | None = None
        try:
            if script.status is not None and script.prefill_seconds is None:
                self._instead(connection, script, record)
            elif self.personality.checks_model and body.get("model") not in self.personality.models:
                record.outcome = "refused"
                connection.respond(self.personality.model_not_found(str(body.get("model"))))
            else:
                await self.slots.take(record, prompt)
                sequence = prompt + await self._answer(connection, script, record, body, prompt)
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

    async def _answer(
        self, connection: Connection, script: Script, record: Record, body: dict[str, Any], prompt: str
    ) -> str:
        """Answer in the slot that was taken; returns what was said."""
        room = self.options.context_tokens - record.prompt_tokens
        if room <= 0:
            record.outcome = "refused"
            connection.respond(self.personality.overlength(record.prompt_tokens))
            return ""
        chat = record.path == COMPLETIONS[0]
        asked = (body.get("stream_options") or {}).get("include_usage") is True
        answer = Answer(
            id=f"{'chatcmpl' if chat else 'cmpl'}-{self.records.received:08d}",
            created=int(time.time()),
            model=str(body.get("model") or self.personality.models[0]),
            chat=chat,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            wants_usage=script.usage in ("always", "cumulative") or (asked and script.usage == "asked"),
        )
        answer.say(body, prompt, script, self.options.tokens, room)
        stream = EventStream(connection, script, record, self.personality.headers)
        started = time.monotonic()
        if script.head_first:
            await stream.open()
        await self._prefill_for(record, script, stream)
        answer.prefill_seconds = time.monotonic() - started
        if script.status is not None:
            self._instead(connection, script, record)
        elif script.cut is not None and script.cut_after is None:
            await cut(connection, script.cut)
        elif record.stream and not script.plain:
            await self._stream(stream, script, record, answer)
        else:
            await self._whole(connection, script, record, answer)
        return answer.text

    def _instead(self, connection: Connection, script: Script, record: Record) -> None:
        """Send the scripted answer."""
        record.outcome, record.first_byte = "scripted", time.monotonic()
        headers = list(script.headers)
        type = next((value for name, value in headers if name.lower() == "content-type"), None)
        response = Response(script.status or 200, script.body.encode(), headers)
        if type is not None:
            response.type = type
            response.headers = [(name, value) for name, value in headers if name.lower() != "content-type"]
        connection.respond(response)

    async def _prefill_for(self, record: Record, script: Script, stream: EventStream) -> None:
        """Spend the time of the prefill, which the engine does for one request at a time."""
        if script.prefill_seconds is not None:
            await _wait(script.prefill_seconds, script, stream)
        elif not self.options.instant:
            seconds = (record.prompt_tokens - record.cached_tokens) / self.options.prefill_tps
            async with self._prefill:
                await _wait(seconds, script, stream)
        else:
            await asyncio.sleep(0)

    async def _stream(self, stream: EventStream, script: Script, record: Record, answer: Answer) -> None:
        seconds = script.token_seconds
        if seconds is None:
            seconds = 0.0 if self.options.instant else 1 / self.options.decode_tps
        await stream.open()
        if script.raw is not None:
            for text in script.raw:
                await stream.raw(text)
                await asyncio.sleep(seconds)
            await stream.end_early()
            await self._end(stream, script, record)
            return
        for value in self.personality.opening(answer):
            await stream.event(value)
        if script.first_token_seconds:
            await asyncio.sleep(script.first_token_seconds)
        began = due = time.monotonic()
        for delta, tokens in answer.events(script.tokens_per_event):
            if seconds and answer.sent:
                due += seconds * tokens
                await asyncio.sleep(due - time.monotonic())
            answer.sent += tokens
            value = self.personality.chunk(answer, delta, None)
            if script.usage == "cumulative":
                value["usage"] = answer.usage
            await stream.event(value)
            record.completion_tokens = answer.sent
            record.first_token = record.first_token or time.monotonic()
        answer.decode_seconds = time.monotonic() - began
        for value in self.personality.closing(answer, script.usage == "finish"):
            await stream.event(value)
        await stream.end_early()
        await stream.done(1 if script.done is None else script.done)
        await self._end(stream, script, record)

    async def _end(self, stream: EventStream, script: Script, record: Record) -> None:
        record.outcome = "completed"
        if script.end_seconds:
            self.slots.finish(record)
            await asyncio.sleep(script.end_seconds)
        await stream.close()

    async def _whole(self, connection: Connection, script: Script, record: Record, answer: Answer) -> None:
        tokens = sum(tokens for _, tokens in answer.events(1))
        if not self.options.instant or script.token_seconds is not None:
            each = 1 / self.options.decode_tps if script.token_seconds is None else script.token_seconds
            await asyncio.sleep(each * tokens)
            answer.decode_seconds = each * tokens
        answer.sent = record.completion_tokens = tokens
        record.outcome, record.first_byte = "completed", time.monotonic()
        response = json_response(self.personality.whole(answer))
        response.headers = list(self.personality.headers)
        if script.cut is None:
            connection.respond(response)
            return
        connection.respond(response, body_bytes=len(response.body) // 2 if script.cut_after else 0)
        await cut(connection, script.cut)

    def resize(self, slots: int, context_tokens: int | None = None) -> None:
        """Have other slots, as after a restart; what runs goes on."""
        if context_tokens is not None:
            self.options.context_tokens = context_tokens
        self.slots.resize(slots)
        self.personality.started += 1

    def reset(self) -> None:
        """Behave, and count from here; what runs goes on."""
        self.scripts.clear()
        self.slots.reset()
        self.records.reset()
        self.probes.clear()
        self.requests.clear()
        self._kept_bytes = 0

    def _keep(self, request: Request) -> None:
        self.requests.append(request)
        self._kept_bytes += len(request.body)
        while len(self.requests) > KEPT_REQUESTS or self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= len(self.requests.popleft().body)


async def _wait(seconds: float, script: Script, stream: EventStream) -> None:
    """Sleep, with the comments that the script wants: their number depends on its figures only."""
    start, every = time.monotonic(), script.comment_seconds or math.inf
    for number in range(1, math.ceil(seconds / every)):
        await asyncio.sleep(start + number * every - time.monotonic())
        await stream.comment()
    await asyncio.sleep(start + seconds - time.monotonic())


async def main() -> None:
    """Serve until SIGTERM."""
    options = read()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(FakeEngine(options).door, options.host, options.port, backlog=4096)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sys.stdout.write(f"READY {server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await stop.wait()


if __name__ == "__main__":
    asyncio.run(main())
