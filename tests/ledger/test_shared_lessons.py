"""What one gateway learnt, the next one begins with: checked, bounded, and of no harm where it is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import pytest

from gateway.ledger.lessons import MODELS_MAX, PAUSE_SECONDS, SAVE_SECONDS, SharedLessons, Shelf
from gateway.ledger.step import Unavailable
from gateway.ledger.stream import LESSON_SECONDS, RedisShelf
from policies.output_length import OutputLength, OutputTokens
from policies.prompt_length import PRIOR, PromptLength
from policies.service_model import ServiceModel
from policies.types import Priority, State, StateChanged
from tests.debian import needs
from tests.ledger.guard import guarded
from tests.ledger.server import redis_server
from tests.simulation import virtual
from tests.unit.fleet import MODEL, a_backend

URL = "http://engine"
PROMPT = (8000.0, 1500.0, 500.0, 0.0, 0.0, 0.0)
TRUTH = ServiceModel(0.05, 0.05, 4000.0, 4000.0, 0.0, 0.01, 0.002)


class Double:
    """A shelf in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.up = True
        self.puts = self.gets = 0

    async def put(self, lessons: Mapping[str, bytes]) -> None:
        """As Redis does it."""
        self.puts += 1
        if not self.up:
            raise Unavailable("it is down")
        self.kept |= lessons

    async def get(self, names: Sequence[str]) -> list[bytes | None]:
        """As Redis does it."""
        self.gets += 1
        if not self.up:
            raise Unavailable("it is down")
        return [self.kept.get(name) for name in names]

    async def close(self) -> None:
        """Nothing is open."""


class Front:
    """A gateway with one engine, and what it learns."""

    def __init__(self, shelf: Shelf, aliases: Sequence[str] = ()) -> None:
        self.backend = a_backend(state=State.STARTING)
        self.prompts, self.outputs = PromptLength(), OutputLength()
        self.shared = SharedLessons(
            {"backend": self.backend}, self.prompts, self.outputs, lambda _: URL, lambda: aliases, shelf
        )
        self._task = asyncio.get_running_loop().create_task(self.shared.run())

    async def begins(self) -> None:
        """Its backend becomes ready."""
        self.backend.state = State.READY
        self.shared.state_changed(StateChanged("backend", State.READY, ""))
        await asyncio.sleep(0.01)

    def learn(self) -> None:
        """Thirty requests end."""
        calibration = self.backend.calibration
        for _ in range(30):
            for tokens in (1000, 3000, 9000):
                calibration.prefilled(tokens, 0, TRUTH.first_token(tokens))
            calibration.decoded(1000, 100, 100 * TRUTH.token_seconds(2, 1050), 0.0, 2)
            self.prompts.learn(MODEL, PROMPT, 10_000, 5000)
            self.outputs.learn(MODEL, Priority.AGENT, 700, None)
        self.backend.service = calibration.model

    def known(self) -> tuple[float, float, int, OutputTokens]:
        """A prefill, an answer, a prompt's tokens, the usual length of answers."""
        service = self.backend.service
        prompt = self.prompts.estimate(MODEL, PROMPT)
        answers = self.outputs.of(MODEL, Priority.AGENT)
        return service.first_token(9000), service.decode_seconds(100, 2, 1000), prompt, answers

    async def close(self) -> None:
        """It is gone."""
        assert not self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])


def run(main: Coroutine[Any, Any, None]) -> None:
    """In virtual time."""
    virtual.run(main)


def test_who_starts_later_begins_with_what_was_learnt() -> None:
    """Also if the one that learnt it has ended since, before it came to write. What nobody learnt stays as it
    was, and is not told; what is learnt by oneself comes first."""

    async def main() -> None:
        shelf = Double()
        one = Front(shelf)
        await one.begins()
        await asyncio.sleep(SAVE_SECONDS)
        assert shelf.kept == {} and shelf.puts == 0
        one.learn()
        await one.close()
        assert shelf.kept.keys() == {f"engine:{URL}", f"model:{MODEL}"}
        other = Front(shelf)
        prior = other.known()
        await other.begins()
        assert other.known() == one.known() != prior
        assert not other.backend.calibration.learnt, "it is a guess"
        await asyncio.sleep(SAVE_SECONDS)
        await other.close()
        assert shelf.puts == 1, "and no lesson of its own"
        third = Front(shelf)
        third.learn()
        learnt = third.known()
        shelf.kept[f"model:{MODEL}"] = _told(prompt=PRIOR, answers={"1": [1, 2]})
        await third.begins()
        assert third.known() == learnt
        await third.close()

    run(main())


