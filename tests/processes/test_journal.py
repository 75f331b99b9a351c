"""The journal of a running gateway: who asks it, who cannot write it, and what a kill leaves of it."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from contextlib import closing
from typing import Any

import pytest

from gateway.journal import reader, rows
from tests.processes.asking import ask
from tests.processes.fleet import configured
from tests.processes.harness import ROOT, Gateway, RawClient, chat, engine, gateway, until

CLIENTS = 12
WARNING = "requests are served without it"
LOST_SECONDS = 1.0  # of what ended may be missing
PACE: dict[str, Any] = {"decode_tps": 200.0, "prefill_tps": 100_000.0}


class Answers:
    """Clients that ask until the gateway is gone, and when they had each answer whole, by request id."""

    def __init__(self) -> None:
        self.whole: dict[str, float] = {}

    async def client(self, front: Gateway, dice: random.Random) -> None:
        """Ask one thing after another."""
        while True:
            tokens = dice.randrange(1, 20)
            try:
                answer = await ask(front, chat("again", stream=dice.random() < 0.7, max_tokens=tokens))
            except OSError:
                return
            if answer.ended != "clean":
                return
            assert answer.head.status == 200, answer
            self.whole[answer.head.headers["x-request-id"]] = time.monotonic()


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.long)])
async def test_a_killed_gateway_loses_at_most_its_last_second(kills: int) -> None:
    """Killed at a random moment under load, again and again: the journal opens, its pages and rows are
    whole, and each answer that a client had a second before the end is in it, once."""
    dice = random.Random(random.SystemRandom().randrange(2**32))
    had: set[str] = set()
    async with engine("vllm", slots=8, **PACE) as one, gateway(configured(one)) as front:
        journal = front.config.parent / "slotgate.db"
        front.expect_end()
        for kill in range(kills):
            if kill:
                front.process.start()
                await until(lambda: front.answers("/ready"), "a gateway that is ready again")
            answers = Answers()
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(answers.client(front, dice))
                await asyncio.sleep(LOST_SECONDS + dice.uniform(0.5, 2.0))
                front.process.signal(signal.SIGKILL)
                killed = time.monotonic()
            await front.process.ended()

            early = {id for id, at in answers.whole.items() if at < killed - LOST_SECONDS}
            assert early
            had |= early
            with closing(reader(journal)) as file:
                assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            found = list(rows(journal))
            ids = {row.id for row in found}
            assert len(ids) == len(found)
            assert had <= ids, (len(had), len(had - ids))
            assert all(row.source == "reported" for row in found if row.outcome == "completed")
            missing = len(answers.whole.keys() - ids)
            print(f"killed: {len(answers.whole)} answers, {missing} of the last second missing")  # noqa: T201


async def usage(front: Gateway, *arguments: str) -> Any:
    """What `slotgate usage --json` prints."""
    command = (sys.executable, "-m", "gateway", "usage", "--admin", front.admin, "--json", *arguments)
    child = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=front.process.environment
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    return json.loads(out)


async def test_usage_is_told_to_operators() -> None:
    """Who asked, on which backend, with the engine's counts; of an answer that was cut short, the estimate
    is marked as one. The log has a line for each, with the id that the client gave, and no prompt."""
    async with engine("vllm", tokens=5, **PACE) as one, gateway(configured(one)) as front:
        for agent in ("coder", "coder", "writer"):
            headers = [("X-Slotgate-Agent", agent), ("X-Request-Id", f"request-of-{agent}")]
            assert (await ask(front, chat("a secret"), headers)).head.status == 200
        await one.script(match="cut short", tokens=2000)
        async with await RawClient.connect(front.url) as client:
            await client.post("/v1/chat/completions", chat("cut short"), [("X-Slotgate-Agent", "leaver")])
            await client.first_token()
            client.close()

        async def journalled() -> bool:
            answer = await front.operator.get("/admin/usage?since=1h")
            return bool(answer.status_code == 200 and sum(one["requests"] for one in answer.json()) == 4)

        await until(journalled, "four requests in the journal")
        found = {one["name"]: one for one in await usage(front)}
        assert {name: one["requests"] for name, one in found.items()} == {
            "coder": 2,
            "writer": 1,
            "leaver": 1,
        }
        assert found["coder"]["completion_tokens"] == 10
        assert set(found["coder"]["by_source"]) == {"reported"}
        assert set(found["leaver"]["by_source"]) == {"estimated"}
        assert [one["name"] for one in await usage(front, "--by", "backend")] == ["b0"]
        lines = [json.loads(line) for line in front.process.errors.splitlines()]
        ended = [line for line in lines if line["logger"] == "slotgate.requests"]
        assert [line["request_id"] for line in ended[:3]] == ["request-of-coder"] * 2 + ["request-of-writer"]
        assert [line["outcome"] for line in ended] == ["completed"] * 3 + ["client_gone"]
        assert "secret" not in front.process.errors
        journal = b"".join(path.read_bytes() for path in front.config.parent.glob("slotgate.db*"))
        assert b"writer" in journal
        assert b"secret" not in journal


async def test_a_journal_that_cannot_be_written_stops_nobody() -> None:
    """A folder stands in its place: one warning, and every request is served."""
    async with (
        engine("vllm", **PACE) as one,
        gateway(configured(one, accounting={"journal": "."})) as front,
    ):
        for n in range(3):
            assert (await ask(front, chat(f"question {n}"))).head.status == 200
        await until(lambda: WARNING in front.process.errors, "a warning")
        assert "cannot be read" in (await front.operator.get("/admin/usage")).json()["error"]["message"]
        assert front.process.errors.count(WARNING) == 1
