"""The clients of a simulated workload, as real ones: programs that ask turn by turn, on a fast clock."""

from __future__ import annotations

import asyncio
import json
import time

from policies.simulation.workload import Program, Turn, Workload
from policies.simulation.world import Record
from tests.fakes.turns import body_of
from tests.processes.asking import CHAT
from tests.processes.raw_client import RawClient

MODEL = "fake-model"
PATIENCE_SECONDS = 600.0  # of our clock, for each step of an answer


class Play:
    """One run. Its records are those of the simulator, but times are what the clients saw; when a request
    took its slot, they cannot see: of that the gateway's own word counts."""

    def __init__(self, url: str, workload: Workload, speed: float) -> None:
        self.records: list[Record] = []
        self._url = url
        self._workload = workload
        self._speed = speed
        self._start = time.monotonic()

    async def run(self) -> list[Record]:
        """Until the last foreground program has ended, and what was asked until then is answered."""
        self._start = time.monotonic()
        asked: list[asyncio.Task[None]] = []
        background = asyncio.create_task(self._background(asked))
        try:
            async with asyncio.TaskGroup() as foreground:
                for program in self._workload.programs:
                    if program.foreground:
                        foreground.create_task(self._play(program))
        finally:
            background.cancel()
        await asyncio.gather(*asked)
        return self.records

    @property
    def _now(self) -> float:
        return (time.monotonic() - self._start) * self._speed

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self._now) / self._speed)

    async def _background(self, asked: list[asyncio.Task[None]]) -> None:
        """Programs of the background, each begun at its time, for as long as nobody cancels it."""
        waiting = [program for program in self._workload.programs if not program.foreground]
        for program in sorted(waiting, key=lambda program: program.starts):
            await self._until(program.starts)
            asked.append(asyncio.create_task(self._play(program)))

    async def _play(self, program: Program) -> None:
        await self._until(program.starts)
        for number, turn in enumerate(program.turns):
            if number:
                await self._until(self._now + turn.think_seconds)
            self.records.append(await self._ask(program, turn))

    async def _ask(self, program: Program, turn: Turn) -> Record:
        body = json.dumps(body_of(turn, MODEL)).encode()
        headers = [
            ("Content-Type", "application/json"),
            ("X-Slotgate-Session", program.name),
            ("X-Slotgate-Agent", program.tenant),
            ("X-Slotgate-Priority", program.priority.label),
        ]
        arrived = self._now
        async with await RawClient.connect(self._url, PATIENCE_SECONDS) as client:
            await client.send("POST", CHAT, body, headers)
            head = await client.head()
            assert head.status == 200, await client.body()
            await client.first_token()
            first = self._now
            events = await client.events()
            ended = self._now
        (usage,) = [event.json()["usage"] for event in events if event.data and '"usage":{' in event.data]
        assert usage["prompt_tokens"] == turn.prompt_tokens
        return Record(
            program=program,
            turn=turn,
            engine=head.headers["x-slotgate-backend"],
            arrived=arrived,
            started=arrived + int(head.headers["x-slotgate-queue-ms"]) / 1000,
            first=first,
            ended=ended,
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        )
