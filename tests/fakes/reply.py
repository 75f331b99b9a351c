"""One reply of a fake engine: what becomes of a request from its arrival to its last byte."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

from tests.fakes.answer import Answer
from tests.fakes.prompt import limit_asked
from tests.fakes.routes import CHAT, COMPLETIONS, EMBEDDINGS
from tests.fakes.script import Script
from tests.fakes.slots import Record
from tests.fakes.stream import Broken, EventStream, cut
from tests.fakes.wire import Connection, Response

if TYPE_CHECKING:
    from tests.fakes.engine import FakeEngine


class Reply:
    """The reply to one request, as its script and the engine's personality have it."""

    def __init__(
        self,
        engine: FakeEngine,
        connection: Connection,
        script: Script,
        record: Record,
        body: dict[str, Any],
        prompt: str,
    ) -> None:
        self._engine = engine
        self._personality = engine.personality
        self._connection = connection
        self._script = script
        self._record = record
        self._body = body
        self._prompt = prompt
        self._room = engine.options.context_tokens - record.prompt_tokens
        self._streams = record.stream and not script.plain and record.path != EMBEDDINGS
        self._answer = Answer(
            number=f"{engine.records.received:08d}",
            created=int(time.time()),
            model=str(body.get("model") or self._personality.models[0]),
            prompt_tokens=record.prompt_tokens,
            cached_tokens=0,
            limit=limit_asked(body),
            wants_usage=self._wants_usage(),
        )
        self._form = self._personality.form(record.path, self._answer, body)
        self._stream = EventStream(connection, script, record, self._personality, self._form.done)

    async def refused(self) -> bool:
        """Refuse it at its arrival, if there is a reason to."""
        personality, script, route = self._personality, self._script, self._record.path
        if self._instead and script.prefill_seconds is None:
            self._answer_instead()
            return True
        if self._engine.ending.draining and "draining" in personality.refusals:
            return self._refuse(personality.refuse("draining", route))
        if not personality.knows(self._body.get("model")):
            return self._refuse(personality.model_not_found(route, str(self._body.get("model"))))
        if personality.length_at_arrival and self._room <= 0:
            return self._refuse_length()
        response = personality.invalid(route, self._body, self._record.prompt_tokens)
        if response is not None:
            return self._refuse(response)
        if not (kind := personality.full(self._record)):
            return False
        error = personality.refused_in_stream(kind, route) if self._streams else None
        if error is None:
            return self._refuse(personality.refuse(kind, route))
        self._record.outcome = "refused"
        await self._stream.error(error)
        return True

    async def wait(self) -> None:
        """Do what the engine does before a slot is free."""
        if self._personality.head == "arrival" and self._head_early:
            await self._stream.open()

    async def give(self) -> str:
        """Answer in the slot that was taken; returns what was said."""
        script, record, answer = self._script, self._record, self._answer
        if self._room <= 0:
            self._refuse_length()
            return ""
        answer.cached_tokens = record.cached_tokens
        if record.path != EMBEDDINGS:
            answer.say(self._body, self._prompt, script, self._engine.options.tokens, self._room)
        started = time.monotonic()
        if script.head_first or (self._personality.head == "prefill" and self._head_early):
            await self._stream.open()
        await self._prefill()
        answer.prefill_seconds = time.monotonic() - started
        if self._instead:
            self._answer_instead()
        elif script.cut is not None and script.cut_after is None:
            await cut(self._connection, script.cut)
        elif self._streams:
            await self._give_stream()
        else:
            await self._give_whole()
        return answer.text

    # -- before the answer

    @property
    def _instead(self) -> bool:
        return self._script.status is not None or bool(self._script.refusal)

    @property
    def _head_early(self) -> bool:
        """Whether a head may be sent before the first token is there."""
        nothing = self._script.cut is not None and self._script.cut_after is None
        return self._streams and not self._instead and not nothing and self._room > 0

    def _wants_usage(self) -> bool:
        usage = self._script.usage
        if usage == "asked" and self._record.path in (CHAT, COMPLETIONS):  # the others tell it unasked
            return (self._body.get("stream_options") or {}).get("include_usage") is True
        return usage in ("asked", "always", "cumulative")

    def _refuse(self, response: Response) -> bool:
        self._record.outcome = "refused"
        self._connection.respond(response)
        return True

    def _refuse_length(self) -> bool:
        self._engine.records.overlength += 1
        response = self._personality.overlength(self._record.path, self._record.prompt_tokens)
        return self._refuse(response)

    def _answer_instead(self) -> None:
        """Send the scripted answer."""
        script, record = self._script, self._record
        record.outcome, record.first_byte = "scripted", time.monotonic()
        if script.refusal:
            self._connection.respond(self._personality.refuse(script.refusal, record.path))
            return
        response = Response(script.status or 200, script.body.encode(), list(script.headers))
        type = next((value for name, value in script.headers if name.lower() == "content-type"), None)
        if type is not None:
            response.type = type
            response.headers = [pair for pair in script.headers if pair[0].lower() != "content-type"]
        self._connection.respond(response)

    async def _prefill(self) -> None:
        """Spend the time of the prefill, which the engine does for one request at a time."""
        options, record = self._engine.options, self._record
        if self._script.prefill_seconds is not None:
            await self._silence(self._script.prefill_seconds)
        elif not options.instant:
            async with self._engine.prefill:
                await self._silence((record.prompt_tokens - record.cached_tokens) / options.prefill_tps)
        else:
            await asyncio.sleep(0)

    async def _silence(self, seconds: float) -> None:
        """Sleep, with the comments that are due: their number depends on the figures only."""
        every = self._script.comment_seconds
        if every is None and self._streams:
            every = self._personality.comment_seconds
        every = every or math.inf
        start = time.monotonic()
        for number in range(1, math.ceil(seconds / every)):
            if await self._engine.ending.pause(start + number * every - time.monotonic()):
                return
            await self._stream.comment()
        await self._engine.ending.pause(start + seconds - time.monotonic())

    # -- the answer

    async def _give_stream(self) -> None:
        script, answer, stream, form = self._script, self._answer, self._stream, self._form
        each, ending = self._token_seconds, self._engine.ending
        await stream.open()
        if script.raw is not None:
            for text in script.raw:
                await stream.raw(text)
                await asyncio.sleep(each)
            await stream.end_early()
            await self._complete()
            return
        for name, value in form.opening():
            await stream.event(value, name)
        if script.first_token_seconds:
            await ending.pause(script.first_token_seconds)
        began = due = time.monotonic()
        for delta, tokens in answer.events(script.tokens_per_event or self._engine.options.tokens_per_event):
            if each and answer.sent:
                due += each * tokens
                await ending.pause(due - time.monotonic())
            if ending.mode is not None:
                break
            answer.took(delta, tokens)
            for name, value in form.token(delta, script.usage == "cumulative"):
                await stream.event(value, name)
            self._record.completion_tokens = answer.sent
            self._record.first_token = self._record.first_token or time.monotonic()
        answer.decode_seconds = time.monotonic() - began
        await self._end_of(stream)
        for name, value in form.closing(script.usage == "finish"):
            await stream.event(value, name)
        await stream.end_early()
        await stream.done()
        await self._complete()

    async def _end_of(self, stream: EventStream) -> None:
        """Say in the stream that the engine ends, if it does."""
        if self._engine.ending.mode == "error":
            await stream.error()
            raise Broken
        if self._engine.ending.mode == "abort":
            self._answer.finish_reason = "abort"

    async def _complete(self) -> None:
        self._record.outcome = "aborted" if self._answer.finish_reason == "abort" else "completed"
        if self._script.end_seconds:
            self._engine.slots.finish(self._record)
            await asyncio.sleep(self._script.end_seconds)
        await self._stream.close()

    async def _give_whole(self) -> None:
        answer, record, each, ending = self._answer, self._record, self._token_seconds, self._engine.ending
        pieces = list(answer.events(1))
        began = time.monotonic()
        if each and pieces and await ending.pause(each * len(pieces)):
            if ending.mode == "error":
                error = self._personality.stream_error(record.path)
                self._refuse(self._personality.json(error, 500))
                return
            answer.finish_reason = "abort"
            pieces = pieces[: int((time.monotonic() - began) / each)]
            answer.deltas = answer.deltas[: len(pieces)]
        answer.decode_seconds = each * len(pieces)
        for delta, tokens in pieces:
            answer.took(delta, tokens)
        record.completion_tokens = answer.sent
        record.outcome, record.first_byte = "completed", time.monotonic()
        response = self._personality.json(self._form.whole())
        if self._script.cut is None:
            self._connection.respond(response)
            return
        half = len(response.body) // 2 if self._script.cut_after else 0
        self._connection.respond(response, body_bytes=half)
        await cut(self._connection, self._script.cut)

    @property
    def _token_seconds(self) -> float:
        if self._script.token_seconds is not None:
            return self._script.token_seconds
        return 0.0 if self._engine.options.instant else 1 / self._engine.options.decode_tps