def test_it_is_written_once_for_as_long_as_it_stays() -> None:
    """And no more than so many models."""

    async def main() -> None:
        shelf = Double()
        front = Front(shelf, [f"alias-{number}" for number in range(2 * MODELS_MAX)])
        await front.begins()
        front.learn()
        for number in range(2 * MODELS_MAX):
            for _ in range(20):
                front.outputs.learn(f"alias-{number}", Priority.AGENT, 10, None)
        await asyncio.sleep(10 * SAVE_SECONDS)
        assert shelf.puts == 1 and len(shelf.kept) == 1 + MODELS_MAX
        await front.close()
        assert shelf.puts == 1

    run(main())


def _told(**lesson: object) -> bytes:
    return json.dumps({"version": 1} | lesson).encode()


def _rates(*numbers: object) -> bytes:
    return _told(prefill=list(numbers), decode=[0.03, 0.008, 0.0])


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\xff",
        b"[" * 2000,
        b"[]",
        b"7",
        _told(version=2, prefill=[0.1, 0.001, 0.001, 0.0]),
        _told(prefill=[0.1, 0.001, 0.001, 0.0], more="x" * 2048),
        _told(prefill="fast"),
        _rates(),
        _rates(0.1, 0.001, 0.001),
        _rates(0.1, 0.001, 0.001, -1e-12),
        _rates(0.1, 0.001, float("nan"), 0.0),
        _rates(0.1, 0.001, float("inf"), 0.0),
        _rates(0.1, 0.001, 10**400, 0.0),
        _rates(0.1, 0.001, 1.1, 0.0),
        _rates(0.1, 0.001, True, 0.0),
        _rates(0.1, 0.001, "0.001", 0.0),
        _told(prefill=[0.2, 0.002, 0.002, 0.0], decode=[0.03, 0.008, 7.0]),
        _told(prompt=[2.2, *PRIOR[1:]]),
        _told(prompt=list(PRIOR[1:])),
        _told(prompt=[0.3, *PRIOR[1:]], answers=[]),
        _told(prompt=[0.3, *PRIOR[1:]], answers={"1": [0, 10]}),
        _told(prompt=[0.3, *PRIOR[1:]], answers={"1": [300]}),
        _told(prompt=[0.3, *PRIOR[1:]], answers={"0": [300, 400], "1": [300, 1e12]}),
    ],
)
def test_what_cannot_be_is_not_followed(told: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Not even in part, and said in one line; the gateway goes on as if it had been told nothing."""

    async def main() -> None:
        shelf = Double()
        shelf.kept = {f"engine:{URL}": told, f"model:{MODEL}": told}
        front = Front(shelf)
        before = front.known()
        await front.begins()
        assert front.known() == before
        assert front.outputs.of(MODEL, Priority.INTERACTIVE) == OutputTokens()
        await front.close()

    with caplog.at_level("INFO"):
        run(main())
    assert caplog.records and all(len(record.getMessage()) < 200 for record in caplog.records)
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_without_redis_each_learns_for_itself() -> None:
    """Who could not read when its engine became ready does so later."""

    async def main() -> None:
        shelf = Double()
        one = Front(shelf)
        await one.begins()
        one.learn()
        await one.close()
        shelf.up = False
        other = Front(shelf)
        prior = other.known()
        await other.begins()
        await asyncio.sleep(10 * SAVE_SECONDS)
        assert other.known() == prior and 2 < shelf.gets < 100
        shelf.up = True
        await asyncio.sleep(PAUSE_SECONDS + 0.1)
        assert other.known() == one.known()
        gets = shelf.gets
        await other.begins()
        await asyncio.sleep(SAVE_SECONDS)
        assert shelf.gets == gets, "all is known"
        await other.close()

    run(main())


@needs("redis-server")
async def test_in_a_real_redis() -> None:
    """Each lesson goes by itself, after a week."""
    async with redis_server() as server, server.client() as client:
        shelf = RedisShelf(server.url, "default")
        assert await shelf.get(["a", "b"]) == [None, None]
        await shelf.put({"a": b"1", "c": b"3"})
        await shelf.put({"a": b"2"})
        assert await shelf.get(["a", "b", "c"]) == [b"2", None, b"3"]
        keys = sorted(await client.keys("*"))
        assert keys == [b"{slotgate:default}:learnt:a", b"{slotgate:default}:learnt:c"]
        for key in keys:
            assert 0 < await client.pttl(key) <= 1000 * LESSON_SECONDS
        await server.process.kill()
        with pytest.raises(Unavailable):
            await shelf.get(["a"])
        await server.restart(empty=True)
        assert await shelf.get(["a"]) == [None]
        await shelf.close()


@needs("redis-server")
async def test_with_the_rights_that_a_gateway_has(tmp_path: Any) -> None:
    """They suffice."""
    arguments, url = guarded(tmp_path)
    async with redis_server(*arguments, url=url):
        shelf = RedisShelf(url, "default")
        await shelf.put({"a": b"1"})
        assert await shelf.get(["a"]) == [b"1"]
        await shelf.close()
