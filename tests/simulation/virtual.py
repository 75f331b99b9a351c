"""An event loop in virtual time: it never blocks, it jumps to the next timer.

Two hours of simulated traffic take a fraction of a second, and the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingCanRun(RuntimeError):
    """Everything waits, and nothing will ever happen: in production this hangs for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, callbacks in its own order; only the clock and the waiting are replaced."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Where the real loop would sleep until a timer or a socket is due."""
        if timeout is None:
            raise NothingCanRun
        self._now += timeout
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no threads."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a fresh loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
