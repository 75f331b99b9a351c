"""Child processes of the demo: started with a log file, waited for, ended by their own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

READY_SECONDS = 120.0  # loading took 0.4 s from a warm disk cache, 14 s on a busy computer
STOP_SECONDS = 10.0


class DemoFailed(Exception):
    """The demo cannot go on; the message says why and, where one can, what to do."""


class Child:
    """One child process; a context manager that ends it.

    It has a session of its own, so that Ctrl-C reaches only the demo, which then ends its children in order.
    """

    def __init__(self, name: str, module: str, *arguments: object, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        # The user's own configuration of a gateway must not reach this one.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SLOTGATE_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it, first politely; returns when it is gone."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise DemoFailed, with the end of its log, if it is gone."""
        if (code := self._process.poll()) is not None:
            raise DemoFailed(f"{self.name} {_ending(code)}. The end of its log:\n{self._tail()}")

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Ask until `ready()`; a connection error means not yet. Raises DemoFailed."""
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            self.check()
            try:
                if ready():
                    return
            except httpx.TransportError:
                pass  # not listening yet
            time.sleep(0.1)
        raise DemoFailed(
            f"{self.name} was not ready after {READY_SECONDS:g} s. The end of its log:\n{self._tail()}"
        )

    def wait_ready(self, url: str) -> None:
        """Wait until this URL answers 200. Raises DemoFailed."""
        with httpx.Client(trust_env=False) as http:
            self.wait_until(lambda: http.get(url).status_code == 200)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-12:]
        return "\n".join(f"  {line[:200]}" for line in lines)


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody uses now; all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start_engine(
    name: str, port: int, *, slots: int, context_tokens: int, model: Path, folder: Path
) -> Child:
    """A real llama.cpp server, which loads when this returns; `/health` answers 200 when it is ready."""
    figures = ("--port", port, "--slots", slots, "--context", context_tokens)
    return Child(name, "gateway.demo.engine", *figures, "--model", model.absolute(), folder=folder)


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
