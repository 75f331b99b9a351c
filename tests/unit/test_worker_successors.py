"""A worker that takes another's place knows what operators asked the others for, without Redis."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pydantic import SecretStr

from gateway import errors
from gateway.admin.views import DrainRequest
from gateway.auth import AdminGuard
from gateway.ledger.dispatcher import SharedDispatcher
from gateway.options import BackendSettings, RedisSettings
from gateway.settings import Settings
from gateway.workers import wire
from gateway.workers.crew import Crew
from gateway.workers.lifecycle import tidy
from gateway.workers.supervisor import Supervisor, Worker
from gateway.workers.worker import Work
from policies.types import State

NAMES = ("b0", "b1")


class Crowd:
    """Workers in one process, under the parent's real books; nothing is probed."""

    def __init__(self, folder: Path) -> None:
        backends = [
            BackendSettings(name=name, url=f"http://127.0.0.1:{port}") for port, name in enumerate(NAMES, 9)
        ]
        self.settings = Settings(backends=backends)
        self.supervisor = Supervisor(3, self.settings, "", 0, False, folder)
        self.crew = Crew(self.supervisor, lambda: self.settings, AdminGuard(""))
        self.works: dict[int, Work] = {}
        self._servers: dict[int, asyncio.Server] = {}

    async def begin(self, number: int) -> Worker:
        """One is started, and is not ready yet."""
        assignment = await self.supervisor._assigned(number, number)
        work = self.works[number] = Work(assignment)
        self._servers[number] = await wire.listen(assignment.socket_path, work.calls())
        process = SimpleNamespace(returncode=None, wait=asyncio.Event().wait)
        worker = self.supervisor._workers[number] = Worker(
            number, number, assignment, cast("Process", process)
        )
        return worker

    async def ready(self, worker: Worker) -> None:
        """It serves."""
        await self.crew._catch_up(worker)
        worker.serves = True

    def end(self, number: int) -> None:
        """kill -9."""
        self._servers.pop(number).close()
        del self.works[number], self.supervisor._workers[number]

    def states(self, number: int) -> dict[str, tuple[State, str]]:
        """Of the backends of this worker, and why."""
        backends = self.works[number].gateway.admission.backends
        return {name: (one.state, one.why) for name, one in backends.items()}

    def close(self) -> None:
        """All end."""
        for server in self._servers.values():
            server.close()


@pytest.fixture
async def crowd(tmp_path: Path) -> AsyncIterator[Crowd]:
    """Of two that serve."""
    made = Crowd(tmp_path)
    for number in (1, 2):
        await made.ready(await made.begin(number))
    yield made
    made.close()


async def test_what_was_removed_does_not_come_back(crowd: Crowd) -> None:
    """Also to one that was being started meanwhile; until the configuration that names it is read again."""
    early = await crowd.begin(3)
    await crowd.crew.remove("b0")
    await crowd.ready(early)
    crowd.end(1)
    late = await crowd.begin(1)
    assert list(crowd.works[1].gateway.admission.backends) == ["b1"]
    await crowd.ready(late)
    await asyncio.sleep(0.01)
    assert [list(crowd.states(number)) for number in (1, 2, 3)] == [["b1"]] * 3
    await crowd.crew.follow()
    assert [set(crowd.states(number)) for number in (1, 2, 3)] == [set(NAMES)] * 3


async def test_what_was_drained_stays_drained(crowd: Crowd) -> None:
    """From the first moment of the new one on, with the reason; also if it was started before."""
    early = await crowd.begin(3)
    await crowd.crew.drain("b0", DrainRequest(reason="a new driver"))
    await crowd.ready(early)
    crowd.end(1)
    late = await crowd.begin(1)
    held = (State.DRAINED, "a new driver")
    assert crowd.states(1)["b0"] == held
    await crowd.ready(late)
    assert [crowd.states(number)["b0"] for number in (1, 2, 3)] == [held] * 3
    assert crowd.states(1)["b1"][0] is State.STARTING
    for number in (1, 2, 3):
        crowd.end(number)
    await crowd.ready(await crowd.begin(1))
    assert crowd.states(1)["b0"] == held  # nobody was left to say so


async def test_what_was_resumed_meanwhile_is_resumed(crowd: Crowd) -> None:
    """By an operator of these, or by way of another gateway, which only the workers hear of."""
    await crowd.crew.drain("b0", DrainRequest())
    await crowd.crew.drain("b1", DrainRequest())
    early = await crowd.begin(3)
    assert {state for state, _ in crowd.states(3).values()} == {State.DRAINED}
    await crowd.crew.resume("b0")
    for number in (1, 2):
        crowd.works[number].gateway.fleet.resume("b1")
    await crowd.ready(early)
    assert {state for state, _ in crowd.states(3).values()} == {State.STARTING}


async def test_a_drain_waits_until_it_is_over_everywhere(crowd: Crowd) -> None:
    """While it waits, other workers may begin to serve; it is no longer than it was told."""
    waiting = asyncio.create_task(crowd.crew.drain("b0", DrainRequest(wait_seconds=60)))
    assert (await asyncio.wait_for(waiting, 30)).state is State.DRAINED
    with pytest.raises(errors.NotFound):
        await crowd.crew.drain("nobody", DrainRequest(wait_seconds=60))


async def test_workers_know_how_many_they_are(tmp_path: Path) -> None:
    """Before Redis ever answers: each gives its share, not half of them."""
    supervisor = Supervisor(
        6, Settings(redis=RedisSettings(url=SecretStr("redis://127.0.0.1:9"))), "", 0, False, tmp_path
    )
    works = [Work(await supervisor._assigned(number, number)) for number in range(1, 7)]
    for slots, given in ((2, 6), (6, 6), (8, 8), (13, 13)):
        dispatchers = [cast("SharedDispatcher", work.gateway.dispatcher) for work in works]
        assert sum(one.ledger.share("http://engine:1", slots) for one in dispatchers) == given


async def test_what_a_killed_gateway_left_is_removed(tmp_path: Path) -> None:
    """Its folder of sockets, if nobody listens there: not that of one whose workers still finish what they
    have, or that is just beginning."""
    names = ("beginning", "finishing", "fresh", "killed", "others")
    folders = {name: tmp_path / f"slotgate-{name}" for name in names}
    for name, folder in folders.items():
        folder.mkdir()
        if name != "beginning":
            with socket.socket(socket.AF_UNIX) as one:  # closed without being unlinked, as by kill -9
                one.bind(str(folder / "parent"))
                one.listen()
    (folders["others"] / "file").write_text("not ours")
    listening = await wire.listen(str(folders["finishing"] / "1"), {})
    for name, folder in folders.items():
        if name not in ("beginning", "fresh"):
            os.utime(folder, (0.0, 0.0))
    tidy(tmp_path)
    listening.close()
    assert [name for name, folder in folders.items() if not folder.exists()] == ["killed"]
