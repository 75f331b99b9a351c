"""Restarts on sockets that outlive the gateway, as under systemd: nobody who connects is refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.processes.asking import Reply, reply
from tests.processes.harness import PATHS, Engine, RawClient, chat, engine, toml, until
from tests.processes.process import WAIT_SECONDS

log = logging.getLogger("tests.handover")

SECONDS_MAX = 20.0  # for a start; measured: about one


class Unit:
    """What systemd is to the gateway: it holds the sockets, starts it, and hears when it is ready."""

    def __init__(self, folder: Path, one: Engine, *arguments: str, **tables: Any) -> None:
        self.clients, self.operators = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
        self.url = f"http://127.0.0.1:{self.clients.getsockname()[1]}"
        self.admin = f"http://127.0.0.1:{self.operators.getsockname()[1]}"
        self._errors = folder / "stderr"
        self._child: subprocess.Popen[bytes] | None = None
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(folder / "notify"))
        self._manager.setblocking(False)
        file = folder / "slotgate.toml"
        config = {
            "server": {"shutdown_pause_seconds": 0, "shutdown_seconds": 5},
            "accounting": {"journal": ""},
            "backends": [{"name": "b", "url": one.url, "slots": 2, "warmup": {"requests": 0}}],
        }
        file.write_text(toml(config | tables))
        self._command = f"exec 3<&{self.clients.fileno()} 4<&{self.operators.fileno()}; LISTEN_PID=$$ exec "
        self._command += f"{sys.executable} -m gateway serve --config {file} {' '.join(arguments)}"
        listening = {"LISTEN_FDS": "2", "LISTEN_FDNAMES": "clients:operators"}
        own = {"PYTHONPATH": PATHS, "NOTIFY_SOCKET": str(folder / "notify")}
        self._environment = os.environ | listening | own

    async def start(self) -> float:
        """Start it; how long until it was ready."""
        began = time.monotonic()
        with self._errors.open("ab") as errors:
            self._child = subprocess.Popen(  # noqa: ASYNC220 - it takes no time to begin
                ["bash", "-c", self._command],
                env=self._environment,
                pass_fds=(self.clients.fileno(), self.operators.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        await self.told(b"READY=1")
        return time.monotonic() - began

    async def told(self, state: bytes) -> None:
        """Wait until it says so."""

        def said() -> bool:
            with contextlib.suppress(BlockingIOError):
                return self._manager.recv(100) == state
            return False

        await until(said, f"{state!r}\n{self._errors.read_text()}", SECONDS_MAX)

    async def end(self, number: signal.Signals) -> int:
        """End it; its exit code."""
        child = self._child
        assert child is not None
        child.send_signal(number)
        await until(lambda: child.poll() is not None, "the end of the gateway", WAIT_SECONDS)
        return child.returncode

    def close(self) -> None:
        """End all there is."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait(WAIT_SECONDS)
        for one in (self.clients, self.operators, self._manager):
            one.close()


async def asked(unit: Unit, words: str) -> Reply:
    """One request on a connection of its own."""
    async with await RawClient.connect(unit.url, SECONDS_MAX) as client:
        await client.post("/v1/chat/completions", chat(words))
        return await reply(client)


@asynccontextmanager
async def clients(unit: Unit) -> AsyncIterator[Counter[int]]:
    """Four that ask again and again meanwhile, each answer by its status; a connection refused or broken ends
    the test."""
    seen: Counter[int] = Counter()
    done = asyncio.Event()

    async def client(number: int) -> None:
        while not done.is_set():
            answer = await asked(unit, f"client {number}")
            seen[answer.head.status] += 1
            assert answer.ended == "clean"

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(client(number))
        yield seen
        done.set()
    assert set(seen) <= {200, 503}  # 503: it had connected to the first one, and asked too late


async def test_nobody_is_refused_while_it_restarts(tmp_path: Path) -> None:
    """Ended or killed: who comes meanwhile waits in the backlog, what ran at its orderly end was finished,
    and no hand is needed to go on."""
    async with engine(slots=2, tokens=20, decode_tps=40.0) as one:
        unit = Unit(tmp_path, one)
        try:
            await unit.start()
            async with httpx.AsyncClient(trust_env=False) as operator:
                backends = (await operator.get(f"{unit.admin}/admin/backends")).json()
            assert [backend["name"] for backend in backends] == ["b"]
            running = asyncio.create_task(asked(unit, "runs"))
            await one.busy()
            async with clients(unit) as seen:
                assert await unit.end(signal.SIGTERM) == 0
                await unit.told(b"STOPPING=1")
                assert (await running).events[-1].done
                log.info("ready again %.2f s after its start", await unit.start())
                before = seen[200]
                await until(lambda: seen[200] > before + 4, "answers after the restart")

            assert await unit.end(signal.SIGKILL) == -signal.SIGKILL
            waiting = asyncio.create_task(asked(unit, "waits"))
            killed = time.monotonic()
            await unit.start()
            assert (await waiting).head.status == 200
            log.info("served again %.2f s after kill -9", time.monotonic() - killed)
            await one.idle()
        finally:
            unit.close()
