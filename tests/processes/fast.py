"""The real gateway in a world whose clock runs some times as fast as ours, before engines of the simulator.

    python -m tests.processes.fast --speed 20 --config slotgate.toml

It is what `slotgate serve` runs, but for three things: its clock; asyncio's own event loop, because uvloop's
clock cannot be had faster; and that it knows the rates of each backend whose name is a profile's, as
slotgate in the simulator does. So a second of its settings is 1/20 s of ours, and so are the milliseconds of
Python 20 times theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import selectors
import time

from gateway import logs
from gateway.app import create_app
from gateway.lifecycle import bind, serve
from gateway.settings import load
from policies.calibration import Calibration
from policies.simulation.profile import PROFILES
from policies.simulation.slotgate import service_model


class FastSelector(selectors.EpollSelector):
    """Waits for a part of the seconds it is told."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready."""
        return super().select(None if timeout is None else timeout / self._speed)


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop whose seconds are short."""

    def __init__(self, speed: float) -> None:
        super().__init__(FastSelector(speed))
        self._speed = speed

    def time(self) -> float:
        """Seconds since an unknown moment."""
        return time.monotonic() * self._speed


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes.fast")
    parser.add_argument("--speed", type=float, required=True)
    parser.add_argument("--config", required=True)
    arguments = parser.parse_args()
    logs.setup("INFO")
    settings = load(arguments.config, os.environ)
    server = settings.server
    loop = FastLoop(arguments.speed)
    gateway = create_app(settings, loop.time)
    for backend in gateway.admission.backends.values():
        backend.service = service_model(PROFILES[backend.name])
        backend.calibration = Calibration(backend.service)
    clients, operators = bind(server.host, server.port), bind(server.admin_host, server.admin_port)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(serve(gateway, clients, operators, lambda: None))


if __name__ == "__main__":
    main()
