"""A backend that fails one gateway: the others leave it alone, and try it once when it works again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.dispatcher import Dispatcher
from gateway.ledger.ejections import SharedEjections
from gateway.ledger.notes import Kind, Note
from gateway.ledger.shadows import SharedShadows
from gateway.ledger.stream import RedisStream, Stream
from policies.types import State
from tests.debian import needs
from tests.ledger.server import redis_server
from tests.ledger.test_shared_shadows import URL, Double, followed
from tests.processes.process import until
from tests.simulation import virtual
from tests.unit.fleet import a_backend, a_call, an_admission


class Front:
    """A gateway with one engine of two slots, and another one that is always full."""

    def __init__(self, stream: Stream) -> None:
        self.backend = a_backend(slots=2, state=State.STARTING)
        self.admission = an_admission(self.backend, a_backend("other", slots=0))
        self.dispatcher = Dispatcher(self.admission, asyncio.get_running_loop().time)
        self.shadows = SharedShadows(self.admission.backends, _url_of, stream)
        ejections = SharedEjections(self.dispatcher, _url_of, self.shadows.tell)
        self.shadows.health = ejections.heard
        self.dispatcher.state_changed += [self.shadows.state_changed, ejections.state_changed]
        self.dispatcher.apply(self.admission.set_state("backend", State.READY, self.dispatcher.clock()))
        self._task = asyncio.get_running_loop().create_task(self.shadows.run())

    def fail(self) -> None:
        """Three requests fail."""
        for _ in range(3):
            self.dispatcher.apply(self.admission.failed("backend", self.dispatcher.clock(), "reset"))

    def ask(self, id: str) -> bool:
        """A request comes; whether it is sent."""
        self.dispatcher.apply(self.admission.submit(a_call(id), self.dispatcher.clock()))
        return self.admission.lease(id) is not None

    def answered(self, id: str) -> None:
        """Its first token comes, and its last one."""
        self.dispatcher.apply(self.admission.first_token(id, self.dispatcher.clock()))
        self.dispatcher.finish(id)

    async def close(self) -> None:
        """It is gone."""
        assert not self._task.done()
        self._task.cancel()
        await asyncio.wait([self._task])


def _url_of(name: str) -> str:
    return URL if name == "backend" else "http://other"


def run(main: Coroutine[Any, Any, None]) -> None:
    """In virtual time."""
    virtual.run(main)


def kinds(stream: Double) -> list[int]:
    """Of the notes that were left."""
    return [Note.decoded(told)[1].kind for _, told in stream.notes]


def test_who_is_told_leaves_it_alone_and_tells_nobody() -> None:
    """Once it works again for the one, one request of the other tries it."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream), Front(stream)
        await followed()
        one.fail()
        await followed()
        assert other.backend.state is State.EJECTED
        assert not other.ask("b") and not other.ask("c")
        assert kinds(stream) == [Kind.EJECTED]
        assert one.admission.tick(one.dispatcher.clock()) == [] and not one.ask("a")
        one.dispatcher.apply(one.admission.tick(one.dispatcher.clock() + 30))
        one.answered("a")
        await followed()
        assert one.backend.state is State.READY and kinds(stream) == [Kind.EJECTED, Kind.RECOVERED]
        assert list(other.backend.leases) == ["b"] and other.backend.state is State.EJECTED
        other.answered("b")
        assert other.backend.state is State.READY and list(other.backend.leases) == ["c"]
        await followed()
        assert one.backend.state is State.READY and len(stream.notes) == 3
        for front in (one, other):
            await front.close()

    run(main())


def test_who_sees_it_work_goes_on() -> None:
    """Until one request fails there, too."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream), Front(stream)
        await followed()
        assert other.ask("b")
        other.answered("b")
        one.fail()
        await followed()
        assert other.backend.state is State.READY
        other.dispatcher.apply(other.admission.failed("backend", other.dispatcher.clock(), "reset"))
        assert other.backend.state is State.EJECTED
        for front in (one, other):
            await front.close()

    run(main())


@pytest.mark.parametrize("ends", [None, Kind.RECOVERED, Kind.RESTARTED])
def test_who_starts_later_knows_what_is_still_ejected(ends: Kind | None) -> None:
    """And of nothing that has ended since."""

    async def main() -> None:
        stream = Double()
        notes = [Note(Kind.EJECTED, URL), Note(Kind.EJECTED, "http://unknown")]
        notes += [] if ends is None else [Note(ends, URL)]
        await stream.exchange([note.encoded(b"somebody") for note in notes], "0")
        front = Front(stream)
        await followed()
        assert front.backend.state is (State.EJECTED if ends is None else State.READY)
        assert len(stream.notes) == len(notes)
        await front.close()

    run(main())


def test_without_redis_each_goes_by_what_it_sees() -> None:
    """What was to be told is old news by the time it is back."""

    async def main() -> None:
        stream = Double()
        one, other = Front(stream), Front(stream)
        await followed()
        stream.up = False
        one.fail()
        await asyncio.sleep(10)
        stream.up = True
        await asyncio.sleep(10)
        assert one.backend.state is State.EJECTED and other.backend.state is State.READY
        for front in (one, other):
            await front.close()

    run(main())


@needs("redis-server")
async def test_through_a_real_redis() -> None:
    """The same stream, beside what is told of prompts."""
    async with redis_server() as server, asyncio.timeout(60):
        one, other = (Front(RedisStream(server.url, "default")) for _ in range(2))
        one.fail()
        await until(lambda: other.backend.state is State.EJECTED, "what the other one said")
        for front in (one, other):
            await front.close()
