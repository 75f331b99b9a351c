"""Child processes of tests: each wait has a limit, each process is ended by its own id."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

WAIT_SECONDS = 30.0  # for anything that should take far less; the machine may be busy


def free_port() -> int:
    """A port nobody has, below those that the kernel gives to outgoing connections."""
    for _ in range(200):
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


async def until(true: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds; a condition that is a coroutine function is awaited."""
    end = time.monotonic() + seconds
    while True:
        value = true()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(0.01)


class Process:
    """One child process and what it wrote."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        program: str = sys.executable,
    ) -> None:
        self.arguments = [program, *arguments]
        self.folder = folder
        self.environment = environment
        self._out = folder / "stdout"
        self._errors = folder / "stderr"
        self._child: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, again if it has ended."""
        with self._out.open("wb") as out, self._errors.open("ab") as errors:
            self._child = subprocess.Popen(
                self.arguments,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._child is not None
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._child is not None
        return self._child.poll()

    @property
    def output(self) -> str:
        """What it wrote on standard output since its last start."""
        return self._out.read_text(errors="replace")

    @property
    def errors(self) -> str:
        """What it wrote on standard error."""
        return self._errors.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, SIGSTOP for instance to make it hang."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    async def ended(self, seconds: float = WAIT_SECONDS) -> int:
        """Wait for its end; returns its exit code."""
        await until(lambda: self.exit_code is not None, f"the end of {self.arguments[2]}", seconds)
        assert self.exit_code is not None
        return self.exit_code

    async def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)
        await self.ended()
