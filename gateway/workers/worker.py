"""One worker: a gateway that serves the common client port, and is steered by the process that started it.

It takes no signals, which a terminal or systemd send to all processes at once; what it shall do comes down
its standard input, whose end says that nobody will start it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import shutil
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gateway import errors, logs
from gateway.admin.views import DrainView
from gateway.app import create_app
from gateway.lifecycle import Steering, run, serve
from gateway.member import Member
from gateway.options import BackendSettings
from gateway.reload import Reloaded
from gateway.settings import ConfigError, Fault, Settings
from gateway.watch import HELD
from gateway.workers import wire
from policies.types import StateChanged

INPUT = 0  # descriptor of the standard input
READY = b"ready\n"
STOP, STOP_WITHOUT_PAUSE = b"s", b"i"
LENGTH_BYTES = 8
WHOLE_SECONDS = 10.0  # until the parent has asked all workers
OPERATIONS = (
    "why_not_ready",
    "exposition",
    "figures",
    "steps",
    "backends",
    "backend",
    "add",
    "remove",
    "drain",
    "resume",
    "queue",
    "requests",
    "end",
    "usage",
    "prefix",
    "advice",
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker is started with."""

    number: int
    settings: Settings
    added: tuple[BackendSettings, ...]  # by operators, since the start
    where: str  # the settings were read, for people
    clients_fd: int  # of their listening socket
    handed: bool  # the socket outlives the gateway
    socket_path: str  # where it is asked
    parent_path: str  # where it asks
    count: int = 1  # of workers
    drained: Mapping[str, str] = field(default_factory=dict)  # backends, and why

    def sent(self) -> bytes:
        """As it goes down the standard input."""
        pickled = pickle.dumps(self)
        return len(pickled).to_bytes(LENGTH_BYTES) + pickled

    @classmethod
    def received(cls) -> Assignment:
        """The one on the standard input, of which no byte more is read."""
        assignment: Assignment = pickle.loads(_read(int.from_bytes(_read(LENGTH_BYTES))))
        return assignment


class Parent:
    """The whole gateway, as one of its workers asks for it."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def why_not_ready(self) -> str:
        """See `Whole`."""
        return str(await self._ask("why_not_ready"))

    async def exposition(self) -> bytes:
        """See `Whole`."""
        return bytes(await self._ask("exposition"))

    async def changed(self) -> None:
        """Tell it that a backend is in another state here; it would find out by itself in a second."""
        with suppress(errors.GatewayError):
            await self._ask("changed")

    async def _ask(self, call: str) -> Any:
        try:
            return await wire.ask(self._path, call, seconds=WHOLE_SECONDS)
        except wire.Unanswered:  # figures of this worker alone would look like a restart
            raise errors.WorkersSilent from None


class Work:
    """What a worker does when it is asked to, beside the operations of its gateway."""

    def __init__(self, assignment: Assignment) -> None:
        self._settings = assignment.settings  # as last handed down
        self.gateway = create_app(assignment.settings, read=lambda: self._settings, where=assignment.where)
        self.gateway.dispatcher.among(assignment.count, assignment.number - 1)
        self._parent = self.gateway.whole = Parent(assignment.parent_path)
        self._telling: asyncio.Task[None] | None = None
        self.gateway.dispatcher.state_changed.append(self._changed)
        for settings in assignment.added:
            self._join(settings)
        for name, why in assignment.drained.items():
            self._drain(name, why)

    def calls(self) -> dict[str, wire.Call]:
        """Each by its name."""
        own = {name: getattr(self.gateway.own, name) for name in OPERATIONS}
        return own | {
            "in_flight": self.in_flight,
            "follow": self.follow,
            "refuse": self.refuse,
            "drains": self.drains,
            "follow_drains": self.follow_drains,
            "drained": self.drained,
        }

    async def in_flight(self) -> int:
        """Requests that run or wait."""
        return len(self.gateway.inflights.by_id)

    async def follow(self, settings: Settings) -> Reloaded | tuple[Fault, ...]:
        """Go by these settings; or what is wrong with them, and nothing changes."""
        before, self._settings = self._settings, settings
        try:
            return await self.gateway.reload()
        except ConfigError as error:
            self._settings = before
            return error.faults

    async def drains(self) -> dict[str, str]:
        """Why backends are drained, here or elsewhere; not those that leave."""
        backends = self.gateway.admission.backends
        staying = [name for name, member in self.gateway.fleet.members.items() if member.removal is None]
        return {name: backends[name].why for name in staying if backends[name].state in HELD}

    async def follow_drains(self, drains: Mapping[str, str]) -> None:
        """These are drained, as others know, and no others are."""
        before = await self.drains()
        for name in before.keys() - drains.keys():
            self.gateway.fleet.resume(name)
        for name in drains.keys() - before.keys():
            self._drain(name, drains[name])

    async def drained(self, name: str, seconds: float) -> DrainView:
        """How far the drain of a backend has come: once it is done, or after so many seconds."""
        await self.gateway.own.backend(name)  # raises, if there is none
        backend = self.gateway.admission.backends[name]
        await self.gateway.fleet.drained(name, seconds)
        return DrainView(state=backend.state, in_flight=len(backend.leases))

    async def refuse(self) -> None:
        """The configuration on disk cannot be followed."""
        self.gateway.metrics.config_invalid(True)

    def _changed(self, change: StateChanged) -> None:
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._parent.changed())

    def _drain(self, name: str, why: str) -> None:
        if name in self.gateway.fleet.members:
            self.gateway.fleet.drain(name, why)

    def _join(self, settings: BackendSettings) -> None:
        """It was added to another worker, or to the one before this."""
        with suppress(OSError):  # its certificates are gone since then
            member = Member.of(settings)
            if self.gateway.fleet.rival(settings) is None:
                member.configured = False
                self.gateway.fleet.join(member)


def main() -> None:
    """The process."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    assignment = Assignment.received()
    logs.setup("INFO")
    for handler in logging.getLogger().handlers:
        handler.addFilter(partial(_numbered, assignment.number))
    run(_work(assignment))


async def _work(assignment: Assignment) -> None:
    work, parent = Work(assignment), os.getppid()
    server = await wire.listen(assignment.socket_path, work.calls())
    try:
        await serve(
            work.gateway,
            socket.socket(fileno=assignment.clients_fd),
            None,
            lambda: _tell(READY),
            handed=assignment.handed,
            steered=by_input,
        )
    finally:
        server.close()
        if os.getppid() != parent:  # it is gone, and can no longer tidy up
            shutil.rmtree(Path(assignment.socket_path).parent, ignore_errors=True)


def by_input(steering: Steering) -> None:
    """Let the process say it that started this one."""
    loop = asyncio.get_running_loop()

    def heard() -> None:
        orders = os.read(INPUT, 64)
        if not orders:
            loop.remove_reader(INPUT)
            steering.abandon()
        for order in orders:
            steering.stop(pause=bytes((order,)) != STOP_WITHOUT_PAUSE)

    loop.add_reader(INPUT, heard)


def _read(count: int) -> bytes:
    read = b""
    while len(read) < count:
        more = os.read(INPUT, count - len(read))
        if not more:
            sys.exit(1)  # who started it is gone
        read += more
    return read


def _tell(word: bytes) -> None:
    with suppress(OSError):
        os.write(1, word)


def _numbered(number: int, record: logging.LogRecord) -> bool:
    """Say in each line which worker it is."""
    record.worker = number
    return True
