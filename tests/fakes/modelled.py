"""A fake engine that is as fast as an engine of the simulator: `--profile` says which, `--speed` how many
times as fast.

It answers streamed chat that `tests.fakes.turns` wrote. The rest of it, what it says to probes included, is
the personality's. Nobody may leave before the answer: the model has no way to stop.
"""

from __future__ import annotations

import asyncio
import time

from policies.simulation.engine import Engine
from policies.simulation.profile import PROFILES
from tests.fakes.answer import Answer
from tests.fakes.engine import FakeEngine, main
from tests.fakes.openai import Form
from tests.fakes.options import Options
from tests.fakes.pace import Pace, Progress
from tests.fakes.script import Script
from tests.fakes.slots import Record
from tests.fakes.stream import EventStream
from tests.fakes.turns import turn_of
from tests.fakes.wire import Connection, Request, json_object


class ModelledEngine(FakeEngine):
    """Slots and counts are the fake's, times and caches the model's."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._pace = Pace(Engine(PROFILES[options.profile]), options.speed)

    async def _complete(self, request: Request, connection: Connection) -> None:
        body = json_object(request.body)
        assert body is not None
        turn = turn_of(body)
        record = self.records.open(
            Record(
                id=request.header("x-request-id"),
                key=f"{turn.prompt[-1].digest}",
                path=request.path,
                stream=True,
                connection=request.connection,
                nth=request.nth,
                arrived=request.arrived,
                prompt_tokens=turn.prompt_tokens,
            )
        )
        answer = Answer(
            number=f"{self.records.received:08d}",
            created=int(time.time()),
            model=str(body["model"]),
            prompt_tokens=turn.prompt_tokens,
            cached_tokens=0,
            limit=None,
            wants_usage=True,
        )
        form = self.personality.form(request.path, answer, body)
        stream = EventStream(connection, Script(), record, self.personality, form.done)
        try:
            await self.slots.take(record, "")
            await self._give(self._pace.submit(answer.number, turn), answer, form, stream, record)
        except asyncio.CancelledError:
            record.outcome = "aborted"
            raise
        finally:
            self.slots.finish(record)
            self.records.close(record)

    async def _give(
        self, progress: Progress, answer: Answer, form: Form, stream: EventStream, record: Record
    ) -> None:
        """Say the first token when it is due and all others with the last: more events would only load the
        machine, and what is measured are these two times."""
        job = progress.job
        await progress.first_token
        answer.cached_tokens = record.cached_tokens = job.cached_tokens
        record.first_token = time.monotonic()
        for name, value in (*form.opening(), *form.token({"content": " one"}, usage=False)):
            await stream.event(value, name)
        await progress.last_token
        assert job.started is not None
        assert job.first is not None
        assert job.ended is not None
        answer.prefill_seconds, answer.decode_seconds = job.first - job.started, job.ended - job.first
        answer.sent = record.completion_tokens = job.turn.output_tokens
        record.outcome = "completed"
        self.slots.finish(record)  # before the last byte: with it the gateway may send the next request
        for name, value in (*form.token({"content": " more"}, usage=False), *form.closing(False)):
            await stream.event(value, name)
        await stream.done()
        await stream.close()


if __name__ == "__main__":
    asyncio.run(main(ModelledEngine))
