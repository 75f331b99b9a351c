"""The processes of a gateway: as many workers as there shall be, and another one for each that has ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gateway.options import BackendSettings
from gateway.settings import Settings
from gateway.workers.exposition import Expositions
from gateway.workers.worker import READY, STOP, STOP_WITHOUT_PAUSE, Assignment

log = logging.getLogger("slotgate.workers")

# By import, so that both sides name classes alike.
COMMAND = (sys.executable, "-c", "from gateway.workers.worker import main; main()")
START_SECONDS_MAX = 60.0  # beyond which one that has not begun to serve is taken to hang
END_SECONDS_MAX = 2.0  # for one that says nothing any more
STEADY_SECONDS = 60.0  # whoever served so long is followed by another one at once
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 30.0  # before the next one else
LAST_SECONDS = 30.0  # beyond the limits of a shutdown, until what is left is killed


@dataclass(slots=True, eq=False)
class Worker:
    """One process."""

    number: int  # its place, of which another one takes care when it has ended
    serial: int  # of all there ever were
    assignment: Assignment
    process: asyncio.subprocess.Process
    serves: bool = False

    def tell(self, order: bytes) -> None:
        """Let it do this, if it still can."""
        assert self.process.stdin is not None
        with suppress(OSError, RuntimeError):
            self.process.stdin.write(order)


class Supervisor:
    """Starts the workers, and another one for each that has ended.

    `clients_fd`: descriptor of the client port's socket, which they share. Their own sockets are in `folder`,
    which only this user may enter. A new one starts with `settings`, `added` and what `drains` tells; as all
    may change while it does, `catch_up` is awaited before it counts as one that serves."""

    def __init__(
        self,
        count: int,
        settings: Settings,
        where: str,
        clients_fd: int,
        handed: bool,
        folder: Path,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.settings = settings
        self.added: dict[str, BackendSettings] = {}
        self.expositions = Expositions()
        self.parent_path = str(folder / "parent")
        self.catch_up: Callable[[Worker], Awaitable[None]] | None = None
        self.drains: Callable[[], Awaitable[dict[str, str]]] | None = None
        self.stopping = asyncio.Event()
        self._count = count
        self._where = where
        self._clients_fd = clients_fd
        self._handed = handed
        self._folder = folder
        self._command = command
        self._pause = True
        self._serials = itertools.count(1)
        self._workers: dict[int, Worker] = {}  # by number

    @property
    def serving(self) -> list[Worker]:
        """Those that can be asked, by number."""
        return [one for _, one in sorted(self._workers.items()) if one.serves]

    def stop(self, *, pause: bool = True) -> None:
        """End all in order; said again: end what runs."""
        self._pause = self._pause and pause
        self.stopping.set()
        for worker in self._workers.values():
            worker.tell(STOP if pause else STOP_WITHOUT_PAUSE)

    async def run(self, started: Callable[[], None]) -> None:
        """Keep all of them until they were stopped and have ended. `started`: each has begun to serve, or has
        failed to."""
        loop = asyncio.get_running_loop()
        first: list[asyncio.Future[None]] = [loop.create_future() for _ in range(self._count)]
        keepers = [loop.create_task(self._keep(number, tried)) for number, tried in enumerate(first, start=1)]
        try:
            await asyncio.wait(first)
            started()
            await self.stopping.wait()
            server = self.settings.server
            limit = server.shutdown_pause_seconds + server.shutdown_seconds + LAST_SECONDS
            _, late = await asyncio.wait(keepers, timeout=limit)
            if late:
                log.error("%d workers did not end in time and are killed", len(late))
                self._kill()
                await asyncio.wait(keepers)
        finally:
            self._kill()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _keep(self, number: int, tried: asyncio.Future[None]) -> None:
        pause = 0.0
        while not self.stopping.is_set():
            began = time.monotonic()
            try:
                ended = await self._one(number, tried)
            except OSError as fault:  # no process to be had
                ended = fault.strerror or str(fault)
            if not tried.done():
                tried.set_result(None)
            if self.stopping.is_set():
                return
            steady = time.monotonic() - began >= STEADY_SECONDS
            pause = 0.0 if steady else min(PAUSE_SECONDS_MAX, max(PAUSE_SECONDS, 2 * pause))
            log.error("worker %d %s; another one is started in %g s", number, ended, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), pause)
            self.expositions.restarts += not self.stopping.is_set()

    async def _one(self, number: int, tried: asyncio.Future[None]) -> str:
        """One worker from its start to its end, and how that came."""
        worker = await self._begun(number)
        self._workers[number] = worker
        if self.stopping.is_set():
            worker.tell(STOP if self._pause else STOP_WITHOUT_PAUSE)
        try:
            if await self._ready(worker):
                if self.catch_up is not None:
                    await self.catch_up(worker)
                self.expositions.begun(worker.serial)
                worker.serves = True
                if not tried.done():
                    tried.set_result(None)
            else:  # it has ended, as a rule: to send a signal now would hide how
                with suppress(TimeoutError):
                    await asyncio.wait_for(worker.process.wait(), END_SECONDS_MAX)
                _kill(worker)
            code = await worker.process.wait()
        finally:
            del self._workers[number]
            self.expositions.ended(worker.serial)
            _kill(worker)
            await worker.process.wait()
        return f"was ended by signal {-code}" if code < 0 else f"ended by itself with exit code {code}"

    async def _begun(self, number: int) -> Worker:
        serial = next(self._serials)
        assignment = await self._assigned(number, serial)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(self._clients_fd,),
            env={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
            start_new_session=True,  # a terminal speaks to the parent only
        )
        worker = Worker(number, serial, assignment, process)
        worker.tell(assignment.sent())
        return worker

    async def _assigned(self, number: int, serial: int) -> Assignment:
        return Assignment(
            number=number,
            settings=self.settings,
            added=tuple(self.added.values()),
            where=self._where,
            clients_fd=self._clients_fd,
            handed=self._handed,
            socket_path=str(self._folder / str(serial)),
            parent_path=self.parent_path,
            count=self._count,
            drained=await self.drains() if self.drains is not None else {},
        )

    async def _ready(self, worker: Worker) -> bool:
        """Wait until it serves; False if it does not come to that."""
        assert worker.process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                return await worker.process.stdout.readline() == READY
        except TimeoutError:
            log.error("worker %d did not begin to serve within %g s", worker.number, START_SECONDS_MAX)
            return False

    def _kill(self) -> None:
        for worker in self._workers.values():
            _kill(worker)


def _kill(worker: Worker) -> None:
    if worker.process.returncode is None:
        with suppress(ProcessLookupError):
            worker.process.kill()
